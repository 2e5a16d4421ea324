"""Give torch's CPU build a device `cuda` that does nothing; fake tensors may be on it."""

import ctypes
import importlib.util
import pkgutil
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

from absent_gpu import MISSING_NAME


class Card(NamedTuple):
    """A GPU of some compute capability, as its data sheet has it."""

    num_multiprocessors: int
    memory_gib: int
    shared_kib: int  # that the threads of a block may share


CARDS = {
    80: Card(num_multiprocessors=108, memory_gib=80, shared_kib=163),  # A100
    89: Card(num_multiprocessors=128, memory_gib=24, shared_kib=99),  # RTX 4090
    90: Card(num_multiprocessors=132, memory_gib=80, shared_kib=227),  # H100
    120: Card(num_multiprocessors=170, memory_gib=32, shared_kib=99),  # RTX 5090
}
FREE_FRACTION = 0.75  # of the memory, when the loss asks
REPLACED = (
    "torch.cuda:_lazy_init",
    "torch.cuda:_exchange_device",
    "torch.cuda:_maybe_exchange_device",
    "torch._subclasses.fake_tensor:init_gpu_context",
    "torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init",
)


def require(names: tuple[str, ...]) -> None:
    """End with MISSING_NAME if torch has none of a name that is replaced, "module:name"."""
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            print(f"this torch lacks {name}: {error}", file=sys.stderr)
            sys.exit(MISSING_NAME)


def pretend(capability: int, folder: Path) -> None:
    """Give torch the card of a compute capability, such as 90; must come before the first import of torch.

    `folder` takes the library that g++ makes.
    """
    assert "torch" not in sys.modules
    load_device(folder)

    import lm.core.environment  # noqa: F401

    import torch
    from torch._subclasses import fake_tensor

    require(REPLACED)
    card = CARDS[capability]
    memory_bytes = card.memory_gib << 30
    properties = types.SimpleNamespace(
        name="none",
        gcnArchName="",
        major=capability // 10,
        minor=capability % 10,
        warp_size=32,
        multi_processor_count=card.num_multiprocessors,
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=2048 if capability in (80, 90) else 1536,
        max_threads_per_block=1024,
        total_memory=memory_bytes,
        shared_memory_per_block_optin=card.shared_kib * 1024,
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "_lazy_init": None,
        "device_count": 1,
        "current_device": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "get_device_properties": properties,
        "get_device_capability": divmod(capability, 10),
        "mem_get_info": (int(FREE_FRACTION * memory_bytes), memory_bytes),
        "memory_reserved": 0,
        "memory_allocated": 0,
        "get_rng_state": torch.zeros(1),
        "set_rng_state": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *arguments, answer=answer, **options: answer)
    torch.version.cuda = "13.0"
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    fake_tensor.init_gpu_context = lambda device: None
    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda self: True)


def load_device(folder: Path) -> None:
    """Compile device.cpp and load it."""
    torch = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    library = folder / "device.so"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{torch}/include", f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib"]
    source = Path(__file__).with_name("device.cpp")
    subprocess.run(["g++", *options, source, "-o", library, "-lc10", "-ltorch_cpu"], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)

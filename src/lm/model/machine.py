"""The machine that computes: device, dtype, threads and memory.

This module and lm.exact name kinds of GPUs.
"""

import ctypes
import platform
import sys
from pathlib import Path

import numba
import numpy as np
import psutil
import torch
from torch import Tensor

from lm.core.errors import EnvironmentFailure
from lm.core.numerics import DeviceChoice
from lm.core.params import read_section
from lm.core.paths import RUNTIME
from lm.exact.threads import get_num_threads

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Instruction sets for bfloat16 under torch's names. Not all are fast: AVX512_BF16 without AMX makes a training step
# faster on AMD EPYC and slower on Intel Xeon (benchmarks/results/train_step_without_amx.json).
BFLOAT16_SETS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")


def read_device(index: int | None = None) -> torch.device:
    """Return the device that `device` of runtime.yaml chooses; raise ParamsError for another value."""
    return pick_device(index, read_section(RUNTIME, "device", DeviceChoice))


def pick_device(index: int | None = None, choice: DeviceChoice = "auto") -> torch.device:
    """Return GPU number `index`, the first if it is None; for the choice "cpu", or "auto" without a GPU, the CPU.

    CUDA_VISIBLE_DEVICES decides which GPUs there are. Raise EnvironmentFailure if the choice is "cuda" and there is
    none, or if there are more ranks than GPUs.
    """
    if choice == "cuda" and not has_gpu():
        problem = f"device of {RUNTIME} is cuda, and torch finds no NVIDIA GPU here"
        raise EnvironmentFailure(f"{problem}; set it to auto or cpu, or see docs/gpu.md")
    if choice == "cpu" or not has_gpu():
        return torch.device("cpu")
    index = index or 0
    if index >= torch.cuda.device_count():
        problem = f"process {index + 1} of this host has no GPU of its own: {torch.cuda.device_count()} are visible"
        remedy = "start at most as many processes per host (train.num_processes in runtime.yaml)"
        raise EnvironmentFailure(f"{problem}; {remedy}; each must see all GPUs")
    return torch.device("cuda", index)


def has_gpu() -> bool:
    """Return True if torch can use a GPU here."""
    return torch.cuda.is_available()


def collective_backend(device: torch.device) -> str:
    """Return the backends of the process group of this device; make a CUDA device the current one, as NCCL needs it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def reject_emulation(name: str, device: torch.device) -> None:
    """Raise EnvironmentFailure if train.dtype is bfloat16 and the device would only emulate it."""
    if name == "bfloat16" and not has_bfloat16(device):
        emulated = f"train.dtype is bfloat16, which this {device.type} only emulates"
        raise EnvironmentFailure(f"{emulated}; set it to float32 or auto")


def has_bfloat16(device: torch.device) -> bool:
    """Return True if the device has instructions for bfloat16; of CPUs, torch reports them on Linux only."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return sys.platform.startswith("linux") and any(capabilities.get(name, False) for name in BFLOAT16_SETS)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype in which fast numerics compute: "auto" is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        name = "bfloat16" if is_gpu(device) and has_bfloat16(device) else "float32"
    return COMPUTE_DTYPES[name]


def computed_on(device: torch.device, dtype: torch.dtype, numerics: str, ranks: int = 1) -> dict:
    """Return everything else than parameters, code and data that the bits of a result depend on.

    Exact numerics give the same bits on a GPU; its name is recorded nevertheless.
    """
    if numerics == "exact":
        gpu = {"gpu": device_name(device)} if device.type == "cuda" else {}
        return {"numerics": "exact", **gpu, **library_versions()}
    return {"numerics": "fast", **describe(device, dtype, ranks)}


def describe(device: torch.device, dtype: torch.dtype, ranks: int = 1) -> dict:
    """Return the device, the instruction set, the dtype, the threads and ranks that compute, and versions."""
    return {
        "device": device_name(device),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": get_num_threads(),
        "ranks": ranks,
        **library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute.

    NumPy draws the initial weights and the sampled vocabulary, numba compiles the loops of exact numerics.
    """
    return {"torch": torch.__version__.split("+")[0], "numpy": np.__version__, "numba": numba.__version__}


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def describe_device(device: torch.device, num_threads: int) -> str:
    """Return the device as a message names it: "NVIDIA H100", or "cpu, 2 threads"."""
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    return device_name(device) if device.type == "cuda" else f"cpu, {threads}"


def idle_gpu_warnings() -> list[str]:
    """Return a warning if a GPU stays idle because torch is built for CPUs, or an empty list."""
    if torch.version.cuda is None and has_nvidia_driver():
        build = f"torch {torch.__version__} is built for CPUs"
        return [f"{build}, so the GPU stays idle; to replace it, run `rm -r .venv`, then `make .venv/ready`"]
    return []


def has_nvidia_driver() -> bool:
    """Return True if this machine has a driver of NVIDIA's, on Linux or in WSL."""
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1"))


def available_memory_bytes(
    device: torch.device,
    cgroups: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int:
    """Return the bytes that can be allocated now on the GPU, or on the machine, in its container or its job.

    A container or a job is a control group of version 2; its own limit counts, and those of the groups around it.
    """
    if is_gpu(device):
        return torch.cuda.mem_get_info(device)[0]
    free = [psutil.virtual_memory().available]
    lines = membership.read_text().splitlines() if membership.exists() else []
    own = cgroups
    for line in lines:
        if line.startswith("0::/"):
            own = cgroups / line.removeprefix("0::/")
    for group in (own, *own.parents):
        limit = group / "memory.max"
        if limit.exists() and limit.read_text() != "max\n":
            used = int((group / "memory.current").read_text())
            stat = (group / "memory.stat").read_text().split()
            cached = int(stat[stat.index("inactive_file") + 1])  # files read once; the kernel frees them on demand
            free.append(int(limit.read_text()) - used + cached)
    return min(free)


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the error is a failed allocation, which torch names in several ways.

    It raises a plain RuntimeError on CPUs, and for a driver or a library of a GPU. Its compiler wraps the error in
    another one, and keeps the message.
    """
    words = ("allocate memory", "bad_alloc", "out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in str(error) for each in words)


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks, before the first tensor; return True if it does (Linux only).

    Without this, each step's activations cause page faults. It costs resident memory and changes no result.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of <malloc.h>
    return all([mallopt(mmap_max, 0), mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 2**29)])


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Functions of a training step that depend on a GPU.


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on the device; on CUDA it is made while Python continues."""
    if is_gpu(device):
        return tensor.pin_memory().to(device, non_blocking=True)  # Python would wait if the memory were not pinned
    return tensor.to(device)


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return device.type == "cuda"


def free_bytes(gpu: torch.device) -> int:
    """Return the bytes of a GPU's memory that tensors may still take: free, or reserved by torch but unused."""
    unallocated_bytes, _ = torch.cuda.mem_get_info(gpu)
    cached_bytes = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    return unallocated_bytes + cached_bytes


def shared_bytes(gpu: torch.device) -> int:
    """Return the bytes of the memory that the threads of a block may share on a GPU."""
    return torch.cuda.get_device_properties(gpu).shared_memory_per_block_optin

"""The machine that computes: device, dtype, threads, memory and speed.

This module and lm.exact name kinds of GPUs.
"""

import ctypes
import math
import platform
import sys
import time
from pathlib import Path

import numba
import numpy as np
import psutil
import torch
from torch import Tensor

from lm.core.errors import EnvironmentFailure
from lm.core.messages import say
from lm.core.numerics import DeviceChoice
from lm.core.params import read_section
from lm.core.paths import RUNTIME
from lm.exact.threads import get_num_threads

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Instruction sets for bfloat16 under torch's names. Which of them are fast differs: AVX512_BF16 without AMX makes a
# training step faster on AMD EPYC and slower on Intel Xeon (benchmarks/results/train_step_without_amx.json).
BFLOAT16_SETS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
PROBED_SHAPES = ((1024, 192, 512), (512, 192, 8192))  # tokens x d_model x d_ff, or x vocabulary
MEASURED_S = 0.02  # time of the matrix products of one measurement
PEAK_SIZES = {"cuda": 8192, "cpu": 1024}  # of square matrices; the larger ones fill a GPU
MIN_SPEEDUP = 1.2  # of bfloat16, for `auto` to choose it: a clear margin, so that the choice is stable


def read_device(index: int | None = None) -> torch.device:
    """Return the device that `device` of runtime.yaml chooses; raise ParamsError if it has another value."""
    return pick_device(index, read_section(RUNTIME, "device", DeviceChoice))


def pick_device(index: int | None = None, choice: DeviceChoice = "auto") -> torch.device:
    """Return GPU number `index`, the first if it is None; for the choice "cpu", or "auto" without a GPU, the CPU.

    CUDA_VISIBLE_DEVICES decides which GPUs there are. Raises EnvironmentFailure if the choice is "cuda" and there is
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


def resolve_dtype(name: str, device: torch.device, earlier: str | None = None) -> torch.dtype:
    """Return the dtype to compute in, and print why; "auto" is `earlier`, that of the run so far, or the faster one."""
    reason = "train.dtype"
    if name == "auto" and not has_bfloat16(device):
        name = "float32"
        reason = f"this {device.type} has no instructions for bfloat16"
    elif name == "auto" and earlier:
        name = earlier
        reason = "as the run began"
    elif name == "auto":
        speedup = math.inf if device.type == "cuda" else bfloat16_speedup()
        name = "bfloat16" if speedup >= MIN_SPEEDUP else "float32"
        reason = "this GPU has it" if device.type == "cuda" else f"bfloat16 products are {speedup:.1f} times as fast"
    say(f"dtype        {name} ({reason})")
    return COMPUTE_DTYPES[name]


def bfloat16_speedup() -> float:
    """Return the time of float32 matrix products divided by that of bfloat16 ones, measured in 0.2 s on a CPU."""
    best_float32 = best_bfloat16 = math.inf
    for _ in range(4):  # they alternate and the shortest time counts, so that other processes disturb them alike
        best_float32 = min(best_float32, products_time(torch.float32))
        best_bfloat16 = min(best_bfloat16, products_time(torch.bfloat16))
    return best_float32 / best_bfloat16


def products_time(dtype: torch.dtype) -> float:
    """Return the seconds of matrix products of PROBED_SHAPES on a CPU."""
    operands = [(torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)) for m, k, n in PROBED_SHAPES]
    started = time.perf_counter()
    for a, b in operands:
        torch.mm(a, b)
    return time.perf_counter() - started


def computed_on(device: torch.device, dtype: torch.dtype, numerics: str, ranks: int = 1) -> dict:
    """Return all that a result depends on, bit for bit, besides parameters, code and data.

    Exact numerics have the same bits on a GPU; its name is recorded all the same.
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
    """Return what computes, for people: "NVIDIA H100", or "cpu, 2 threads"."""
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
    cgroup: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int:
    """Return the bytes that can be allocated now on the GPU, or on the machine, in its container or its job."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    limits = [memory_left(folder) for folder in control_groups(cgroup, membership)]
    return min([free, *(left for left in limits if left is not None)])


def control_groups(cgroup: Path, membership: Path) -> list[Path]:
    """Return the folders of the control groups, of version 2 and 1, that may limit the memory of this process.

    They are its own group and the groups around it. In a container the own one may be at the root of `cgroup`.
    """
    folders = [cgroup, cgroup / "memory"]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root = cgroup
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
        else:
            continue
        group = Path(path.lstrip("/"))
        folders += [root / each for each in (group, *group.parents)]
    return list(dict.fromkeys(folders))


def memory_left(folder: Path) -> int | None:
    """Return the bytes that a control group may still allocate, or None if it has no limit."""
    for limit_file, used_file, cached_entry in (
        ("memory.max", "memory.current", "inactive_file"),  # version 2
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
    ):
        try:
            limit = (folder / limit_file).read_text().strip()
            used = int((folder / used_file).read_text())
            stat = (folder / "memory.stat").read_text().split()
        except OSError:
            continue
        if limit == "max":
            return None
        cached = int(stat[stat.index(cached_entry) + 1])  # files read once; the kernel frees them on demand
        return int(limit) - used + cached
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the error is a failed allocation, which torch names in several ways.

    It raises a plain RuntimeError on CPUs, and for a driver or a library of a GPU. Its compiler wraps the error in
    another one, and keeps the message.
    """
    words = ("allocate memory", "bad_alloc", "out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in str(error) for each in words)


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks, before the first tensor; return True if it does (Linux only).

    Otherwise each step's activations cause page faults. It costs resident memory and changes no result.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of <malloc.h>
    return all([mallopt(mmap_max, 0), mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 2**29)])


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done its work; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_peak_flops(device: torch.device, dtype: torch.dtype, size: int | None = None, seconds: float = 0.3) -> float:
    """Measure the peak rate of square matrix products now, in FLOP/s (2 per multiply-add)."""
    size = size or PEAK_SIZES[device.type]
    a = torch.empty(size, size, device=device).normal_(generator=torch.Generator(device).manual_seed(1)).to(dtype)
    products = torch.empty_like(a)
    best = math.inf
    count = 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or best == math.inf:
        started = time.perf_counter()
        for _ in range(count):
            torch.mm(a, a, out=products)
        synchronize(device)
        elapsed = time.perf_counter() - started
        best = min(best, elapsed / count)
        count *= 2 if elapsed < MEASURED_S else 1  # until launching and waiting take a negligible share
    return 2 * size**3 / best


# What a step asks a GPU, or does differently there.


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on the device; on CUDA it is made while Python continues."""
    if is_gpu(device):
        return tensor.pin_memory().to(device, non_blocking=True)  # Python would wait if the memory were not pinned
    return tensor.to(device)


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return device.type == "cuda"


def free_bytes(gpu: torch.device) -> int:
    """Return how many bytes of a GPU's memory tensors may still take: what nobody has, and what torch keeps unused."""
    unallocated_bytes, _ = torch.cuda.mem_get_info(gpu)
    cached_bytes = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    return unallocated_bytes + cached_bytes


def shared_bytes(gpu: torch.device) -> int:
    """Return the bytes of the memory that the threads of a block may share on a GPU."""
    return torch.cuda.get_device_properties(gpu).shared_memory_per_block_optin

"""The machine that computes: device, dtype, threads, memory and speed."""

import ctypes
import platform
import sys
import time
from pathlib import Path

import psutil
import torch

from lm.core.errors import EnvironmentFailure

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(index: int | None = None) -> torch.device:
    """Return the CUDA device of that index if CUDA is visible (CUDA_VISIBLE_DEVICES), else the CPU.

    Raises EnvironmentFailure if there are fewer devices.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if index is not None and index >= torch.cuda.device_count():
        raise EnvironmentFailure(
            f"process {index + 1} of this host has no GPU of its own: {torch.cuda.device_count()} are visible; start "
            "at most as many processes per host (train.num_processes in runtime.yaml); each must see all GPUs"
        )
    return torch.device("cuda") if index is None else torch.device("cuda", index)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in; "auto" is bfloat16 where the device computes faster in it, else float32.

    Raises EnvironmentFailure for bfloat16 on a device that only emulates it, slowly.
    """
    if name == "auto":
        name = "bfloat16" if is_faster_in_bfloat16(device) else "float32"
    supported = is_faster_in_bfloat16(device) or (device.type == "cpu" and _cpu_has("avx512_bf16"))
    if name == "bfloat16" and not supported:
        raise EnvironmentFailure(
            f"train.dtype is bfloat16, which this {device.type} only emulates; set it to float32 or auto"
        )
    return COMPUTE_DTYPES[name]


def is_faster_in_bfloat16(device: torch.device) -> bool:
    """Return True if the device multiplies bfloat16 matrices faster than float32 ones.

    AVX512_BF16 without AMX was 1.5 times slower (benchmarks/results/train_step_without_amx.json).
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return _cpu_has("amx_bf16", "bf16", "sve_bf16")  # x86, Arm, Arm


def _cpu_has(*names: str) -> bool:
    """Return True if the processor has one of the instruction sets, under torch's names for them."""
    capabilities = torch.cpu.get_capabilities()
    return sys.platform.startswith("linux") and any(capabilities.get(name, False) for name in names)


def describe(device: torch.device, dtype: torch.dtype, ranks: int = 1) -> dict:
    """Return what decides the bits of a result besides parameters, code and data."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "torch": torch.__version__.split("+")[0],
    }


def available_memory_bytes(device: torch.device, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that can be allocated now on the GPU, or on the machine or in its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    try:  # the limit of a container, where its control group (version 2) is mounted
        limit, used, stat = ((cgroup / f"memory.{name}").read_text().split() for name in ("max", "current", "stat"))
    except OSError:
        return free
    if limit == ["max"]:
        return free
    cached = int(stat[stat.index("inactive_file") + 1])  # files read once; the kernel frees them on demand
    return min(free, int(limit[0]) - int(used[0]) + cached)


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks instead of returning them to the kernel; return True if it does.

    Each training step frees and allocates gigabytes of activations, which would cause page faults every time. It
    costs resident memory and changes no result. Call it before the first tensor. It works on Linux with glibc only.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of <malloc.h>
    return all([mallopt(mmap_max, 0), mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 2**29)])


def warn_of_busy_cores(seconds: float, measure) -> list[str]:
    """Return a warning if measure() takes less than `seconds` with one thread, or an empty list.

    `seconds` is its result with all threads. Threads wait for each other by spinning: with one busy process on the
    machine, a step was measured 15 times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single = measure() if threads > 1 else seconds
    finally:
        torch.set_num_threads(threads)
    if single >= seconds:
        return []
    return [
        f"a step takes {single:.2f} s with one thread and {seconds:.2f} s with {threads}: other processes keep the "
        "cores busy; stop them, or set OMP_NUM_THREADS=1"
    ]


def matmul_peak_flops(device: torch.device, dtype: torch.dtype, size: int = 1024, seconds: float = 0.3) -> float:
    """Measure the peak rate of square matrix products now, in FLOP/s (2 per multiply-add)."""
    a = torch.ones(size, size, dtype=dtype, device=device)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

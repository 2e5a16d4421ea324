"""What the computation runs on: device, number format, threads; and how memory is given back."""

import ctypes
import platform
import sys
import time
from pathlib import Path

import psutil
import torch

from lm.core.errors import EnvironmentFailure

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(index: int | None = None) -> torch.device:
    """CUDA where it is visible (CUDA_VISIBLE_DEVICES), else the CPU; the device of that index among several.

    Raises EnvironmentFailure if there are fewer.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if index is not None and index >= torch.cuda.device_count():
        raise EnvironmentFailure(
            f"process {index + 1} of this host has no GPU of its own: {torch.cuda.device_count()} are visible; start "
            "as many processes a host (train.num_processes in runtime.yaml), each of which sees all of them"
        )
    return torch.device("cuda", index)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The format to compute in: "auto" is bfloat16 where that is the faster one, else float32.

    Raises EnvironmentFailure for a bfloat16 that the device would only emulate, at a crawl.
    """
    if name == "auto":
        name = "bfloat16" if gains_by_bfloat16(device) else "float32"
    if name == "bfloat16" and not has_bfloat16(device):
        raise EnvironmentFailure(
            f"train.dtype is bfloat16, which this {device.type} only emulates; set it to float32 or auto"
        )
    return DTYPES[name]


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware."""
    return gains_by_bfloat16(device) or (device.type == "cpu" and _cpu_has("avx512_bf16"))


def gains_by_bfloat16(device: torch.device) -> bool:
    """Whether it does so faster than float32 ones.

    AVX512_BF16 alone, without AMX, took half as long again (benchmarks/results/train_step_without_amx.json).
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return _cpu_has("amx_bf16", "bf16", "sve_bf16")  # x86, Arm, Arm


def _cpu_has(*names: str) -> bool:
    """Whether the processor has one of the instruction sets, by torch's names for them."""
    found = torch.cpu.get_capabilities()
    return sys.platform.startswith("linux") and any(found.get(name, False) for name in names)


def describe(device: torch.device, dtype: torch.dtype, ranks: int = 1) -> dict:
    """What decides the bits of a result beside parameters, code and data."""
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
    """Memory that could be allocated now, in bytes: of the device, else of the machine or the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    try:  # a container's own limit, where its control group (version 2) is mounted
        limit, used, stat = ((cgroup / f"memory.{name}").read_text().split() for name in ("max", "current", "stat"))
    except OSError:
        return free
    if limit == ["max"]:
        return free
    cached = int(stat[stat.index("inactive_file") + 1])  # files read once; the kernel gives them up
    return min(free, int(limit[0]) - int(used[0]) + cached)


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks instead of handing each back to the kernel.

    Every training step frees and takes gigabytes of activations; without this they are
    page-faulted anew each time. Costs resident memory, changes no result. Call before the first
    tensor. Returns whether it took effect (glibc on Linux only).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # the names of <malloc.h>: M_MMAP_MAX, …
    return all([mallopt(mmap_max, 0), mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 2**29)])


def warn_of_busy_cores(seconds: float, measure) -> list[str]:
    """A warning if measure(), in seconds, is quicker with one thread than the `seconds` it took with all.

    Threads wait for each other by spinning; beside one busy process a step was measured 15 times slower.
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
        f"one thread takes {single:.2f} s a step, {threads} threads {seconds:.2f} s: other processes keep the cores "
        "busy; stop them, or set OMP_NUM_THREADS=1"
    ]


def matmul_peak_flops(device: torch.device, dtype: torch.dtype, size: int = 1024, seconds: float = 0.3) -> float:
    """The rate of square matrix products on this machine now, in FLOP/s (2 per multiply-add)."""
    a = torch.ones(size, size, dtype=dtype, device=device)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

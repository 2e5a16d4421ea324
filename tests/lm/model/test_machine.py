"""Test the choice of the device and the dtype, and the available memory."""

import platform
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from lm.core.errors import EnvironmentFailure
from lm.model import machine
from lm.model.machine import (
    available_memory_bytes,
    computed_on,
    idle_gpu_warnings,
    is_out_of_memory,
    read_device,
    reject_emulation,
    resolve_dtype,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


# Memory.


def write_group(folder: Path, limit: int | str) -> None:
    """Write the memory files of a control group that uses 700,000 bytes, 200,000 of them for files read once."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("700000\n")
    (folder / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 100000\n")


def test_the_lowest_limit_of_the_control_groups_counts(tmp_path):
    """The container's, then that of the group around the own one."""
    member = tmp_path / "member"
    member.write_text("4:cpu,cpuacct:/x\n0::/slurm/job_7\n")
    write_group(tmp_path / "slurm/job_7", "max")

    for place, limit in ((".", 1_000_000), ("slurm", 950_000)):
        write_group(tmp_path / place, limit)

        assert available_memory_bytes(CPU, tmp_path, member) == limit - 700_000 + 200_000


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("out of resource: shared memory"), False),
    ],
)
def test_failed_allocations_are_recognized_on_every_device(error, expected):
    assert is_out_of_memory(error) == expected


# The dtype.


ON_LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="torch reports the instruction sets on Linux only"
)


@pytest.mark.parametrize(
    ("name", "device", "has_bfloat16", "wanted"),
    [
        ("auto", CUDA, True, torch.bfloat16),
        ("auto", CUDA, False, torch.float32),
        ("auto", CPU, True, torch.float32),
        ("bfloat16", CPU, True, torch.bfloat16),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, name, device, has_bfloat16, wanted):
    monkeypatch.setattr(machine, "has_bfloat16", lambda device: has_bfloat16)

    assert resolve_dtype(name, device) == wanted


@ON_LINUX
def test_bfloat16_is_refused_where_it_is_emulated(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(EnvironmentFailure, match=r"train\.dtype is bfloat16"):
        reject_emulation("bfloat16", CPU)

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    reject_emulation("bfloat16", CPU)


# The device.


@pytest.mark.parametrize(
    ("num_gpus", "index", "choice", "wanted"),
    [
        (2, None, "auto", "cuda:0"),  # CUDA_VISIBLE_DEVICES decides which one is the first
        (2, 1, "cuda", "cuda:1"),
        (2, 1, "cpu", "cpu"),
        (2, 2, "auto", "process 3 of this host has no GPU of its own: 2 are visible"),
        (0, None, "cuda", r"device of runtime\.yaml is cuda, and torch finds no NVIDIA GPU"),
    ],
)
def test_runtime_yaml_and_the_rank_choose_the_device(monkeypatch, tmp_path, num_gpus, index, choice, wanted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.chdir(tmp_path)
    Path("runtime.yaml").write_text(f"device: {choice}\n")

    if " " in wanted:
        with pytest.raises(EnvironmentFailure, match=wanted):
            read_device(index)
    else:
        assert read_device(index) == torch.device(wanted)


def test_a_build_for_cpus_beside_a_gpu_is_warned_of(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(machine, "has_nvidia_driver", lambda: True)

    (warning,) = idle_gpu_warnings()
    assert "`rm -r .venv`" in warning

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert idle_gpu_warnings() == []


# What results depend on.


def test_exact_results_depend_on_versions_and_fast_ones_on_all_that_computes(monkeypatch):
    """The bits of exact numerics are those of a CPU; the GPU is recorded all the same."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    fast = {
        "numerics": "fast",
        "device": "cpu",
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "dtype": "bfloat16",
        "threads": torch.get_num_threads(),
        "ranks": 4,
        **VERSIONS,
    }

    assert computed_on(CPU, torch.float32, "exact", 4) == {"numerics": "exact", **VERSIONS}
    assert computed_on(CUDA, torch.float32, "exact", 4) == {"numerics": "exact", "gpu": "NVIDIA H100", **VERSIONS}
    assert computed_on(CPU, torch.bfloat16, "fast", 4) == fast
    assert computed_on(CUDA, torch.bfloat16, "fast", 4) == fast | {"device": "NVIDIA H100"}


VERSIONS = {
    "torch": torch.__version__.split("+")[0],
    "numpy": np.__version__,
    "numba": numba.__version__,
}

"""Test the choice of the device and the dtype, and the available memory."""

import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import psutil
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.model import machine
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.machine import (
    COMPUTE_DTYPES,
    available_memory_bytes,
    bfloat16_speedup,
    computed_on,
    describe_device,
    idle_gpu_warnings,
    is_out_of_memory,
    matmul_peak_flops,
    pick_device,
    read_device,
    reject_emulation,
    resolve_dtype,
)
from lm.train.optimizers import Muon
from support.workspace import MICRO_MODEL

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000000", 1_000_000 - 700_000 + 200_000), ("max", None), (str(1 << 60), None), ("", None)]
)
def test_the_limit_of_a_container_counts_if_it_is_lower(tmp_path, limit, expected):
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("700000\n")
        (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 100000\n")
    found = available_memory_bytes(CPU, tmp_path, tmp_path / "none")
    if expected is None:
        assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    else:
        assert found == expected


def write_group(folder: Path, version: int, limit: int) -> None:
    """Write the memory files of a control group that uses 700,000 bytes, 200,000 of them for files read once."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, 700_000), strict=True):
        (folder / name).write_text(f"{value}\n")
    prefix = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"{prefix}cache 400000\n{prefix}inactive_file 200000\n")


@pytest.mark.parametrize("place", [".", "slurm/job_7", "slurm"], ids=["container", "own group", "group around it"])
@pytest.mark.parametrize(("version", "root"), [(2, "."), (1, "memory")])
def test_the_limit_of_each_control_group_counts(tmp_path, version, root, place):
    write_group(tmp_path / root / place, version, 1_000_000)
    member = tmp_path / "member"
    member.write_text("0::/slurm/job_7\n" if version == 2 else "4:cpu,cpuacct:/x\n9:memory:/slurm/job_7\n0::/\n")

    assert available_memory_bytes(CPU, tmp_path, member) == 500_000


def test_the_lowest_of_several_limits_counts(tmp_path):
    for place, limit in ((".", 2**63 - 4096), ("slurm", 900_000), ("slurm/job_7", 1_000_000)):
        write_group(tmp_path / "memory" / place, 1, limit)
    (tmp_path / "member").write_text("9:memory:/slurm/job_7\n")

    assert available_memory_bytes(CPU, tmp_path, tmp_path / "member") == 400_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch reports the instruction sets on Linux only")
@pytest.mark.parametrize(
    ("has", "speedup", "auto"),
    [
        ("avx512_bf16", 2.4, torch.bfloat16),  # AMD EPYC
        ("avx512_bf16", 0.7, torch.float32),  # Intel Xeon with AMX turned off
        ("sve_bf16", 1.1, torch.float32),  # too close to be stable
        ("sve_bf16", 1.2, torch.bfloat16),  # the least that is enough
        ("avx2", None, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_it_is_faster(monkeypatch, capsys, has, speedup, auto):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    monkeypatch.setattr(machine, "bfloat16_speedup", lambda device: speedup)
    assert resolve_dtype("auto", CPU) == auto
    printed = capsys.readouterr().out
    assert printed.startswith(f"dtype        {str(auto).removeprefix('torch.')} (")
    if speedup is None:
        assert "no instructions for bfloat16" in printed
        assert resolve_dtype("auto", CPU, earlier="bfloat16") == torch.float32
        with pytest.raises(EnvironmentFailure, match=r"train\.dtype is bfloat16"):
            reject_emulation("bfloat16", CPU)
    else:
        assert f"{speedup}" in printed
        reject_emulation("bfloat16", CPU)
        for earlier in ("float32", "bfloat16"):
            assert resolve_dtype("auto", CPU, earlier) == COMPUTE_DTYPES[earlier]
    assert resolve_dtype("float32", CPU, earlier="bfloat16") == torch.float32


@pytest.fixture
def seconds(monkeypatch):
    """A clock that matrix products move on: a list of the seconds that each takes in float32, the last one for ever.

    In bfloat16 they take a quarter.
    """
    durations = [0.5]
    now = [0.0]

    def product(a, b, out=None):
        duration = durations.pop(0) if len(durations) > 1 else durations[0]
        now[0] += duration if a.dtype == torch.float32 else duration / 4

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return durations


def test_the_speedup_of_bfloat16_is_the_time_of_float32_products_by_its_own(seconds):
    assert bfloat16_speedup(CPU) == 4


@pytest.mark.parametrize(("dtype", "peak"), [(torch.float32, 4000), (torch.bfloat16, 16_000)])
def test_the_peak_is_two_operations_for_each_multiply_add_of_the_fastest_product(seconds, dtype, peak):
    """A product of two matrices of 10 by 10 has 1,000 multiply-adds."""
    seconds[:] = [3.0, 0.5, 1.0]
    assert matmul_peak_flops(CPU, dtype, size=10, seconds=4) == peak


def test_a_gpu_is_used_if_there_is_one_and_runtime_yaml_agrees(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device() == torch.device("cuda", 0), "CUDA_VISIBLE_DEVICES decides which one that is"
    assert pick_device(1) == torch.device("cuda", 1)
    assert pick_device(choice="cuda") == torch.device("cuda", 0)
    assert pick_device(1, "cpu") == CPU
    with pytest.raises(EnvironmentFailure, match="process 3 of this host has no GPU of its own: 2 are visible"):
        pick_device(2)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert idle_gpu_warnings() == []


def test_a_gpu_that_runtime_yaml_asks_for_and_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device(choice="auto") == CPU
    with pytest.raises(
        EnvironmentFailure, match=r"device of runtime\.yaml is cuda, and torch finds no NVIDIA GPU here"
    ):
        pick_device(choice="cuda")


@pytest.mark.parametrize(("choice", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_runtime_yaml_chooses_the_device(monkeypatch, tmp_path, choice, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.chdir(tmp_path)
    Path("runtime.yaml").write_text(f"device: {choice}\n")

    assert read_device().type == expected


def test_another_device_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("runtime.yaml").write_text("device: tpu\n")
    with pytest.raises(ParamsError, match=r"runtime\.yaml: device is 'tpu'; it must be one of auto, cpu, cuda"):
        read_device()


@pytest.mark.parametrize("there", [True, False])
def test_a_build_for_cpus_beside_a_gpu_is_warned_of(monkeypatch, there):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(machine, "has_nvidia_driver", lambda: there)
    found = idle_gpu_warnings()
    assert ["is built for CPUs, so the GPU stays idle; to replace it, run `rm -r .venv`" in each for each in found] == [
        True
    ] * there


def test_a_device_is_described_for_people(monkeypatch):
    assert [describe_device(CPU, threads) for threads in (1, 2)] == ["cpu, 1 thread", "cpu, 2 threads"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert describe_device(torch.device("cuda", 0), 2) == "NVIDIA H100"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_failed_allocations_are_recognized_on_every_device(error, expected):
    assert is_out_of_memory(error) == expected


def test_what_results_depend_on_is_recorded(monkeypatch):
    versions = {"torch": torch.__version__.split("+")[0], "numpy": np.__version__, "numba": numba.__version__}
    assert computed_on(CPU, torch.float32, "exact", 4) == {"numerics": "exact", **versions}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    on_a_gpu = computed_on(torch.device("cuda", 0), torch.float32, "exact")
    assert on_a_gpu == {"numerics": "exact", "gpu": "NVIDIA H100", **versions}
    assert computed_on(CPU, torch.bfloat16, "fast", 4, True) == {
        "numerics": "fast", "device": "cpu", "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(), "dtype": "bfloat16", "threads": torch.get_num_threads(), "ranks": 4,
        "sharded": True, **versions,
    }  # fmt: skip


# A step on a GPU, without one: on tensors of torch's device "meta".


class Float64Finder(TorchDispatchMode):
    """Collect the operations that make a float64 tensor on a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        if any(each.dtype == torch.float64 and each.device.type != "cpu" for each in tensors):
            self.found.append(str(func))
        return made


@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_on_a_gpu_makes_no_float64_tensor(monkeypatch, document_start_id):
    import torch._dynamo  # its tables must hold torch's own functions, before one is replaced

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # torch knows no autocast for meta
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50)).to("meta")
    model.document_start_id = document_start_id
    muon = Muon([p for p in model.layers.parameters() if p.ndim == 2], lr=0.1, weight_decay=0.1, dtype=torch.bfloat16)
    ids = torch.zeros(2, 16, dtype=torch.int64, device="meta")
    with Float64Finder() as finder:
        loss = model.loss(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        model.token_losses(ids, ids)
        assert loss.device.type == "meta" and finder.found == []
        torch.ones(2, device="meta").double()
    assert finder.found != [], "it would see one"

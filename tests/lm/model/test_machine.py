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
from torch import Tensor
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
from lm.model.score import token_losses
from lm.train.optimizers import Muon
from support.workspace import MICRO_MODEL

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


# Memory.


def write_group(folder: Path, version: int, limit: int | str) -> None:
    """Write the memory files of a control group that uses 700,000 bytes, 200,000 of them for files read once."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("700000\n")
        (folder / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 100000\n")
    else:
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text("700000\n")
        (folder / "memory.stat").write_text("total_cache 400000\ntotal_inactive_file 200000\n")


@pytest.mark.parametrize("place", [".", "slurm/job_7", "slurm"], ids=["container", "own group", "group around it"])
@pytest.mark.parametrize(
    ("version", "root", "membership"),
    [
        pytest.param(2, ".", "0::/slurm/job_7\n", id="version 2"),
        pytest.param(1, "memory", "4:cpu,cpuacct:/x\n9:memory:/slurm/job_7\n0::/\n", id="version 1"),
    ],
)
def test_the_limit_of_each_control_group_counts(tmp_path, version, root, membership, place):
    write_group(tmp_path / root / place, version, 1_000_000)
    member = tmp_path / "member"
    member.write_text(membership)

    assert available_memory_bytes(CPU, tmp_path, member) == 1_000_000 - 700_000 + 200_000


def test_the_lowest_of_several_limits_counts(tmp_path):
    no_limit = 2**63 - 4096
    write_group(tmp_path / "memory", 1, no_limit)
    write_group(tmp_path / "memory/slurm", 1, 900_000)
    write_group(tmp_path / "memory/slurm/job_7", 1, 1_000_000)
    member = tmp_path / "member"
    member.write_text("9:memory:/slurm/job_7\n")

    assert available_memory_bytes(CPU, tmp_path, member) == 900_000 - 700_000 + 200_000


@pytest.mark.parametrize("limit", [None, "max", 2**60], ids=["no group", "no limit", "more than the machine has"])
def test_the_free_memory_of_the_machine_counts_if_no_limit_is_lower(tmp_path, limit):
    if limit is not None:
        write_group(tmp_path, 2, limit)

    found = available_memory_bytes(CPU, tmp_path, tmp_path / "none")

    assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)


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


# The dtype.


@pytest.fixture
def products(monkeypatch):
    """Matrix products that take the time that a test wants, by a clock of their own.

    `seconds` has the time of each product in float32, the last one for ever; in bfloat16 they are `speedup` times as
    fast.
    """
    products = SimpleNamespace(seconds=[1.25], speedup=1.25)
    now_s = [0.0]

    def multiply(a, b, out=None):
        duration_s = products.seconds.pop(0) if len(products.seconds) > 1 else products.seconds[0]
        now_s[0] += duration_s if a.dtype == torch.float32 else duration_s / products.speedup

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    return products


def test_the_speedup_of_bfloat16_is_the_time_of_float32_products_by_its_own(products):
    products.speedup = 4

    assert bfloat16_speedup() == 4


@pytest.mark.parametrize(("dtype", "peak"), [(torch.float32, 4000), (torch.bfloat16, 16_000)])
def test_the_peak_is_two_operations_for_each_multiply_add_of_the_fastest_product(products, dtype, peak):
    """A product of two matrices of 10 by 10 has 1,000 multiply-adds."""
    products.seconds = [3.0, 0.5, 1.0]
    products.speedup = 4

    assert matmul_peak_flops(CPU, dtype, size=10, seconds=4) == peak


ON_LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="torch reports the instruction sets on Linux only"
)


def set_instructions(monkeypatch, name: str) -> None:
    """Let this processor have one set of instructions."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})


def forbid_measuring(monkeypatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda *operands: pytest.fail("a product was measured"))


@ON_LINUX
@pytest.mark.parametrize(
    ("instructions", "speedup", "wanted"),
    [
        pytest.param("avx512_bf16", 2.5, torch.bfloat16, id="AMD EPYC"),
        pytest.param("avx512_bf16", 0.625, torch.float32, id="Intel Xeon with AMX turned off"),
        pytest.param("sve_bf16", 1.125, torch.float32, id="too close to be stable"),
        pytest.param("sve_bf16", 1.25, torch.bfloat16, id="enough"),
    ],
)
def test_auto_is_bfloat16_where_it_is_faster(monkeypatch, capsys, products, instructions, speedup, wanted):
    set_instructions(monkeypatch, instructions)
    products.seconds = [speedup]
    products.speedup = speedup

    found = resolve_dtype("auto", CPU)

    assert found == wanted
    name = str(wanted).removeprefix("torch.")
    assert capsys.readouterr().out == f"dtype        {name} (bfloat16 products are {speedup:.1f} times as fast)\n"


@ON_LINUX
def test_auto_is_float32_where_bfloat16_is_emulated(monkeypatch, capsys):
    set_instructions(monkeypatch, "avx2")
    forbid_measuring(monkeypatch)

    found = resolve_dtype("auto", CPU, earlier="bfloat16")

    assert found == torch.float32
    printed = capsys.readouterr().out
    assert printed.startswith("dtype        float32 (")
    assert "no instructions for bfloat16" in printed


@ON_LINUX
@pytest.mark.parametrize("earlier", ["float32", "bfloat16"])
def test_a_run_goes_on_in_the_dtype_in_which_it_began(monkeypatch, earlier):
    set_instructions(monkeypatch, "avx512_bf16")
    forbid_measuring(monkeypatch)

    assert resolve_dtype("auto", CPU, earlier) == COMPUTE_DTYPES[earlier]


def test_a_dtype_that_is_named_counts_whatever_a_run_began_with():
    assert resolve_dtype("float32", CPU, earlier="bfloat16") == torch.float32


@ON_LINUX
def test_bfloat16_is_refused_where_it_is_emulated(monkeypatch):
    set_instructions(monkeypatch, "avx2")

    with pytest.raises(EnvironmentFailure, match=r"train\.dtype is bfloat16"):
        reject_emulation("bfloat16", CPU)

    set_instructions(monkeypatch, "avx512_bf16")
    reject_emulation("bfloat16", CPU)


# The device.


def set_num_gpus(monkeypatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


@pytest.mark.parametrize(
    ("index", "choice", "wanted"),
    [
        pytest.param(None, "auto", "cuda:0", id="CUDA_VISIBLE_DEVICES decides which one is the first"),
        (None, "cuda", "cuda:0"),
        (1, "auto", "cuda:1"),
        (1, "cpu", "cpu"),
    ],
)
def test_a_gpu_is_used_if_there_is_one_and_runtime_yaml_agrees(monkeypatch, index, choice, wanted):
    set_num_gpus(monkeypatch, 2)

    assert pick_device(index, choice) == torch.device(wanted)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    set_num_gpus(monkeypatch, 2)

    with pytest.raises(EnvironmentFailure, match="process 3 of this host has no GPU of its own: 2 are visible"):
        pick_device(2)


def test_without_a_gpu_the_cpu_is_used(monkeypatch):
    set_num_gpus(monkeypatch, 0)

    assert pick_device(choice="auto") == CPU


def test_a_gpu_that_runtime_yaml_asks_for_and_that_is_missing_is_named(monkeypatch):
    set_num_gpus(monkeypatch, 0)

    with pytest.raises(
        EnvironmentFailure, match=r"device of runtime\.yaml is cuda, and torch finds no NVIDIA GPU here"
    ):
        pick_device(choice="cuda")


@pytest.mark.parametrize(("choice", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_runtime_yaml_chooses_the_device(monkeypatch, tmp_path, choice, expected):
    set_num_gpus(monkeypatch, 1)
    monkeypatch.chdir(tmp_path)
    Path("runtime.yaml").write_text(f"device: {choice}\n")

    assert read_device().type == expected


def test_another_device_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("runtime.yaml").write_text("device: tpu\n")

    with pytest.raises(ParamsError, match=r"runtime\.yaml: device is 'tpu'; it must be one of auto, cpu, cuda"):
        read_device()


@pytest.mark.parametrize(
    ("cuda_version", "has_driver", "warns"),
    [
        pytest.param(None, True, True, id="torch for CPUs beside a GPU"),
        pytest.param(None, False, False, id="torch for CPUs without a GPU"),
        pytest.param("12.8", True, False, id="torch for CUDA"),
    ],
)
def test_a_build_for_cpus_beside_a_gpu_is_warned_of(monkeypatch, cuda_version, has_driver, warns):
    monkeypatch.setattr(torch.version, "cuda", cuda_version)
    monkeypatch.setattr(machine, "has_nvidia_driver", lambda: has_driver)

    warnings = idle_gpu_warnings()

    assert len(warnings) == int(warns)
    remedy = "is built for CPUs, so the GPU stays idle; to replace it, run `rm -r .venv`"
    assert all(remedy in warning for warning in warnings)


@pytest.mark.parametrize(
    ("device", "threads", "wanted"),
    [
        (CPU, 1, "cpu, 1 thread"),
        (CPU, 2, "cpu, 2 threads"),
        (CUDA, 2, "NVIDIA H100"),
    ],
)
def test_a_device_is_described_for_people(monkeypatch, device, threads, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")

    assert describe_device(device, threads) == wanted


# What results depend on.

VERSIONS = {
    "torch": torch.__version__.split("+")[0],
    "numpy": np.__version__,
    "numba": numba.__version__,
}


@pytest.mark.parametrize(("device", "gpu"), [(CPU, {}), (CUDA, {"gpu": "NVIDIA H100"})], ids=["cpu", "gpu"])
def test_exact_results_depend_on_versions(monkeypatch, device, gpu):
    """The bits are those of a CPU; the GPU is recorded all the same."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")

    recorded = computed_on(device, torch.float32, "exact", ranks=4)

    assert recorded == {"numerics": "exact", **gpu, **VERSIONS}


def test_fast_results_depend_on_all_that_computes():
    recorded = computed_on(CPU, torch.bfloat16, "fast", ranks=4)

    assert recorded == {
        "numerics": "fast",
        "device": "cpu",
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "dtype": "bfloat16",
        "threads": torch.get_num_threads(),
        "ranks": 4,
        **VERSIONS,
    }


# A step on a GPU, without one: on tensors of torch's device "meta".


class Float64Finder(TorchDispatchMode):
    """Collect the operations that make a float64 tensor on a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, Tensor)]
        if any(each.dtype == torch.float64 and each.device.type != "cpu" for each in tensors):
            self.found.append(str(func))
        return made


def test_a_float64_tensor_on_a_device_is_found():
    with Float64Finder() as finder:
        torch.ones(2, device="meta").double()

    assert len(finder.found) == 1


@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_on_a_gpu_makes_no_float64_tensor(monkeypatch, document_start_id):
    import torch._dynamo  # its tables must hold torch's own functions, before one is replaced

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # torch knows no autocast for meta
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50)).to("meta")
    model.document_start_id = document_start_id
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    muon = Muon(matrices, lr=0.1, weight_decay=0.1, dtype=torch.bfloat16)
    ids = torch.zeros(2, 16, dtype=torch.int64, device="meta")

    with Float64Finder() as finder:
        loss = model.loss(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        token_losses(model, ids, ids)

    assert loss.device.type == "meta"
    assert finder.found == []

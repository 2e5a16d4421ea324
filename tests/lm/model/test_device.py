"""Test the available memory within a container's limit, and the choice of the dtype."""

import sys
import time

import psutil
import pytest
import torch

from lm.core.errors import EnvironmentFailure
from lm.model import device
from lm.model.device import (
    COMPUTE_DTYPES,
    available_memory_bytes,
    bfloat16_speedup,
    matmul_peak_flops,
    refuse_emulation,
    resolve_dtype,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000000", 1_000_000 - 700_000 + 200_000), ("max", None), (str(1 << 60), None), ("", None)]
)
def test_the_limit_of_a_container_counts_if_it_is_lower(tmp_path, limit, expected):
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("700000\n")
        (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 100000\n")
    found = available_memory_bytes(CPU, tmp_path)
    if expected is None:
        assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    else:
        assert found == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch reports the instruction sets on Linux only")
@pytest.mark.parametrize(
    ("has", "speedup", "auto"),
    [
        ("avx512_bf16", 2.4, torch.bfloat16),  # AMD EPYC
        ("avx512_bf16", 0.7, torch.float32),  # Intel Xeon with AMX turned off
        ("avx512_bf16", 1.1, torch.float32),  # too close to be stable
        ("sve_bf16", 1.3, torch.bfloat16),
        ("avx2", None, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_its_products_are_measured_to_be_faster(monkeypatch, capsys, has, speedup, auto):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    monkeypatch.setattr(device, "bfloat16_speedup", lambda: speedup)
    assert resolve_dtype("auto", CPU) == auto
    printed = capsys.readouterr().out
    assert printed.startswith(f"dtype        {str(auto).removeprefix('torch.')} (")
    if speedup is None:
        assert "no instructions for bfloat16" in printed
        assert resolve_dtype("auto", CPU, earlier="bfloat16") == torch.float32
        with pytest.raises(EnvironmentFailure, match=r"train\.dtype is bfloat16"):
            refuse_emulation("bfloat16", CPU)
    else:
        assert f"{speedup}" in printed
        refuse_emulation("bfloat16", CPU)
        for earlier in ("float32", "bfloat16"):
            assert resolve_dtype("auto", CPU, earlier) == COMPUTE_DTYPES[earlier]
    assert resolve_dtype("float32", CPU, earlier="bfloat16") == torch.float32


def test_the_products_are_measured_in_both_dtypes_within_seconds():
    started = time.perf_counter()
    assert 0.001 < bfloat16_speedup() < 1000
    assert time.perf_counter() - started < 20  # a machine that emulates bfloat16 is slow


def test_the_peak_does_not_depend_on_the_time_to_launch_and_wait(monkeypatch):
    peak = matmul_peak_flops(CPU, torch.float32, 128)
    monkeypatch.setattr(device, "synchronize", lambda device: time.sleep(0.005))
    assert matmul_peak_flops(CPU, torch.float32, 128) > 0.3 * peak

"""Test the available memory within a container's limit, and the choice of the dtype."""

import sys

import psutil
import pytest
import torch

from lm.core.errors import EnvironmentFailure
from lm.model.device import available_memory_bytes, resolve_dtype

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
    ("has", "auto", "explicit"),
    [
        ({"amx_bf16", "avx512_bf16"}, torch.bfloat16, torch.bfloat16),
        ({"avx512_bf16"}, torch.float32, torch.bfloat16),  # slower there than float32
        ({"sve_bf16"}, torch.bfloat16, torch.bfloat16),
        ({"avx2"}, torch.float32, None),
    ],
)
def test_auto_is_bfloat16_where_that_is_faster(monkeypatch, has, auto, explicit):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    assert resolve_dtype("auto", CPU) == auto
    assert resolve_dtype("float32", CPU) == torch.float32
    if explicit is None:
        with pytest.raises(EnvironmentFailure, match=r"train\.dtype is bfloat16"):
            resolve_dtype("bfloat16", CPU)
    else:
        assert resolve_dtype("bfloat16", CPU) == explicit

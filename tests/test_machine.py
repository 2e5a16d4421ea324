"""What the machine has: memory within a container's limit."""

import psutil
import pytest
import torch

from lm.machine import available_memory_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000000", 1_000_000 - 700_000 + 200_000), ("max", None), (str(1 << 60), None), ("", None)]
)
def test_a_containers_limit_counts_where_it_is_lower(tmp_path, limit, expected):
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("700000\n")
        (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 200000\nactive_file 100000\n")
    found = available_memory_bytes(CPU, tmp_path)
    if expected is None:
        assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    else:
        assert found == expected

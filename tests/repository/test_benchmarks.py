"""The programs of benchmarks/ run."""

import importlib
import json
import math
import os
import subprocess
import sys

import pytest

from support import ROOT


def test_exact_order_md_is_what_its_program_writes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    page = importlib.import_module("exact_order").page()

    assert page == (ROOT / "docs" / "exact_order.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_gpu_is_measured_by_steps_of_the_stage_train(tmp_path):
    """Here on the CPU, with one small model."""
    command = [sys.executable, "benchmarks/speed/gpu.py", "--quick", "--eager", "--out", tmp_path]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src:benchmarks"}, check=True)

    record = json.loads((tmp_path / "gpu.json").read_text())
    (model,) = record["models"]
    assert abs(model["first_loss"] - math.log(model["vocab_size"])) < 0.5
    assert model["agrees_with_cpu"] is True

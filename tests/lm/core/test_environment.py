"""Stages tell torch and NumPy which code to run before they load them; a person's own settings are kept."""

import os
import subprocess
import sys

from lm.core.environment import SETTINGS

import pytest

from lm.model import products
from support import ROOT

PROGRAM = """
import {stage}, torch
from numpy._core._multiarray_umath import __cpu_features__ as features
print(torch.backends.cpu.get_cpu_capability(), features["X86_V4"], features["AVX512_ICL"])
"""


@pytest.mark.skipif(not products.is_available(), reason="needs an x86-64 processor with AVX2")
@pytest.mark.parametrize(
    ("stage", "own", "found"),
    [("train", {}, "AVX2 False False"), ("eval", {"ATEN_CPU_CAPABILITY": "default"}, "DEFAULT False False")],
)
def test_torch_and_numpy_get_these_settings(stage, own, found):
    others = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", PROGRAM.format(stage=stage)]
    environment = {**others, **own, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == found

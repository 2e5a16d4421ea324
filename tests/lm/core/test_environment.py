"""Stages tell torch which code to run before they load it; a person's own setting is kept."""

import os
import subprocess
import sys

import pytest

from lm.model import products
from support import ROOT

PROGRAM = "import {stage}, torch; print(torch.backends.cpu.get_cpu_capability())"


@pytest.mark.skipif(not products.is_available(), reason="needs an x86-64 processor with AVX2")
@pytest.mark.parametrize(
    ("stage", "own", "found"),
    [("train", {}, "AVX2"), ("eval", {"ATEN_CPU_CAPABILITY": "default"}, "DEFAULT")],
)
def test_torch_is_loaded_with_this_setting_or_a_persons_own(stage, own, found):
    others = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    command = [sys.executable, "-c", PROGRAM.format(stage=stage)]
    environment = {**others, **own, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == found

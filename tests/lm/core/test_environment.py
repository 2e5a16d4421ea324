"""Stages tell NumPy and Matplotlib which code to run before they load it; a person's own settings are kept."""

import os
import subprocess
import sys

from lm.core.environment import SETTINGS

import pytest

from support import ROOT

PROGRAM = """
import {stage}
from numpy._core._multiarray_umath import __cpu_features__ as features
import os
print(os.environ["OPENBLAS_CORETYPE"], features["X86_V4"], features["AVX512_ICL"])
"""


@pytest.mark.parametrize(
    ("stage", "own", "found"),
    [
        ("eval", {"OPENBLAS_CORETYPE": "Zen"}, "Zen False False"),
        ("plot", {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}, "Haswell False False"),
    ],
)
def test_numpy_gets_these_settings(stage, own, found):
    others = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment = others | own | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", PROGRAM.format(stage=stage)]

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == found

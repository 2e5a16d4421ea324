"""The process from which train_cases forks stages imports this: it trains once, small, before the first of them.

Each stage would otherwise read the code that the fingerprint of a run covers, and load the compiled loops of a step:
three quarters of a small run.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

from support.train_cases import ARGUMENTS, make_training, train_stage

with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(folder):
    make_training(Path(folder) / "ws")
    with contextlib.chdir("ws"):
        assert train_stage.main(ARGUMENTS) == 0

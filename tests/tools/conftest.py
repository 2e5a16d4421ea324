"""What tests of `verify --retrain` share."""

import contextlib
import io
import subprocess
from types import SimpleNamespace

import pytest

import train as train_stage


@pytest.fixture
def in_process(monkeypatch):
    """Let `verify --retrain` train in this process: a new one takes seconds to import torch."""

    def run_stage(command: list[str], stdout: int, check: bool) -> subprocess.CompletedProcess:
        _, _, *arguments = command
        with contextlib.redirect_stdout(io.StringIO()):
            return subprocess.CompletedProcess(command, train_stage.main(arguments))

    monkeypatch.setattr("tools.verify.retrain.subprocess", SimpleNamespace(run=run_stage, DEVNULL=subprocess.DEVNULL))
    monkeypatch.delenv("DVC_ROOT", raising=False)

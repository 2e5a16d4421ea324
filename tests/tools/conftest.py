"""What tests of tools share."""

import contextlib
import io
import os
import subprocess
from types import SimpleNamespace

import pytest

import train as train_stage
from support import ROOT
from support.export_cases import write_export


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> SimpleNamespace:
    """A run and its export, which tests copy before they change it."""
    return write_export(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def in_process(monkeypatch):
    """Let `verify --retrain` train in this process: a new one takes seconds to import torch."""

    def run_stage(command: list[str], stdout: int, check: bool) -> subprocess.CompletedProcess:
        _, _, *arguments = command
        with contextlib.redirect_stdout(io.StringIO()):
            return subprocess.CompletedProcess(command, train_stage.main(arguments))

    monkeypatch.setattr("tools.verify.retrain.subprocess", SimpleNamespace(run=run_stage, DEVNULL=subprocess.DEVNULL))
    monkeypatch.delenv("DVC_ROOT", raising=False)


@pytest.fixture
def check_page():
    """Compare a text with a page of tests/golden; with WRITE_GOLDEN=1 in the environment, write the page."""

    def check(name: str, text: str) -> None:
        page = ROOT / "tests" / "golden" / name
        if "WRITE_GOLDEN" in os.environ:
            page.write_text(text)
        assert text == page.read_text()

    return check

"""Samples of the torture programs, and, slowly, everything that they try."""

import os
import shutil
import subprocess
import sys

import pytest

from support import ROOT

PATHS = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"), reason="needs Linux and a C compiler"
)


def torture(program: str, option: str) -> None:
    """Run a program of this folder, and show what it has lost."""
    command = [sys.executable, ROOT / "tests" / "torture" / program, option]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_token_file_and_a_folder_survive_every_power_cut():
    torture("crash_states.py", "--sample")


def test_a_stage_ends_in_words_or_with_the_right_result_whatever_call_fails():
    torture("failing_calls.py", "--sample")


@pytest.mark.slow
def test_every_stage_survives_every_power_cut():
    torture("crash_states.py", "--all")


@pytest.mark.slow
def test_every_stage_survives_failing_calls():
    torture("failing_calls.py", "--all")

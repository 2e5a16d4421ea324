"""A sample of the torture programs, which `make torture` runs in full."""

import os
import shutil
import subprocess
import sys

import pytest

from support import ROOT


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs Linux and a C compiler")
def test_a_token_file_and_a_folder_survive_every_power_cut():
    program = ROOT / "benchmarks" / "torture" / "crash_states.py"
    modules = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"
    environment = os.environ | {"PYTHONPATH": modules}

    ended = subprocess.run([sys.executable, program, "--sample"], env=environment, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr

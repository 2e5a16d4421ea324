"""A stage whose DVC died while it imported, or before its first instruction, writes nothing."""

import os
import subprocess
import sys

import pytest

from support import ROOT
from support.train_cases import wait_for

PROGRAM = """
import lm.core.environment
import os, sys, time
from pathlib import Path

Path("began").touch()
while not Path("go").exists():  # as long imports
    time.sleep(0.01)

from lm.core.errors import command
from lm.core.files import output_lock

@command
def main(argv):
    with output_lock("output"):
        Path("output").touch()

code = main([])
Path("ended.tmp").write_text(str(code))
Path("ended.tmp").rename("ended")
"""


def start(folder, shell, **environment):
    """Start a shell that starts the program in the folder, in a session of their own."""
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        ["sh", "-c", shell.format(python=f"{sys.executable} program.py 2> errors")], cwd=folder, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )  # fmt: skip


def end(folder):
    """Wait for the end of the program; return its exit code, and whether it has written its output."""
    wait_for((folder / "ended").exists)
    return int((folder / "ended").read_text()), (folder / "output").exists()


def test_a_program_whose_parent_dies_writes_nothing(tmp_path):
    shell = start(tmp_path, "{python}; true")
    wait_for((tmp_path / "began").exists)
    shell.kill()
    shell.wait()
    (tmp_path / "go").touch()
    assert end(tmp_path) == (143, False)
    assert "output: not written, the process that started it is gone" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize(("environment", "ended"), [({"DVC_STAGE": "fetch"}, (143, False)), ({}, (0, True))])
def test_a_stage_whose_dvc_died_writes_nothing(tmp_path, environment, ended):
    """Without DVC, `nohup python src/fetch.py &` may outlive its shell."""
    (tmp_path / "go").touch()
    shell = start(tmp_path, "(while [ ! -e gone ]; do sleep 0.02; done; exec {python}) &", **environment)
    shell.wait()
    (tmp_path / "gone").touch()
    assert end(tmp_path) == ended

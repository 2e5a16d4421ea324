"""A process that is interrupted while it imports ends with one sentence; code that is edited meanwhile is refused."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from support import ROOT
from support.process import CAP_S, started, wait_for
from support.refusal import refused

INTERRUPTED = "error: interrupted; run the same command again\n"

# A package that takes long to import and loses KeyboardInterrupt, as some do.
SLOW_PACKAGE = """
import time
from pathlib import Path

Path("imports").touch()
while not Path("go").exists():
    try:
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
raise SystemExit(7)
"""


@pytest.mark.parametrize(
    ("program", "handler", "status", "message"),
    [
        ("src/train.py", signal.SIG_DFL, 130, INTERRUPTED),
        ("src", signal.SIG_DFL, 130, INTERRUPTED),
        ("src/plot.py", signal.SIG_IGN, 7, ""),  # in the background, where a shell ignores interrupts
    ],
)
def test_an_interrupt_during_the_imports_gives_one_sentence(tmp_path, program, handler, status, message):
    (tmp_path / "numpy.py").write_text(SLOW_PACKAGE)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, ROOT / program, "generate"]
    process = started(*command, preexec_fn=lambda: signal.signal(signal.SIGINT, handler), **options)
    wait_for((tmp_path / "imports").exists)

    process.send_signal(signal.SIGINT)
    if status == 7:
        (tmp_path / "go").touch()

    assert process.communicate(timeout=CAP_S) == (None, message)
    assert process.returncode == status


def test_an_interrupt_after_the_imports_is_an_exception_again(tmp_path):
    # Python starts so, but in the background of a shell script, where SIGINT is ignored.
    as_python_starts = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = "from lm.core.start import *; import_module('json'); signal.raise_signal(signal.SIGINT)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", f"{as_python_starts}; {program}"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.stderr.strip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(("edited", "added"), [("plot.py", "#"), ("lm/core/files.py", "#"), ("lm/plots.py", "")])
def test_code_that_is_edited_during_the_imports_is_refused(tmp_path, edited, added):
    """Code that is written again as it was is none."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "src/plot.py", "a") as file:
        file.write(f"path = Path('src/{edited}')\npath.write_text(path.read_text() + '{added}')\n")

    done = subprocess.run([sys.executable, "src/plot.py", "--help"], cwd=tmp_path, capture_output=True, text=True)

    if added:
        refused(done.returncode, done.stderr, 4, "edited while plot.py began", "run the same command again")
    else:
        assert done.returncode == 0

"""A run that was started in the background goes on when its shell ends."""

import os
import subprocess
import sys

from support import ROOT
from support.train_cases import wait_for

PROGRAM = """
import time
from pathlib import Path

from lm.core.files import output_lock
from lm.train.launcher import StopRequest

with StopRequest() as stop, output_lock("output"):
    Path("began").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    signal_number = stop.signal_number

with output_lock("results"):
    Path("ended.tmp").write_text(str(signal_number))
    Path("ended.tmp").rename("ended")
"""
# The shell ends as soon as the program has begun.
SHELL = "nohup {python} program.py > printed 2>&1 & while [ ! -e began ]; do sleep 0.02; done"


def test_a_run_outlives_its_shell(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    shell = ["sh", "-c", SHELL.format(python=sys.executable)]
    subprocess.run(shell, cwd=tmp_path, env=environment, timeout=60, check=True, start_new_session=True)
    (tmp_path / "go").touch()
    wait_for((tmp_path / "ended").exists)
    assert (tmp_path / "ended").read_text() == "0", (tmp_path / "printed").read_text()

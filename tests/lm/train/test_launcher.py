"""A run that was started in the background goes on when its shell ends; ranks share the threads of the machine."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from lm.train import launcher
from support import ROOT
from support.train_cases import wait_for

PROGRAM = """
import time
from pathlib import Path

from lm.core.files import output_lock
from lm.train.stop import StopRequest

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
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    shell = ["sh", "-c", SHELL.format(python=sys.executable)]

    subprocess.run(shell, cwd=tmp_path, env=environment, timeout=60, check=True, start_new_session=True)
    (tmp_path / "go").touch()
    wait_for((tmp_path / "ended").exists)

    assert (tmp_path / "ended").read_text() == "0", (tmp_path / "printed").read_text()


@pytest.mark.parametrize(("chosen", "world_size", "threads"), [(None, 4, "2"), (None, 16, "1"), ("3", 4, "3")])
def test_ranks_share_the_threads_unless_a_person_chose_their_number(monkeypatch, chosen, world_size, threads):
    started = []

    def launch(config, program):
        return lambda *arguments: started.append((config.nproc_per_node, program, arguments))

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", launch)
    monkeypatch.setattr(launcher.logging, "disable", lambda level: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(launcher.sys, "argv", ["train.py", "--debug"])
    monkeypatch.setattr(os, "environ", {} if chosen is None else {"OMP_NUM_THREADS": chosen})

    launcher.start(world_size, ["train.py", "--models"])

    assert os.environ["OMP_NUM_THREADS"] == threads
    assert started == [(world_size, sys.executable, ("train.py", "--models", "--debug"))]


class RanksFailed(ChildFailedError):
    """The launcher's error, by the exit code and the time of each rank's failure."""

    def __init__(self, *failures: tuple[int, int]):
        self.failures = {
            rank: SimpleNamespace(exitcode=exitcode, timestamp=timestamp)
            for rank, (exitcode, timestamp) in enumerate(failures)
        }


def test_the_status_is_that_of_the_rank_that_first_said_why_it_failed(monkeypatch):
    """Those that the launcher ended, by a signal, said nothing; the others failed because of the first."""

    def launch(config, program):
        def fail(*arguments):
            raise RanksFailed((-15, 1), (6, 9), (3, 5), (5, 7))

        return fail

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", launch)
    monkeypatch.setattr(launcher.logging, "disable", lambda level: None)
    monkeypatch.setattr(os, "environ", {})

    with pytest.raises(SystemExit) as ended:
        launcher.start(4, ["train.py"])

    assert ended.value.code == 3

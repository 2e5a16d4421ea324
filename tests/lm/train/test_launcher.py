"""Ranks share the threads of the machine, and the stage ends with the status of the rank that said why it failed."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from lm.train import launcher


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

"""`python src check_idle`: a process that works in the repository is found, one that was killed is not."""

import os
from pathlib import Path

import pytest

from lm.core.files import output_lock, write_json
from support.refusal import refused
from tools.check_idle import main

ENDED = 2**22 + 1  # no process has this number


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(".dvc/tmp").mkdir(parents=True)


def write_rwlock(pid: int) -> None:
    write_json(".dvc/tmp/rwlock", {"write": {"data/models": {"pid": pid, "cmd": "dvc exp run"}}, "read": {}})


def test_a_stage_of_dvc_is_found(capsys):
    write_rwlock(os.getpid())

    refused(main([]), capsys.readouterr().err, 75, ".dvc/tmp/rwlock: DVC or a stage works here")


def test_dvc_is_found_between_stages(capsys):
    with output_lock(".dvc/tmp/x"):
        Path(".dvc/tmp/.x.lock").rename(".dvc/tmp/lock")

        refused(main([]), capsys.readouterr().err, 75, ".dvc/tmp/lock: DVC or a stage works here")


@pytest.mark.parametrize("output", ["data/models", "data/processed_datasets/train.bin"])
def test_a_stage_without_dvc_is_found(capsys, output):
    with output_lock(output):
        refused(main([]), capsys.readouterr().err, 75, f"{Path(output).parent}/.")


def test_what_processes_leave_that_have_ended_is_not_taken_for_work():
    write_rwlock(ENDED)
    Path(".dvc/tmp/lock").touch()
    with output_lock("data/models"):
        pass

    assert main([]) == 0

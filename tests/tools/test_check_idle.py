"""`python src check_idle`: a process that works in the repository is found, one that has ended is not."""

import fcntl
import os
from pathlib import Path

import pytest

from lm.core.files import write_json
from tools.check_idle import main


def test_a_stage_of_dvc_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_process = 2**22 + 1  # larger than any number that Linux gives

    for pid, status in ((os.getpid(), 75), (no_process, 0)):
        write_json(".dvc/tmp/rwlock", {"write": {"data/models": {"pid": pid}}})
        assert main([]) == status


@pytest.mark.parametrize("name", [".dvc/tmp/lock", "data/.models.lock", "data/processed_datasets/.train.bin.lock"])
def test_a_lock_is_found(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True)

    with open(name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main([]) == 75

    assert main([]) == 0

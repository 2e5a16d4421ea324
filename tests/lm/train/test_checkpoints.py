"""Checkpoints and weights are whole and verified; a run never restarts silently."""

import os
import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.core.files import output_lock
from lm.train import checkpoints
from lm.train.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    delete_checkpoints,
    list_checkpoints,
    load_checkpoint,
    load_newest_checkpoint,
    prune_runs,
    retained_steps,
    save_checkpoint,
)
from support.process import CAP_S

GPU = torch.device("cuda")  # beside which a thread writes


def steps_of(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run)]


def files_of(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def save_checkpoints(run: Path, *steps: int, retained: Collection[int] = ()) -> None:
    """Save checkpoints that hold their step alone."""
    for step in steps:
        save_checkpoint(run, step, {"step": step}, retained)


def test_the_last_two_checkpoints_are_kept_and_those_that_stay(tmp_path):
    save_checkpoints(tmp_path, 1, 2, 3, 4, 10, retained={2, 20})

    assert steps_of(tmp_path) == [2, 4, 10]
    assert load_newest_checkpoint(tmp_path) == {"step": 10}
    assert load_checkpoint(Checkpoint(tmp_path, 2)) == {"step": 2}

    delete_checkpoints(tmp_path, {2, 20})
    assert files_of(tmp_path) == ["checkpoint-000000002.json", "checkpoint-000000002.pt"]


def test_a_checkpoint_of_another_run_is_not_loaded(tmp_path):
    save_checkpoints(tmp_path / "one", 1)
    (tmp_path / "one").rename(tmp_path / "another")

    with pytest.raises(IntegrityError, match="belongs to run one, not another"):
        load_checkpoint(Checkpoint(tmp_path / "another", 1))


def test_a_checkpoint_without_a_record_does_not_count(tmp_path):
    save_checkpoints(tmp_path, 3, 4)
    Checkpoint(tmp_path, 4).record.unlink()

    assert load_newest_checkpoint(tmp_path) == {"step": 3}
    assert load_newest_checkpoint(tmp_path / "empty") is None


@pytest.fixture
def held_writes(monkeypatch):
    """Let each checkpoint wait to be written; `begun` has their steps, `go` lets them all be written."""
    save = checkpoints.save_checkpoint
    held = SimpleNamespace(begun=[], go=threading.Event())

    def wait_and_save(run, step, state, retained):
        held.begun.append(step)
        assert held.go.wait(CAP_S)
        save(run, step, state, retained)

    monkeypatch.setattr(checkpoints, "save_checkpoint", wait_and_save)
    return held


def test_a_thread_writes_the_state_as_it_was(tmp_path, held_writes):
    weights = torch.ones(3)
    state = {"model": {"w": weights[1:]}, "rows": [[1, weights]], "betas": (0.9, weights)}
    with CheckpointWriter(tmp_path, (), GPU) as writer:
        writer.save(1, state)
        assert steps_of(tmp_path) == []

        weights.zero_()
        state["rows"][0][0] = 2
        held_writes.go.set()

    saved = load_newest_checkpoint(tmp_path)
    number, in_a_list = saved["rows"][0]
    beta, in_a_tuple = saved["betas"]
    assert (number, beta) == (1, 0.9)
    assert saved["model"]["w"].tolist() == [1, 1]
    assert in_a_list.tolist() == [1, 1, 1]
    assert in_a_tuple.tolist() == [1, 1, 1]


def names(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir() if path.is_dir())


def test_the_least_recently_used_runs_are_deleted_whatever_the_clock_says(tmp_path):
    in_the_future = 10**10
    for name in "abcad":
        prune_runs(tmp_path, tmp_path / name, keep=3)
        (tmp_path / name / "x").write_text("a file of the run")
        for path in (tmp_path / name, *(tmp_path / name).iterdir()):
            os.utime(path, (in_the_future, in_the_future))
        in_the_future -= 1

    assert names(tmp_path) == ["a", "c", "d"]


def test_a_folder_in_use_is_not_deleted(tmp_path):
    prune_runs(tmp_path, tmp_path / "a", keep=1)

    with output_lock(tmp_path / "a"):
        prune_runs(tmp_path, tmp_path / "b", keep=1)
        assert names(tmp_path) == ["a", "b"]

    prune_runs(tmp_path, tmp_path / "b", keep=1)
    assert names(tmp_path) == ["b"]


@pytest.mark.parametrize(
    ("max_steps", "number", "decay_begins", "expected"),
    [
        (40, 0, 32, set()),
        (40, 3, 32, {10, 20, 30, 32}),
        (42, 3, 30, {10, 20, 30}),  # of 10 validations, 5 steps apart, the last after 2 steps
        (10, 1, 0, {5}),
        (10, 3, 8, {5, 8}),  # there is only one validation between the first and the last
    ],
)
def test_checkpoints_stay_between_the_first_and_the_last_validation_and_before_the_decay(
    max_steps, number, decay_begins, expected
):
    params = SimpleNamespace(max_steps=max_steps, eval_every_steps=5, decay_begins=decay_begins)

    assert retained_steps(params, number) == expected

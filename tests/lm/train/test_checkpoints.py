"""Checkpoints and weights are whole and verified; a run never restarts silently."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.core.files import output_lock
from lm.train import checkpoints
from lm.train.checkpoints import (
    keep_checkpoint,
    kept_checkpoints,
    load_newest_checkpoint,
    newest_dtype,
    prune_runs,
    record_of,
    save_checkpoint,
    steps_to_keep,
)


def test_the_last_two_states_are_kept(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"step": step})
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["checkpoint-000000002.pt", "checkpoint-000000003.pt"]
    assert load_newest_checkpoint(tmp_path) == {"step": 3}
    assert load_newest_checkpoint(tmp_path / "empty") is None


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which folder is synced")
def test_the_folder_of_a_run_is_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    prune_runs(tmp_path / ".runs", tmp_path / ".runs" / "run", keep=1)
    assert synced == [str(tmp_path), str(tmp_path / ".runs")]


def test_a_state_of_another_run_is_not_loaded(tmp_path, capsys):
    save_checkpoint(tmp_path / "one", 1, {"step": 1})
    (tmp_path / "one").rename(tmp_path / "another")
    with pytest.raises(IntegrityError, match="none of 1 checkpoints is intact"):
        load_newest_checkpoint(tmp_path / "another")
    assert "belongs to run one, not another" in capsys.readouterr().err


def names(runs):
    return sorted(path.name for path in runs.iterdir() if path.is_dir())


def test_the_oldest_runs_are_deleted(tmp_path):
    for number, name in enumerate("abcd"):
        prune_runs(tmp_path, tmp_path / name, keep=3)
        (tmp_path / name / "x").write_text(json.dumps(number))
    assert names(tmp_path) == ["b", "c", "d"]
    prune_runs(tmp_path, tmp_path / "b", keep=1)
    assert names(tmp_path) == ["b"]


def test_a_folder_in_use_is_not_deleted(tmp_path):
    prune_runs(tmp_path, tmp_path / "a", keep=1)
    with output_lock(tmp_path / "a"):
        prune_runs(tmp_path, tmp_path / "b", keep=1)
        assert names(tmp_path) == ["a", "b"]
    prune_runs(tmp_path, tmp_path / "b", keep=1)
    assert names(tmp_path) == ["b"]


def test_a_folder_that_another_run_deletes_meanwhile_ends_no_run(tmp_path, monkeypatch):
    for name in "abc":
        prune_runs(tmp_path, tmp_path / name, keep=3)
    lock = checkpoints.output_lock
    monkeypatch.setattr(checkpoints, "output_lock", lambda folder: folder.rmdir() or lock(folder))
    prune_runs(tmp_path, tmp_path / "c", keep=1)
    assert names(tmp_path) == ["c"]


@pytest.mark.parametrize(
    ("max_steps", "number", "expected"),
    [
        (40, 0, set()),
        (40, 1, {20}),
        (40, 3, {10, 20, 30}),
        (42, 3, {10, 20, 30}),  # of 10 validations, 5 steps apart, the last after 2 steps
        (10, 1, {5}),
        (10, 3, {5}),  # there is only one between the first and the last
        (5, 3, set()),
    ],
)
def test_kept_checkpoints_are_spread_between_the_first_and_the_last_validation(max_steps, number, expected):
    assert steps_to_keep(SimpleNamespace(max_steps=max_steps, eval_every_steps=5), number) == expected


@pytest.mark.parametrize(("free", "is_kept"), [(3000, True), (2999, False)])
def test_a_kept_checkpoint_leaves_room_for_the_two_of_the_run(tmp_path, capsys, monkeypatch, free, is_kept):
    state = {"model": {"a": torch.ones(150)}, "optimizers": [], "best_weights": {"a": torch.ones(100)}}  # 1,000 bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    megabytes = keep_checkpoint(tmp_path, 7, state)
    assert megabytes == (0.001 if is_kept else None)
    assert list(kept_checkpoints(tmp_path)) == ([7] if is_kept else [])
    assert ("warning: the checkpoint of step 7 is not kept" in capsys.readouterr().err) == (not is_kept)


def test_a_run_continues_in_the_dtype_of_its_newest_segment(tmp_path):
    assert newest_dtype(tmp_path) is None
    for step, dtypes in ((1, ["float32"]), (2, ["float32", "bfloat16"])):
        save_checkpoint(tmp_path, step, {"segments": [{"dtype": dtype} for dtype in dtypes]})
    assert newest_dtype(tmp_path) == "bfloat16"
    record_of(tmp_path, 2).write_text("{")
    assert newest_dtype(tmp_path) == "float32"

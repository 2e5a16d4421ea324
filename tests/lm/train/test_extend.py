"""A longer run continues a shorter one from before its learning rate fell, with the bits of a run of its own."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from lm.core.files import read_json, sha256_file
from lm.model.weights import save_weights, step_name
from lm.train import checkpoints
from lm.train.checkpoints import (
    Checkpoint,
    describe_run,
    extend,
    list_checkpoints,
    load_newest_checkpoint,
    save_checkpoint,
)
from support.damage import flip
from support.train_cases import clear, fresh_training, make_training, only_run, results, run_stage, set_runtime

SHORT = 512 * 8
LONG = 512 * 14


def params(decay_begins, kept_weights_steps=(), schedule="wsd"):
    """The parameters that decide what a run can be extended from."""
    return SimpleNamespace(decay_begins=decay_begins, kept_weights_steps=set(kept_weights_steps), schedule=schedule)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("template") / "ws")
    # The rate falls from steps 4 and 7 on, in the middle of a log row and of a validation interval.
    workspace.change(**{"train.schedule": "wsd", "train.decay_fraction": 0.5, "train.eval_every_tokens": 512 * 3})
    workspace.change(**{"train.log_every_tokens": 512 * 3})
    return workspace


@pytest.fixture
def workspace(template):
    with fresh_training(template):
        yield template


def run(workspace, max_tokens, *sabotage, **changes):
    workspace.change(**{"train.max_tokens": max_tokens}, **changes)
    ended = run_stage(*sabotage)
    assert ended.code == 0, ended.err
    return ended


def test_an_extended_run_has_the_bits_of_a_long_one(workspace):
    alone = run(workspace, LONG)
    assert "extend" not in alone.out
    expected = results()
    clear()
    run(workspace, SHORT)
    assert results() != expected
    extended = run(workspace, LONG)
    assert "which has the same steps up to step 4" in extended.out and "resumed at step 4 " in extended.out
    assert results() == expected


def test_a_damaged_checkpoint_is_not_extended(workspace):
    run(workspace, LONG)
    expected = results()
    clear()
    run(workspace, SHORT)
    for checkpoint in list_checkpoints(only_run()):
        flip(checkpoint.path)
    ended = run(workspace, LONG)
    assert "not extended from there" in ended.err and "resumed" not in ended.out
    assert results() == expected


def test_a_run_that_cannot_be_extended_says_why(workspace):
    run(workspace, LONG)
    for checkpoint in list_checkpoints(only_run()):
        if checkpoint.step < 7:  # where its rate begins to fall
            checkpoint.record.unlink()
    reason = "it has no checkpoint up to step 4, where this run's learning rate begins to fall"
    assert reason in run(workspace, SHORT).out
    run(workspace, SHORT, **{"train.schedule": "cosine"})
    assert "train.schedule cosine" in run(workspace, LONG).out
    assert "extended" not in run(workspace, LONG, **{"train.schedule": "wsd", "train.seed": 9}).out


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"length_free": NaN}'])
def test_a_run_whose_record_is_damaged_stops_no_other_run(tmp_path, capsys, content):
    old, intact, run = (tmp_path / name for name in ("old", "intact", "run"))
    for other in (old, intact):
        describe_run(other, "same", params(9))
        save_checkpoint(other, 4, {"step": 4})
    describe_run(run, "same", params(9))
    (old / "run.json").write_bytes(content)
    extend(run, "same", params(7))
    printed = capsys.readouterr()
    assert printed.out == "extends run intact, which has the same steps up to step 4\n"
    assert printed.err.startswith(f"warning: {old / 'run.json'}: ") and printed.err.count("\n") == 1
    assert load_newest_checkpoint(run)["step"] == 4


def test_a_run_that_is_deleted_meanwhile_stops_no_other_run(tmp_path, capsys, monkeypatch):
    old = tmp_path / "old"
    run = tmp_path / "run"
    for each in (old, run):
        describe_run(each, "same", params(9))
    read = checkpoints.read_json

    def read_after_a_deletion(*given):
        shutil.rmtree(old)
        return read(*given)

    monkeypatch.setattr(checkpoints, "read_json", read_after_a_deletion)
    extend(run, "same", params(7))
    printed = capsys.readouterr()
    assert printed.err.startswith(f"warning: {old / 'run.json'}: missing; ") and printed.err.count("\n") == 1


@pytest.fixture
def other(tmp_path):
    """A run whose rate falls from step 9 on: checkpoints of steps 4, 6, 9 and 10, and the weights of step 3."""
    describe_run(tmp_path / "other", "same", params(9))
    for step in (4, 6, 9, 10):
        save_checkpoint(tmp_path / "other", step, {"step": step}, {4, 6})
    save_weights(tmp_path / "other" / "kept_weights" / step_name(3), {"a": torch.ones(2)}, {"best": {"step": 3}})
    describe_run(tmp_path / "run", "same", params(9))
    return tmp_path / "other"


def test_a_run_begins_with_the_last_checkpoint_before_its_rate_falls(other, capsys):
    for limit, expected in ((3, None), (4, 4), (5, 4), (6, 6), (8, 6), (9, 9), (12, 9)):
        run = other.with_name(f"run{limit}")
        describe_run(run, "same", params(9))
        extend(run, "same", params(limit))
        state = load_newest_checkpoint(run)
        assert (state and state["step"]) == expected
        said = f"up to step {expected}\n" if expected else "it has no checkpoint up to step 3"
        assert said in capsys.readouterr().out


def test_a_run_that_is_half_deleted_is_not_extended(other):
    """`prune_runs` renames a folder before it deletes it."""
    run = other.with_name("run")
    other.rename(other.with_name(".other.tmp"))

    extend(run, "same", params(9))

    assert load_newest_checkpoint(run) is None


def test_a_run_of_which_no_other_length_exists_says_nothing(other, capsys):
    extend(other.with_name("run"), "another", params(9))

    assert capsys.readouterr() == ("", "")


def test_a_run_that_was_killed_while_it_was_extended_is_extended_again(other):
    """It has the checkpoint, and no record of it yet."""
    run = other.with_name("run")
    os.link(Checkpoint(other, 9).path, Checkpoint(run, 9).path)

    extend(run, "same", params(9))

    assert load_newest_checkpoint(run)["step"] == 9


def test_a_checkpoint_is_copied_where_the_disk_has_no_hard_links(other, monkeypatch):
    def no_links(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    run = other.with_name("run")

    extend(run, "same", params(9))

    assert load_newest_checkpoint(run)["step"] == 9


def test_a_run_with_a_checkpoint_of_its_own_or_of_other_values_is_not_extended(other):
    run = other.with_name("run")
    extend(run, "another", params(9))
    assert load_newest_checkpoint(run) is None
    save_checkpoint(run, 1, {"step": 1})
    extend(run, "same", params(9))
    assert load_newest_checkpoint(run) == {"step": 1}


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(other, capsys):
    flip(Checkpoint(other, 6).path)
    extend(other.with_name("run"), "same", params(7))
    assert load_newest_checkpoint(other.with_name("run"))["step"] == 4
    assert "warning: " in capsys.readouterr().err


def test_kept_weights_of_the_steps_before_come_along(other, capsys):
    """The run itself keeps the weights of the step from which it goes on, and of later steps."""
    run = other.with_name("run")
    extend(run, "same", params(7, {3, 6, 10}))
    assert load_newest_checkpoint(run)["step"] == 6
    (kept,) = (run / "kept_weights").iterdir()
    record = read_json(kept / "model.json")
    assert kept.name == step_name(3) and record["fingerprint"] == "run"
    assert record["best"]["sha256"] == sha256_file(kept / "best_model_params.pt")


def test_a_run_whose_kept_weights_are_damaged_or_missing_is_not_extended(other, capsys):
    extend(other.with_name("run"), "same", params(7, {2}))
    assert load_newest_checkpoint(other.with_name("run")) is None
    flip(other / "kept_weights" / step_name(3) / "best_model_params.pt")
    extend(other.with_name("run"), "same", params(7, {3}))
    assert load_newest_checkpoint(other.with_name("run")) is None
    assert "not extended from there" in capsys.readouterr().err


@pytest.mark.parametrize("record", ["{}", "[]", '{"sha256": 3}'])
def test_a_checkpoint_whose_record_is_damaged_is_not_extended(tmp_path, capsys, record):
    old = tmp_path / "old"
    run = tmp_path / "run"
    for each in (old, run):
        describe_run(each, "same", params(9))
    Checkpoint(old, 4).record.write_text(record)
    extend(run, "same", params(7))
    assert f"warning: {Checkpoint(old, 4).record}: " in capsys.readouterr().err
    assert load_newest_checkpoint(run) is None


def test_without_checkpoints_that_stay_none_is_left(workspace):
    set_runtime(keep_checkpoints=0)
    run(workspace, SHORT, **{"train.seed": 2})
    assert list_checkpoints(only_run()) == []

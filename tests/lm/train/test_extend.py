"""A longer run continues a shorter one from before its learning rate fell, with the bits of a run of its own."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm.train.checkpoints import (
    Checkpoint,
    describe_run,
    extend,
    list_checkpoints,
    load_newest_checkpoint,
    save_checkpoint,
)
from support.damage import flip
from support.train_cases import (
    Ended,
    clear,
    fresh_training,
    make_training,
    only_run,
    results,
    run_stage,
)
from support.workspace import Workspace

SHORT = 512 * 8
LONG = 512 * 12


def params(decay_begins: int, schedule: str = "wsd") -> SimpleNamespace:
    """Return the parameters that decide what a run can be extended from."""
    return SimpleNamespace(decay_begins=decay_begins, schedule=schedule)


@pytest.fixture
def workspace(tmp_path):
    workspace = make_training(tmp_path / "ws")
    # The rate falls from steps 4 and 6 on, in the middle of a log row and of a validation interval.
    settings = {
        "train.schedule": "wsd",
        "train.decay_fraction": 0.5,
        "train.log_every_tokens": 512 * 3,
        "train.eval_every_tokens": 512 * 3,
    }
    workspace.change(**settings)
    with fresh_training(workspace):
        yield workspace


def train(workspace: Workspace, max_tokens: int) -> Ended:
    """Train a run of this length, and check that it succeeds."""
    workspace.change(**{"train.max_tokens": max_tokens})
    ended = run_stage()
    assert ended.code == 0, ended.err
    return ended


def test_an_extended_run_has_the_bits_of_a_long_one(workspace):
    alone = train(workspace, LONG)
    assert "extend" not in alone.out
    expected = results()
    clear()
    train(workspace, SHORT)
    assert results() != expected
    assert [checkpoint.step for checkpoint in list_checkpoints(only_run())] == [3, 4, 6], "the others are deleted"

    extended = train(workspace, LONG)

    assert "which has the same steps up to step 4" in extended.out
    assert "resumed at step 4 " in extended.out
    assert results() == expected


# Runs that hold their steps alone.


@pytest.fixture
def run(tmp_path) -> Path:
    """A run without checkpoints, beside `other`."""
    describe_run(tmp_path / "run", "same", params(9))
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path) -> Path:
    """A run whose rate falls from step 9 on: checkpoints of steps 4, 6, 9 and 10."""
    other = tmp_path / "other"
    describe_run(other, "same", params(9))
    for step in (4, 6, 9, 10):
        save_checkpoint(other, step, {"step": step}, {4, 6})
    return other


@pytest.mark.parametrize(("decay_begins", "step"), [(4, 4), (8, 6), (9, 9), (12, 9)])
def test_a_run_begins_with_the_last_checkpoint_before_its_rate_falls(run, other, capsys, decay_begins, step):
    extend(run, "same", params(decay_begins))

    assert load_newest_checkpoint(run)["step"] == step
    assert f"up to step {step}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("schedule", "reason"), [("wsd", "no checkpoint up to step 3"), ("cosine", "schedule cosine")])
def test_a_run_that_extends_no_other_says_why(run, other, capsys, schedule, reason):
    extend(run, "same", params(3, schedule))

    assert load_newest_checkpoint(run) is None
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_run_whose_record_is_damaged_stops_no_other_run(run, other, capsys, content):
    damaged = run.with_name("damaged") / "run.json"
    damaged.parent.mkdir()
    damaged.write_text(content)

    extend(run, "same", params(7))

    printed = capsys.readouterr()
    assert printed.out == "extends run other, which has the same steps up to step 6\n"
    assert printed.err.startswith(f"warning: {damaged}: ")
    assert load_newest_checkpoint(run)["step"] == 6


def test_a_run_that_is_half_deleted_is_not_extended(run, other):
    """`prune_runs` renames a folder before it deletes it."""
    other.rename(other.with_name(".other.tmp"))

    extend(run, "same", params(9))

    assert load_newest_checkpoint(run) is None


def test_a_run_that_was_killed_while_it_was_extended_is_extended_again(run, other):
    """It has the checkpoint, and no record of it yet."""
    os.link(Checkpoint(other, 9).path, Checkpoint(run, 9).path)

    extend(run, "same", params(9))

    assert load_newest_checkpoint(run)["step"] == 9


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run, other, capsys):
    flip(Checkpoint(other, 6).path)

    extend(run, "same", params(7))

    assert load_newest_checkpoint(run)["step"] == 4
    assert "warning: " in capsys.readouterr().err

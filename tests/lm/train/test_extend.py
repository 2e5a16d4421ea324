"""A longer run continues a shorter one from before its learning rate fell, with the bits of a run of its own."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from lm.core.files import read_json, sha256_file
from lm.model.weights import checkpoint_name, save_weights
from lm.train import checkpoints
from lm.train.checkpoints import describe_run, extend, keep_checkpoint, load_newest_checkpoint
from support.damage import flip
from support.train_cases import clear, make_training, restored, results, run_stage, set_runtime

SHORT, LONG = 512 * 8, 512 * 14


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("template") / "ws")
    # The rate falls from steps 4 and 7 on, in the middle of a log row and of a validation interval.
    workspace.change(**{"train.schedule": "wsd", "train.decay_fraction": 0.5, "train.eval_every_tokens": 512 * 3})
    workspace.change(**{"train.log_every_tokens": 512 * 3})
    return workspace


@pytest.fixture
def workspace(template, monkeypatch):
    monkeypatch.chdir(template.folder)
    clear()
    return template


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
    assert "kept the checkpoint of step 4 for longer runs: 0." in run(workspace, SHORT).out
    assert results() != expected
    extended = run(workspace, LONG)
    assert "which has the same steps up to step 4" in extended.out and "resumed at step 4 " in extended.out
    assert results() == expected


def test_a_damaged_state_is_not_extended(workspace):
    run(workspace, LONG)
    expected = results()
    clear()
    run(workspace, SHORT)
    (state,) = workspace.folder.glob(".runs/*/stable-*.pt")
    flip(state)
    ended = run(workspace, LONG)
    assert "not extended from there" in ended.err and "resumed" not in ended.out
    assert results() == expected


def test_a_run_that_cannot_be_extended_says_why(workspace):
    run(workspace, LONG)  # its state is of step 7
    assert (
        "it has no checkpoint up to step 4, where this run's learning rate begins to fall" in run(workspace, SHORT).out
    )
    run(workspace, SHORT, **{"train.schedule": "cosine"})
    assert "train.schedule cosine" in run(workspace, LONG).out
    assert "extended" not in run(workspace, LONG, **{"train.schedule": "wsd", "train.seed": 9}).out


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"length_free": NaN}'])
def test_a_run_whose_record_is_damaged_stops_no_other_run(tmp_path, capsys, content):
    old, intact, run = (tmp_path / name for name in ("old", "intact", "run"))
    for other in (old, intact):
        describe_run(other, "same", 8)
        keep_checkpoint(other, 4, {"model": {}, "optimizers": [], "best_weights": {}, "step": 4}, "stable")
    describe_run(run, "same", 14)
    (old / "run.json").write_bytes(content)
    extend(run, "same", 7, set())
    printed = capsys.readouterr()
    assert printed.out == "extends run intact, which has the same steps up to step 4\n"
    assert printed.err.startswith(f"warning: {old / 'run.json'}: ") and printed.err.count("\n") == 1
    assert load_newest_checkpoint(run)["step"] == 4


def test_a_run_that_is_deleted_meanwhile_stops_no_other_run(tmp_path, capsys, monkeypatch):
    old, run = tmp_path / "old", tmp_path / "run"
    for each in (old, run):
        describe_run(each, "same", 8)
    read = checkpoints.read_json
    monkeypatch.setattr(checkpoints, "read_json", lambda *given: shutil.rmtree(old) or read(*given))
    extend(run, "same", 7, set())
    printed = capsys.readouterr()
    assert printed.err.startswith(f"warning: {old / 'run.json'}: missing; ") and printed.err.count("\n") == 1


@pytest.fixture
def other(tmp_path):
    """A finished run with checkpoints of the steps 4, 6 and 9 for longer ones, and with its weights of step 3."""
    describe_run(tmp_path / "other", "same", 8)
    for step in (4, 6, 9):
        state = {"model": {}, "optimizers": [], "best_weights": {}, "step": step}
        keep_checkpoint(tmp_path / "other", step, state, "stable")
    save_weights(tmp_path / "other" / "checkpoints" / checkpoint_name(3), {"a": torch.ones(2)}, {"best": {"step": 3}})
    describe_run(tmp_path / "run", "same", 14)
    return tmp_path / "other"


def test_a_run_begins_with_the_last_checkpoint_before_its_rate_falls(other, capsys):
    for limit, expected in ((3, None), (4, 4), (5, 4), (6, 6), (8, 6), (9, 9)):
        run = other.with_name(f"run{limit}")
        describe_run(run, "same", 14)
        extend(run, "same", limit, set())
        state = load_newest_checkpoint(run)
        assert (state and state["step"]) == expected
        said = f"up to step {expected}\n" if expected else "it has no checkpoint up to step 3"
        assert said in capsys.readouterr().out


def test_a_run_with_a_checkpoint_of_its_own_or_of_other_values_is_not_extended(other):
    run = other.with_name("run")
    extend(run, "another", 9, set())
    assert load_newest_checkpoint(run) is None
    checkpoints.save_checkpoint(run, 1, {"step": 1})
    extend(run, "same", 9, set())
    assert load_newest_checkpoint(run) == {"step": 1}


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(other, capsys):
    flip(other / "stable-000000006.pt")
    extend(other.with_name("run"), "same", 7, set())
    assert load_newest_checkpoint(other.with_name("run"))["step"] == 4
    assert "warning: " in capsys.readouterr().err


def test_kept_weights_of_the_steps_before_come_along(other, capsys):
    """Those of the step itself and of later ones are the run's own to keep."""
    run = other.with_name("run")
    extend(run, "same", 7, {3, 6, 10})
    assert load_newest_checkpoint(run)["step"] == 6
    (kept,) = (run / "checkpoints").iterdir()
    record = read_json(kept / "model.json")
    assert kept.name == checkpoint_name(3) and record["fingerprint"] == "run"
    assert record["best"]["sha256"] == sha256_file(kept / "best_model_params.pt")


def test_a_run_whose_kept_weights_are_damaged_or_missing_is_not_extended(other, capsys):
    extend(other.with_name("run"), "same", 7, {2})
    assert load_newest_checkpoint(other.with_name("run")) is None
    flip(other / "checkpoints" / checkpoint_name(3) / "best_model_params.pt")
    extend(other.with_name("run"), "same", 7, {3})
    assert load_newest_checkpoint(other.with_name("run")) is None
    assert "not extended from there" in capsys.readouterr().err


@pytest.mark.parametrize("record", ["{}", "[]", '{"sha256": 3}'])
def test_a_state_whose_record_is_damaged_is_not_extended(tmp_path, capsys, record):
    old, run = tmp_path / "old", tmp_path / "run"
    for each in (old, run):
        describe_run(each, "same", 8)
    (old / "stable-000000004.json").write_text(record)
    extend(run, "same", 7, set())
    assert f"warning: {old / 'stable-000000004.json'}: " in capsys.readouterr().err
    assert load_newest_checkpoint(run) is None


def test_without_resumable_checkpoints_none_is_kept(workspace):
    with restored("runtime.yaml"):
        set_runtime(keep_resumable=0)
        ended = run(workspace, SHORT, **{"train.seed": 2})
    assert "kept the checkpoint" not in ended.out
    assert not [*workspace.folder.glob(".runs/*/kept-*"), *workspace.folder.glob(".runs/*/stable-*")]


def fill_disk():
    shutil.disk_usage = lambda path: SimpleNamespace(free=1000)


def test_a_full_disk_does_not_stop_training(workspace):
    ended = run(workspace, SHORT, fill_disk, **{"train.seed": 1})
    assert "warning: the checkpoint of step 4 is not kept: " in ended.err
    assert not [*workspace.folder.glob(".runs/*/kept-*"), *workspace.folder.glob(".runs/*/stable-*")]

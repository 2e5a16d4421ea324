"""A longer run continues a shorter one from before its learning rate fell, with the bits of a run of its own."""

import shutil
from types import SimpleNamespace

import pytest

from lm.train import checkpoints
from lm.train.checkpoints import describe_run, extend, keep_checkpoint, load_newest_checkpoint
from support.damage import flip
from support.train_cases import clear, make_training, results, run_stage

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


@pytest.mark.parametrize("record", ["{}", "[]", '{"sha256": 3}'])
def test_a_state_whose_record_is_damaged_is_not_extended(tmp_path, capsys, record):
    old, run = tmp_path / "old", tmp_path / "run"
    for each in (old, run):
        describe_run(each, "same", 8)
    (old / "stable-000000004.json").write_text(record)
    extend(run, "same", 7, set())
    assert f"warning: {old / 'stable-000000004.json'}: " in capsys.readouterr().err
    assert load_newest_checkpoint(run) is None


def fill_disk():
    shutil.disk_usage = lambda path: SimpleNamespace(free=1000)


def test_a_full_disk_does_not_stop_training(workspace):
    ended = run(workspace, SHORT, fill_disk, **{"train.seed": 1})
    assert "warning: the checkpoint of step 4 is not kept: " in ended.err
    assert not [*workspace.folder.glob(".runs/*/kept-*"), *workspace.folder.glob(".runs/*/stable-*")]

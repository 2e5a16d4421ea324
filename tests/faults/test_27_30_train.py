"""Training with hostile checkpoints, changed inputs or code, a diverging loss, or a request to stop.

After each fault the same command ends with the bits of an undisturbed run.
"""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

import train as train_stage
from lm.core.files import output_lock, sha256_file, write_json
from lm.model.weights import save_tensors
from lm.train.checkpoints import load_newest_checkpoint, save_checkpoint
from support.damage import flip
from support.train_cases import (
    Stage,
    check_rerun,
    die_at,
    hold_at,
    in_a_child,
    in_state,
    only_run,
    restored,
    results,
    run_stage,
    set_runtime,
    set_variable,
    stop_after,
    wait_for,
)

STEP, OPTIMIZERS = "src/lm/train/step.py", "src/lm/train/optimizers.py"
CHANGED = [  # by tests
    "params.yaml", "runtime.yaml", "train.bin", "train.json", STEP, OPTIMIZERS, "src/train.py",
]  # fmt: skip


# ---------------------------------------------------------------- 27: hostile and foreign files


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def hostile(value):
    return {**value, "payload": Payload()}


def another_shape(weights):
    """One entry less and one of another shape."""
    return {name: weights[name] for name in weights if name != "embed_tokens.weight"} | {"norm.weight": torch.ones(3)}


def replace_checkpoints(change):
    """Both states of the run become change(the newest), with records that are right."""
    value = change(load_newest_checkpoint(only_run()))
    for step in (2, 3):
        save_checkpoint(only_run(), step, value)


SWITCH = (set_variable, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")


def test_27_a_hostile_state_never_runs(workspace):
    stop_after(3)
    replace_checkpoints(hostile)
    ended = run_stage(*SWITCH)
    assert ended.code == 4 and "none of 2 checkpoints is intact" in ended.sentence
    assert "refused by torch.load(weights_only=True)" in ended.err
    assert not Path("ran").exists()
    torch.load(next(only_run().glob("checkpoint-*.pt")), weights_only=False)
    Path("ran").rmdir()  # the payload works


def test_27_a_state_of_another_shape_is_refused_by_the_names_that_differ(workspace):
    stop_after(3)
    replace_checkpoints(lambda state: state | {"model": another_shape(state["model"])})
    ended = run_stage()
    assert ended.code == 4
    assert "norm.weight" in ended.sentence and "embed_tokens.weight" in ended.sentence


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (hostile, ["refused by torch.load(weights_only=True)"]),
        (another_shape, ["norm.weight", "embed_tokens.weight"]),
        (lambda weights: weights | {"more": torch.ones(1)}, ["more"]),
        (list, ["best_model_params.pt"]),
        (None, ["sha256 is", "its record says"]),
    ],
)
def test_27_a_model_to_begin_with_is_refused(workspace, undisturbed, change, sentences):
    """By the function with which every reader of data/models loads it."""
    path = Path("other/best_model_params.pt")
    path.parent.mkdir()
    for name in undisturbed:
        if name.startswith("data/models"):
            Path("other", Path(name).name).write_bytes(undisturbed[name])
    if change is None:
        flip(path)
    else:
        record = json.loads((path.parent / "model.json").read_text())
        record["best"]["sha256"] = save_tensors(path, change(torch.load(path, weights_only=True)))
        write_json(path.parent / "model.json", record)
    workspace.change(**{"train.init_from": "other"})
    ended = run_stage(*SWITCH)
    shutil.rmtree(path.parent)
    assert ended.code == 4 and "other/best_model_params.pt" in ended.sentence
    assert all(sentence in ended.sentence for sentence in sentences), ended.sentence
    assert not Path("ran").exists()


# ---------------------------------------------------------------- 28: something changed


def change_data():
    content = Path("train.bin").read_bytes()
    Path("train.bin").write_bytes(content[2:] + content[:2])
    replace_in("train.json", hashlib.sha256(content).hexdigest(), sha256_file("train.bin"))


def replace_in(name, old, new):
    text = Path(name).read_text()
    assert text.count(old) == 1, (name, old)
    Path(name).write_text(text.replace(old, new))


def test_28_changed_explanations_keep_the_states_of_a_run(workspace, undisturbed):
    stop_after(3)
    replace_in(STEP, "Apply the gradients at learning rate", "Take the gradients at learning rate")
    replace_in(OPTIMIZERS, "    a, b, c = NEWTON", "    # The coefficients.\n    a, b, c = NEWTON")
    check_rerun(undisturbed, "resumed at step 3 ")


def test_28_a_change_starts_a_run_of_its_own_and_changing_back_resumes(workspace, undisturbed):
    stop_after(3)
    for name, change in {
        "a parameter": lambda: workspace.change(**{"train.peak_lr": 0.001}),
        "data": change_data,
        "code": lambda: replace_in(OPTIMIZERS, "* 0.2 * max(p.shape)", "* 0.21 * max(p.shape)"),
    }.items():
        with restored(*CHANGED):
            change()
            ended = run_stage(in_state, 1, die_at, "torch.save", 1, "before")
        assert ended.code == -signal.SIGKILL and "resumed" not in ended.out, name
    check_rerun(undisturbed, "resumed at step 3 ")


def test_28_other_threads_are_warned_of_in_fast_numerics(workspace):
    workspace.change(**{"train.numerics": "fast"})
    stop_after(3)
    ended = run_stage(torch.set_num_threads, torch.get_num_threads() + 1)
    assert ended.code == 0 and "resumed at step 3 " in ended.out
    assert "warning: started on " in ended.err and "the bits may differ" in ended.err
    segments = json.loads(Path("data/models/model.json").read_text())["segments"]
    assert [segment["from_step"] for segment in segments] == [0, 3]


def slow_down(factor):
    """A sabotage: train with the learning rates of the edited loop."""
    learning_rate = train_stage.learning_rate
    train_stage.learning_rate = lambda step, params: factor * learning_rate(step, params)


@pytest.mark.slow
def test_28_an_edited_loop_neither_continues_a_run_nor_has_its_results(workspace, undisturbed):
    stop_after(3)
    for factor in (0.1, 0.2):  # half way, and after the end
        with restored("src/train.py"):
            replace_in("src/train.py", "lr = learning_rate(", f"lr = {factor} * learning_rate(")
            ended = run_stage(slow_down, factor)
            assert ended.code == 0 and "resumed" not in ended.out and "already finished" not in ended.out
            assert results() != undisturbed
        check_rerun(undisturbed)


# ---------------------------------------------------------------- 29: diverged


def test_29_a_loss_that_is_not_finite_ends_with_6_and_the_best_model_is_kept(workspace, undisturbed):
    before = {name: workspace.get(name) for name in ("train.peak_lr", "train.divergence_nats")}
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})
    set_runtime(checkpoint_every_s=3600)
    for _ in range(2):
        ended = run_stage()
        assert ended.code == 6
        assert "training diverged at step 1: loss " in ended.sentence
        assert "gradient norm nan, windows [" in ended.sentence and "lower train.peak_lr" in ended.sentence
    state = load_newest_checkpoint(only_run())
    assert (state["step"], state["best_step"]) == (1, 0)
    assert all(weight.isfinite().all() for weight in state["best_weights"].values())
    for path in Path("metrics").glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    workspace.change(**before)
    check_rerun(undisturbed)


def test_29_a_run_that_diverged_does_not_go_on_past_it(workspace):
    workspace.change(**{"train.peak_lr": 3.0, "train.divergence_nats": 0.1})
    first, second = run_stage(), run_stage()
    assert first.code == second.code == 6
    assert "training diverged at step 4: loss " in first.sentence == second.sentence


# ---------------------------------------------------------------- 30: stopped


@pytest.fixture
def only_stopping_saves(workspace):
    """No state is saved but by a stage that is asked to stop."""
    set_runtime(checkpoint_every_s=3600)
    return workspace


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_30_a_signal_saves_the_state_and_the_next_run_goes_on(only_stopping_saves, undisturbed, number, code):
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    os.kill(stage.process.pid, number)
    Path("go").touch()
    ended = stage.end()
    assert ended.code == code
    assert f"training stopped at step 3 ({number.name}); a checkpoint is saved" in ended.sentence
    assert not Path("data/models").exists()
    check_rerun(undisturbed, "resumed at step 3 ")


def test_30_a_second_signal_leaves_at_once(only_stopping_saves, undisturbed):
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    os.kill(stage.process.pid, signal.SIGTERM)
    wait_for(lambda: "send the signal again" in stage.err)
    os.kill(stage.process.pid, signal.SIGINT)
    ended = stage.end()
    assert ended.code == 130
    assert "stopped at once (SIGINT)" in ended.sentence and "`dvc repro`" in ended.sentence
    assert load_newest_checkpoint(only_run()) is None
    check_rerun(undisturbed)


def test_30_a_stage_goes_on_when_its_parent_ends_and_never_are_there_two_writers(workspace, undisturbed):
    stage = Stage(in_a_child, hold_at, 3)
    wait_for(Path("held").exists)
    stage.process.kill()
    ended = run_stage()
    assert ended.code == 75
    assert f"data/models: process {Path('held').read_text()} is writing it" in ended.sentence
    assert not Path("data/models").exists()
    Path("go").touch()
    with output_lock("data/models", wait=True):  # until the stage ends
        assert results() == undisturbed and "error: " not in stage.err
    check_rerun(undisturbed, "this run is already finished")


def test_30_the_same_run_in_another_copy_waits_and_is_served(workspace, undisturbed, tmp_path, monkeypatch):
    """Queued experiments share .runs and may differ in what is not a part of the run."""
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    copy = shutil.copytree(workspace.folder, tmp_path / "copy", ignore=shutil.ignore_patterns(".runs"))
    monkeypatch.chdir(copy)
    other = Stage(set_variable, "DVC_ROOT", str(workspace.folder))
    wait_for(lambda: f": waiting for process {stage.process.pid}" in other.err)
    (workspace.folder / "go").touch()
    ended = other.end()
    assert ended.code == 0 and "parameters" not in ended.out  # not a step was computed here
    assert results() == undisturbed
    assert not Path(".runs").exists()
    assert stage.end().code == 0

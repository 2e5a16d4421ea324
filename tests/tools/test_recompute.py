"""`verify --recompute`: an interval that is trained again has the same bits, and any other bit is found."""

import shutil
from pathlib import Path

import pytest
import torch

import train as train_stage
from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import read_json, sha256_file, write_json
from lm.train import checkpoints
from support.train_cases import make_finished_run, train_with_paths_of_pipeline
from tools.common.retrain import CURVE, read_curve
from tools.verify.recompute import Interval, choose, recompute

MODEL = Path("data/models/model.json")
MADE = (".runs", "data/models", "metrics", "plots", "params.yaml")


def copy(source, target):
    """Copy a file or a folder in place of another."""
    if Path(source).is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of 20 steps with validations and checkpoints at 5, 10 and 15, which kept the weights of step 7."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DVC_ROOT", raising=False)
        workspace = make_finished_run(tmp_path_factory.mktemp("recompute"), kept_step=7)
        patch.chdir(workspace.folder)
        for name in MADE:
            copy(name, f"{name}~")
    return workspace


@pytest.fixture
def workspace(made, monkeypatch):
    """The finished run as the current directory, as it was."""
    monkeypatch.chdir(made.folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name in MADE:
        copy(f"{name}~", name)
    return made


def kept():
    (run,) = Path(".runs").glob("[!.]*")
    return {checkpoint.step: checkpoint for checkpoint in checkpoints.list_checkpoints(run)}


def times():
    """Return when each file of the run was last changed."""
    return {path: path.stat().st_mtime_ns for name in MADE for path in [Path(name), *Path(name).rglob("*")]}


@pytest.mark.parametrize("start", [0, 10])
def test_an_interval_has_the_same_bits_again(workspace, capsys, start):
    before = times()
    recompute(start, 1)
    first, second = capsys.readouterr().out.splitlines()[:2]
    (fingerprint,) = [path.name for path in Path(".runs").glob("[!.]*")]
    origin = f"the checkpoint .runs/{fingerprint}/checkpoint-0000000{start}.pt" if start else "the initial weights"
    assert first == f"recompute: steps {start} to {start + 5} of run {fingerprint}, from {origin}"
    row = read_curve(CURVE)[start + 5]
    validation = f"digest {row['checkpoint_digest']} and validation loss {row['val_loss']}"
    assert second == f"same bits: step {start + 5} has {validation} as recorded"
    assert times() == before


def test_kept_weights_of_an_interval_are_compared(workspace, capsys):
    recompute(5, 1)
    assert capsys.readouterr().out.splitlines()[-1] == "same bits: the weights of step-000000007"
    model = read_json(MODEL)
    model["kept_weights"]["step-000000007"] = "0" * 64
    write_json(MODEL, model)
    with pytest.raises(IntegrityError, match=f"step-000000007 has the sha256 {'0' * 64}; retrained from step 5: "):
        recompute(5, 1)


def test_an_interval_does_not_begin_at_another_checkpoint_than_that_of_the_run(workspace):
    checkpoint = kept()[10]
    state = torch.load(checkpoint.path, weights_only=True)
    next(iter(state["model"].values())).view(-1)[0] += 1
    torch.save(state, checkpoint.path)
    with pytest.raises(IntegrityError, match=r"checkpoint-000000010\.pt: sha256 is "):
        recompute(10, 1)
    write_json(checkpoint.record, read_json(checkpoint.record) | {"sha256": sha256_file(checkpoint.path)})
    with pytest.raises(IntegrityError, match=r"checkpoint-000000010\.pt: its digest is .* records .* at step 10"):
        recompute(10, 1)


def test_the_seed_chooses_the_interval():
    steps = [0, 5, 10, 15, 20]
    states = {step: checkpoints.Checkpoint(Path("run"), step) for step in (5, 7, 15, 20)}
    chosen = [choose(steps, states, None, seed) for seed in range(30)]
    assert chosen == [choose(steps, states, None, seed) for seed in range(30)]
    assert set(chosen) == {Interval(0, 5, None), Interval(5, 10, states[5]), Interval(15, 20, states[15])}
    assert choose(steps, {}, None, 7) == Interval(0, 5, None)
    with pytest.raises(ParamsError, match=r"--from is 10; it must be the step of a checkpoint .*: 0, 5, 15$"):
        choose(steps, states, 10, 1)
    with pytest.raises(ParamsError, match="before the last validation: none"):
        choose([0], {}, None, 1)


def test_a_weight_changed_by_one_bit_is_found(workspace, monkeypatch):
    honest = read_curve(CURVE)
    update = train_stage.step.update_weights

    def altered(state, lr):
        update(state, lr)
        if state.step == 9:
            weight = next(state.model.parameters()).detach()
            weight.view(-1).view(torch.int32)[17] ^= 1 << 12  # the last bit may be lost in the next update

    with monkeypatch.context() as patch:
        patch.setattr(train_stage.step, "update_weights", altered)
        train_with_paths_of_pipeline()
    found = read_curve(CURVE)
    assert found[5] == honest[5] and found[10]["checkpoint_digest"] != honest[10]["checkpoint_digest"]
    pattern = r"plots/validation\.csv: step 10 has digest {} and .*; retrained from step 5: digest {} "
    with pytest.raises(
        IntegrityError, match=pattern.format(*(each[10]["checkpoint_digest"] for each in (found, honest)))
    ):
        recompute(5, 1)


@pytest.mark.parametrize("changes", [{"train.seed": 2}, {"train.eval_every_tokens": 512}])
def test_a_workspace_of_another_run_is_refused(workspace, changes):
    workspace.change(**changes)
    with pytest.raises(
        IntegrityError, match=r"^data/models/model\.json: (was made by run|seed is 1, params.yaml has 2)"
    ):
        recompute(0, 1)


def test_what_the_stage_rejects_is_rejected(workspace, capfd):
    workspace.change(**{"eval.sample_tokens": 100000})
    with pytest.raises(UserError, match=r"^src/train\.py failed; its message is above$") as caught:
        recompute(0, 1)
    assert caught.value.exit_code == 2
    assert "error: params.yaml: eval.sample_tokens is 100000" in capfd.readouterr().err

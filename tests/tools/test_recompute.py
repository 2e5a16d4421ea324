"""`verify --recompute`: an interval that is trained again has the same bits, and any other bit is found."""

import collections
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import train as train_stage
from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.train import checkpoints
from lm.train.state import named_tensors
from support.damage import flip_in_state
from support.train_cases import set_runtime, write_ids
from support.workspace import Workspace
from tools.verify import cli as verify
from tools.verify.recompute import CURVE, Interval, check_start, choose, read_curve, recompute

DATA, MODEL = Path("data/processed_datasets"), Path("data/models/model.json")
FLAGS = {"train": DATA / "train.bin", "validation": DATA / "validation.bin", "models": "data/models",
         "metrics": "metrics", "plots": "plots"}  # fmt: skip
MADE = (".runs", "data/models", "metrics", "plots", "params.yaml")


def train():
    """Run the stage with a fresh run folder."""
    shutil.rmtree(".runs", ignore_errors=True)
    assert train_stage.main([str(word) for name, path in FLAGS.items() for word in (f"--{name}", path)]) == 0


def train_altered(step, weights, position):
    """Run the stage, in which one bit of a weight changes after the update of a step."""
    update = train_stage.step.update_weights

    def altered(state, lr):
        update(state, lr)
        if state.step == step:
            tensor = list(state.model.parameters())[weights].detach()
            tensor.view(-1).view(torch.int32)[position] ^= 1 << 12  # the last bit may be lost in the next update

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stage.step, "update_weights", altered)
        train()


def copy(source, target):
    """Copy a file or a folder in place of another."""
    if Path(source).is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of 20 steps with validations and kept states at 5, 10 and 15."""
    workspace = Workspace(tmp_path_factory.mktemp("recompute"))
    workspace.make_small()
    workspace.change(**{"train.eval_every_tokens": 2560})
    workspace.change(**{"train.numerics": "fast"})  # whose bits threads change
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        patch.delenv("DVC_ROOT", raising=False)
        DATA.mkdir(parents=True, exist_ok=True)
        write_ids(FLAGS["train"], 3000)
        write_ids(FLAGS["validation"], 700)
        train()
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
    return checkpoints.kept_states(run)


def times():
    """Return when each file of the run was last changed."""
    return {path: path.stat().st_mtime_ns for name in MADE for path in [Path(name), *Path(name).rglob("*")]}


@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in (10, 15))])
def test_an_interval_of_a_finished_run_has_the_same_bits_again(workspace, capsys, start):
    before = times()
    recompute(start, 1)
    first, second = capsys.readouterr().out.splitlines()
    (fingerprint,) = [path.name for path in Path(".runs").glob("[!.]*")]
    origin = f"the state .runs/{fingerprint}/kept-0000000{start}.json" if start else "the initial weights"
    assert first == f"recompute: steps {start} to {start + 5} of run {fingerprint}, from {origin}"
    row = read_curve(CURVE)[start + 5]
    validation = f"digest {row['state_digest']} and validation loss {row['val_loss']}"
    assert second == f"same bits: step {start + 5} has {validation} as recorded"
    assert times() == before


def test_without_kept_states_the_first_interval_is_trained_again(workspace, capsys):
    shutil.rmtree(".runs")
    recompute(None, 7)
    out = capsys.readouterr().out
    assert re.match(r"recompute: .* 0 to 5 of run \w+, from the initial weights \(--seed 7\)\nsame bits: step 5 ", out)


def test_the_seed_chooses_among_all_intervals_that_can_be_trained_again():
    steps, states = [0, 5, 10, 15, 20], {5: Path("five"), 15: Path("fifteen"), 7: Path("other"), 20: Path("last")}
    chosen = [choose(steps, states, None, seed) for seed in range(200)]
    assert chosen == [choose(steps, states, None, seed) for seed in range(200)]
    counts = collections.Counter(chosen)
    assert set(counts) == {Interval(0, 5, None), Interval(5, 10, Path("five")), Interval(15, 20, Path("fifteen"))}
    assert min(counts.values()) > 40
    with pytest.raises(ParamsError, match=r"--from is 10, needed: the step of a kept state .*: 0, 5, 15$"):
        choose(steps, states, 10, 1)
    with pytest.raises(ParamsError, match="before the last validation: none"):
        choose([0], {}, None, 1)


def test_one_changed_bit_of_a_kept_state_is_always_found(workspace):
    state = checkpoints.load_state(kept()[5])
    recorded, rng = read_curve(CURVE), np.random.default_rng(3)
    check_start(Interval(5, 10, kept()[5]), recorded)
    tensors = list(named_tensors(state))
    for name, tensor in tensors[:: max(1, len(tensors) // 20)]:
        position = int(rng.integers(tensor.numel()))
        found = flip_in_state(kept()[5], name, position)
        expected = f"kept-000000005.pt: its digest is {found}, plots/validation.csv records "
        with pytest.raises(IntegrityError, match=expected + recorded[5]["state_digest"]):
            check_start(Interval(5, 10, kept()[5]), recorded)
        flip_in_state(kept()[5], name, position)
    check_start(Interval(5, 10, kept()[5]), recorded)


def test_a_damaged_kept_state_is_refused(workspace):
    path = kept()[10].with_suffix(".pt")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        IntegrityError, match=r"kept-000000010\.pt: sha256 is .*; delete it and kept-000000010\.json, or begin"
    ):
        recompute(10, 1)


@pytest.mark.parametrize(
    ("step", "weights", "position", "others"),
    [pytest.param(10, 0, 17, [0, 10], marks=pytest.mark.slow), (9, 0, 17, [])],
)
def test_a_run_in_which_one_weight_changed_by_one_bit_is_found(workspace, step, weights, position, others):
    """Between the validations at 5 and 10; the other intervals, before and after, have the same bits again."""
    honest = read_curve(CURVE)
    train_altered(step, weights, position)
    altered = read_curve(CURVE)
    assert altered[5] == honest[5] and altered[10]["state_digest"] != honest[10]["state_digest"]
    with pytest.raises(IntegrityError) as caught:
        recompute(5, 1)
    digests = altered[10]["state_digest"], honest[10]["state_digest"]
    pattern = r"plots/validation\.csv: step 10 has digest {} and .*; trained again from step 5: digest {} "
    assert re.match(pattern.format(*digests), str(caught.value)) and caught.value.exit_code == 4
    for start in others:
        recompute(start, 1)


@pytest.mark.parametrize("changes", [{"train.seed": 2}, {"train.eval_every_tokens": 512}])
def test_a_workspace_of_another_run_is_refused_in_one_sentence(workspace, changes):
    workspace.change(**changes)
    with pytest.raises(
        IntegrityError, match=r"^data/models/model\.json: (was made by run|seed is 1, params.yaml has 2)"
    ):
        recompute(0, 1)


def test_what_the_stage_refuses_is_refused_with_its_sentence_and_exit_code(workspace):
    workspace.change(**{"eval.stride_fraction": 1.5})
    with pytest.raises(
        UserError, match=r"^src/train\.py failed: params\.yaml: eval\.stride_fraction is 1\.5"
    ) as caught:
        recompute(0, 1)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("older", ["no digests", "no fingerprint", "no curve"])
def test_a_run_of_an_older_version_is_refused(workspace, older):
    if older == "no digests":
        CURVE.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in CURVE.read_text().splitlines()))
    elif older == "no fingerprint":
        record = json.loads(MODEL.read_text())
        del record["fingerprint"]
        MODEL.write_text(json.dumps(record))
    else:
        CURVE.unlink()
    with pytest.raises(IntegrityError, match=r"plots/validation\.csv: .*run `dvc repro`"):
        recompute(0, 1)


# Which states are kept.


def test_a_run_keeps_states_at_validations_spread_over_it(workspace):
    assert list(kept()) == [5, 10, 15]
    for step, record in kept().items():
        assert checkpoints.load_state(record)["step"] == step
    set_runtime(keep_states=1)
    train()
    assert list(kept()) == [10]
    set_runtime(keep_states=0)
    train()
    assert kept() == {}
    set_runtime(keep_states=3)


def test_options_of_recompute_need_it(workspace, capsys):
    for arguments in (["--from", "0"], ["--seed", "1"]):
        assert verify.main(arguments) == 2
        assert "add --recompute" in capsys.readouterr().err

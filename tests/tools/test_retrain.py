"""`verify --retrain`: steps that are trained again have the same bits, and any other bit is found."""

from pathlib import Path

import pytest
import torch

from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import read_json, sha256_file, write_json
from lm.model.weights import load_trained
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint
from lm.train.state import named_tensors
from support.damage import truncate
from support.refusal import files_below
from support.stages import change_params
from support.train_cases import make_finished_run, only_run
from support.workspace import Workspace
from tools.record.paths import CURVE, MODEL, TRAIN_METRICS
from tools.record.run import DIGEST
from tools.verify import retrain as tool
from tools.verify.records import BEST, LAST, read_curve
from tools.verify.retrain import Steps, choose_steps, retrain


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The folder of a run of 20 steps, with validations at 5, 10, 15 and 20.

    The checkpoints of 5, 10 and 15 stay, and that of 8, at which the learning rate begins to fall.
    """
    return make_finished_run(tmp_path_factory.mktemp("retrain")).folder


@pytest.fixture
def run(finished_run, in_process, tmp_path, monkeypatch):
    """The folder of the run in a copy, which is the current directory."""
    monkeypatch.chdir(Workspace(tmp_path / "copy", finished_run).folder)
    return only_run()


def call(end: int | None = None, weights: Path | None = None) -> list[str]:
    """Call what `verify --retrain END --weights WEIGHTS --seed 1` calls; return what it has shown."""
    return retrain(end, 1, weights)


def remove(checkpoint: Checkpoint) -> None:
    checkpoint.path.unlink()
    checkpoint.record.unlink()


def replace_by_another(checkpoint: Checkpoint) -> None:
    """Change a weight of a checkpoint, and record the SHA-256 of the new file."""
    state = torch.load(checkpoint.path, weights_only=True)
    next(iter(state["model"].values())).view(-1)[0] += 1
    torch.save(state, checkpoint.path)
    record = read_json(checkpoint.record)
    write_json(checkpoint.record, record | {"sha256": sha256_file(checkpoint.path)})


# Equal bits.


def test_a_removed_checkpoint_comes_back_with_every_bit(run, capsys):
    """From the initial weights, because none before it is stored; the steps pass a validation.

    A file without its record is no checkpoint.
    """
    removed = Checkpoint(run, 10)
    before = dict(named_tensors(load_checkpoint(removed)))
    for checkpoint in list_checkpoints(run):
        if checkpoint.step != 15:
            remove(checkpoint)
    removed.path.write_bytes(b"cut")

    shown = call(end=10)

    assert f"retrain: steps 0 to 10 of run {run.name}, from the initial weights\n" in capsys.readouterr().err
    assert shown == [
        "Steps 0 to 10 have the recorded bits. Not shown: the weights.",
        f"stored: {removed.path}",
    ]
    after = dict(named_tensors(load_checkpoint(removed)))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_its_weights_are_written(run):
    checkpoint = load_checkpoint(Checkpoint(run, 15))

    shown = call(end=15, weights=Path("data/early"))

    assert shown[-1] == "data/early: has the weights of step 15"
    found, record = load_trained(Path("data/early"), torch.device("cpu"))
    assert all(torch.equal(weight, checkpoint["model"][name]) for name, weight in found.state_dict().items())
    row = read_curve(CURVE)[15]
    assert (record["best"]["step"], record["best"]["tokens_seen"]) == (15, int(row["tokens"]))
    assert f"{record['best']['val_loss']:.8g}" == row["val_loss"]
    assert not {"training", "last"} & record.keys()


def test_a_short_run_is_trained_whole_and_shows_its_weights(run):
    before = files_below(Path())

    assert call() == ["The weights in data/models are those that this code makes."]

    assert files_below(Path()) == before


@pytest.mark.parametrize(("most_s", "shown"), [(600, "The weights in data"), (0, "have the recorded bits. Not shown")])
def test_a_run_of_unknown_time_begins_with_its_first_validation(run, monkeypatch, capsys, most_s, shown):
    """Its time is extrapolated: the steps go on, or others are chosen."""
    (run / "timing.json").unlink()
    for checkpoint in list_checkpoints(run):
        remove(checkpoint)
    monkeypatch.setattr(tool, "WHOLE_RUN_S", most_s)

    (sentence,) = call()

    assert shown in sentence
    steps = [line.split(" of run")[0] for line in capsys.readouterr().err.splitlines() if "retrain: " in line]
    assert steps == ["retrain: steps 0 to 5", "retrain: steps 0 to 20"][: 2 if most_s else 1]


def test_from_a_checkpoint_the_weights_are_shown_but_not_the_checkpoint(run):
    shown, _ = call(end=20)

    made = "From the stored checkpoint of step 15 this code makes the weights in data/models."
    assert shown == f"{made} Not shown: that checkpoint."


def test_best_weights_count_only_if_the_steps_made_them(run):
    """Those of a state that was trained from a checkpoint may be older."""
    model = read_json(MODEL) | {"best": {"step": 10}, "last": {"step": 99}}
    state = load_checkpoint(list_checkpoints(run)[-1])

    assert tool.compare_model(state, model, Steps(10, 15)) == []


def test_fast_numerics_on_another_machine_are_not_compared(run):
    model = read_json(MODEL)
    write_json(MODEL, model | {"segments": [model["segments"][0] | {"threads": 99}]})

    assert call(end=15) == [tool.NOT_COMPARABLE]


# Other bits.


def flip_a_bit(file: Path) -> None:
    """Flip the last bit of a weight."""
    weights = torch.load(file, weights_only=True)
    next(iter(weights.values())).view(torch.int32).view(-1)[-1] ^= 1
    torch.save(weights, file)


def edit_best_loss() -> None:
    model = read_json(MODEL)
    write_json(MODEL, model | {"best": model["best"] | {"val_loss": model["best"]["val_loss"] + 1e-9}})


def edit_curve(step: int, column: str, value: str) -> None:
    CURVE.write_text(CURVE.read_text().replace(read_curve(CURVE)[step][column], value))


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (lambda: flip_a_bit(BEST), f"{BEST}: has other tensors than this code makes"),
        (lambda: flip_a_bit(LAST), f"{LAST}: has other tensors than this code makes"),
        (edit_best_loss, f"{MODEL}: best is "),
        (lambda: edit_curve(20, "val_loss", "1.5"), f"{CURVE}: step 20 has .*; retrained from step 0: "),
        (lambda: CURVE.write_text(CURVE.read_text() + "3,1,9,abc\n"), f"{CURVE}: step 3 has .*: no row"),
        (lambda: write_json(TRAIN_METRICS, {"val_loss": 1.5}), f"{TRAIN_METRICS}: val_loss is 1.5, this code makes "),
    ],
)
def test_what_this_code_does_not_make_is_found_by_training_the_whole_run(run, forge, named):
    forge()

    with pytest.raises(IntegrityError, match=rf"^{named}.*; run `dvc repro --force --single-item train"):
        call()


def test_a_checkpoint_with_other_bits_than_its_curve_is_not_stored(run):
    edit_curve(10, DIGEST, "abc")
    remove(Checkpoint(run, 10))

    with pytest.raises(IntegrityError, match=rf"^{CURVE}: step 10 has .* abc; retrained from step 8: "):
        call(end=10)

    assert not Checkpoint(run, 10).path.exists()


ADVICE = r"; delete it and checkpoint-000000010\.json, and run the command again$"


def test_a_damaged_checkpoint_is_no_beginning(run):
    truncate(Checkpoint(run, 10).path)

    with pytest.raises(IntegrityError, match=rf"checkpoint-000000010\.pt: sha256 is .*{ADVICE}"):
        call(end=15)


@pytest.mark.parametrize("end", [15, 10])
def test_a_stored_checkpoint_with_another_digest_is_found(run, end):
    """At the beginning of the steps, and at their end."""
    replace_by_another(Checkpoint(run, 10))

    with pytest.raises(IntegrityError, match=rf"000000010\.pt: its digest is .* records .* at step 10{ADVICE}"):
        call(end=end, weights=Path("data/early"))

    assert not Path("data/early").exists()


# Refusals.


def test_a_stage_that_fails_gives_its_exit_status_and_changes_nothing(run, capfd):
    remove(Checkpoint(run, 10))
    before = files_below(run)
    change_params(Path(), {"train.num_processes": 7}, "runtime.yaml")

    with pytest.raises(UserError, match=r"^src/train\.py failed; its message is above$") as caught:
        call(end=10)

    assert caught.value.exit_code == ParamsError.exit_code
    assert "7 processes cannot divide equally" in capfd.readouterr().err
    assert files_below(run) == before


def test_a_workspace_of_another_run_is_refused(run):
    change_params(Path(), {"train.seed": 2})
    with pytest.raises(IntegrityError, match=rf"^{MODEL}: was made by run"):
        call(end=10)

    # Every validation must have a digest.
    edit_curve(20, DIGEST, "")
    with pytest.raises(IntegrityError, match=rf"^{CURVE}: missing, or without digests of checkpoints"):
        call(end=10)


# Which steps.

VALIDATIONS = [0, 5, 10, 15, 20]


@pytest.mark.parametrize(
    ("stored", "end", "chosen"),
    [
        ([], 5, Steps(0, 5)),
        ([7, 10], 10, Steps(7, 10)),
        ([5, 10], 10, Steps(5, 10)),
    ],
)
def test_steps_begin_at_the_nearest_checkpoint(stored, end, chosen):
    assert choose_steps(VALIDATIONS, stored, end, seed=1) == chosen


@pytest.mark.parametrize("end", [0, 7])
def test_other_steps_are_refused_with_those_that_are_possible(end):
    with pytest.raises(ParamsError, match=f"^--retrain is {end}; .*: 5, 10, 15, 20$"):
        choose_steps(VALIDATIONS, [5, 7, 20], end, seed=1)


def test_a_seed_chooses_one_of_the_intervals_that_begin_at_a_checkpoint():
    stored = [5, 7, 15, 20]

    chosen = [choose_steps(VALIDATIONS, stored, None, seed) for seed in range(30)]

    assert chosen == [choose_steps(VALIDATIONS, stored, None, seed) for seed in range(30)]
    assert set(chosen) == {Steps(0, 5), Steps(5, 10), Steps(15, 20)}

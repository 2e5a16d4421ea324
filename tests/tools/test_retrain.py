"""`verify --retrain`: steps that are trained again have the same bits, and any other bit is found."""

import shutil
from pathlib import Path

import pytest
import torch

import train as train_stage
from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import read_json, sha256_file, write_json
from lm.model.weights import load_trained
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint
from lm.train.state import digest_of, named_tensors
from support.refusal import files_below
from support.stages import change_params
from support.train_cases import make_finished_run, only_run, train_with_paths_of_pipeline
from tools.record.paths import CURVE, MODEL, PARAMS
from tools.record.run import DIGEST
from tools.verify import retrain as tool
from tools.verify.records import BEST, LAST, read_curve
from tools.verify.retrain import Steps, choose_steps, compare_weights, retrain

CHANGED = [Path(".runs"), Path("data"), Path("metrics"), Path("plots"), PARAMS]  # what a test may change


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The folder of a run of 20 steps, with validations at 5, 10, 15 and 20.

    The checkpoints of 5, 10 and 15 stay, and that of 8, at which the learning rate begins to fall.
    """
    folder = tmp_path_factory.mktemp("retrain")
    make_finished_run(folder)
    for path in CHANGED:
        replace_by_copy(folder / path, folder / "before" / path)
    return folder


@pytest.fixture
def run(finished_run, in_process, monkeypatch):
    """The folder of the finished run, as it was, below the current directory."""
    monkeypatch.chdir(finished_run)
    for path in CHANGED:
        replace_by_copy(Path("before", path), path)
    return only_run()


def replace_by_copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder in place of another one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy(source, target)
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def call(end: int | None = None, weights: Path | None = None) -> list[str]:
    """Call what `verify --retrain END --weights WEIGHTS --seed 1` calls; return what it has shown."""
    return retrain(end, 1, weights)


def path_of(run: Path, step: int) -> str:
    return str(Checkpoint(run, step).path)


def remove(checkpoint: Checkpoint) -> None:
    checkpoint.path.unlink()
    checkpoint.record.unlink()


def replace_by_another(checkpoint: Checkpoint) -> str:
    """Change a weight of a checkpoint, and record the SHA-256 of the new file; return its digest."""
    state = torch.load(checkpoint.path, weights_only=True)
    next(iter(state["model"].values())).view(-1)[0] += 1
    torch.save(state, checkpoint.path)
    record = read_json(checkpoint.record)
    write_json(checkpoint.record, record | {"sha256": sha256_file(checkpoint.path)})
    return digest_of(named_tensors(state))


# Equal bits.


def test_a_removed_checkpoint_comes_back_with_every_bit(run, capsys):
    """From the initial weights, because none before it is stored; the steps pass a validation.

    A file without its record is no checkpoint.
    """
    before = dict(named_tensors(load_checkpoint(Checkpoint(run, 10))))
    for checkpoint in list_checkpoints(run):
        if checkpoint.step != 15:
            remove(checkpoint)
    Checkpoint(run, 10).path.write_bytes(b"cut")

    shown = call(end=10)

    assert f"retrain: steps 0 to 10 of run {run.name}, from the initial weights\n" in capsys.readouterr().err
    assert shown == [
        "Steps 0 to 10 have the recorded bits. Not shown: the weights.",
        f"stored: {path_of(run, 10)}",
    ]
    after = dict(named_tensors(load_checkpoint(Checkpoint(run, 10))))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not [path for path in run.glob(".*") if path.is_dir()], "no temporary folder is left"


def test_its_weights_are_written(run, capsys):
    """From the nearest checkpoint."""
    remove(Checkpoint(run, 15))

    shown = call(end=15, weights=Path("data/early"))

    assert f"steps 10 to 15 of run {run.name}, from the checkpoint {path_of(run, 10)}\n" in capsys.readouterr().err
    assert shown[-1] == "data/early: has the weights of step 15"
    found, record = load_trained(Path("data/early"), torch.device("cpu"))
    checkpoint = load_checkpoint(Checkpoint(run, 15))
    assert all(torch.equal(weight, checkpoint["model"][name]) for name, weight in found.state_dict().items())
    row = read_curve(CURVE)[15]
    described = {"step": 15, "tokens_seen": int(row["tokens"]), "val_loss": pytest.approx(float(row["val_loss"]))}
    assert record["best"] == described | {"sha256": sha256_file(Path("data/early/best_model_params.pt"))}
    assert not {"training", "last"} & record.keys()


# The weights in data/models.


def test_a_short_run_is_trained_whole_and_shows_its_weights(run):
    before = files_below(Path())

    assert call() == ["The weights in data/models are those that this code makes."]

    assert files_below(Path()) == before


@pytest.mark.parametrize("file", [BEST, LAST])
def test_one_bit_of_the_weights_is_found_by_training_the_whole_run(run, file):
    torch.save(with_first(flip_last_bit)(torch.load(file, weights_only=True)), file)

    with pytest.raises(IntegrityError, match=rf"^{file}: has other tensors than this code makes; run `dvc"):
        call()


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
    sentence, _ = call(end=20)

    shown = "From the stored checkpoint of step 15 this code makes the weights in data/models."
    assert sentence == f"{shown} Not shown: that checkpoint."


ALL_SHOWN = "The weights in data/models are those that this code makes"
CONCLUSIONS = {
    "whole": (Steps(0, 20), ["best", "last"], None, f"{ALL_SHOWN}."),
    "of other weights": (Steps(0, 20), ["best", "last"], "ab", f"{ALL_SHOWN} of the recorded initial weights."),
    "to the best": (
        Steps(0, 15),
        ["best"],
        None,
        "The best weights in data/models are those that this code makes. Not shown: the last weights.",
    ),
    "from a checkpoint": (
        Steps(10, 20),
        ["last"],
        None,
        "From the stored checkpoint of step 10 this code makes the last weights in data/models. "
        "Not shown: the best weights, that checkpoint.",
    ),
    "neither": (Steps(5, 10), [], None, "Steps 5 to 10 have the recorded bits. Not shown: the weights."),
}


@pytest.mark.parametrize("case", CONCLUSIONS)
def test_what_was_shown_and_what_not_is_said(case):
    steps, shown, init_sha256, said = CONCLUSIONS[case]

    assert tool.conclusion(steps, shown, {"init_sha256": init_sha256}) == said


def test_best_weights_count_only_if_the_steps_made_them(run):
    """Those of a state that was trained from a checkpoint may be older."""
    model = read_json(MODEL) | {"best": {"step": 10}, "last": {"step": 99}}
    state = load_checkpoint(list_checkpoints(run)[-1])

    assert tool.compare_model(state, model, Steps(10, 15)) == []


def test_fast_numerics_on_another_machine_are_not_compared(run):
    model = read_json(MODEL)
    write_json(MODEL, model | {"segments": [model["segments"][0] | {"threads": 99}]})

    assert call(end=15) == [tool.NOT_COMPARABLE]


def other_order(weights):
    return dict(reversed(weights.items()))


def with_first(change):
    """Return the edit of the first tensor."""

    def edit(weights):
        name, tensor = next(iter(weights.items()))
        return weights | {name: change(tensor)}

    return edit


def flip_last_bit(tensor):
    changed = tensor.clone()
    changed.view(torch.int32).view(-1)[-1] ^= 1
    return changed


@pytest.mark.parametrize(
    "edit",
    [other_order, with_first(flip_last_bit)],
    ids=["order", "a bit"],
)
def test_tensors_that_differ_from_the_file_are_found(run, edit):
    weights = torch.load(BEST, weights_only=True)
    model = read_json(MODEL)
    made = (model["best"]["step"], model["best"]["val_loss"])
    compare_weights("best", model, made, weights, BEST)

    with pytest.raises(IntegrityError, match=rf"^{BEST}: .*; run `dvc repro --force --single-item train"):
        compare_weights("best", model, made, edit(weights), BEST)
    with pytest.raises(IntegrityError, match=rf"^{MODEL}: best is "):
        compare_weights("best", model, (made[0], made[1] + 1e-9), weights, BEST)


# Other bits.


def test_a_weight_changed_by_one_bit_is_found(run, monkeypatch):
    honest = read_curve(CURVE)
    update = train_stage.step.update_weights

    def update_with_another_bit(state, lr):
        update(state, lr)
        if state.step == 9:
            weight = next(state.model.parameters()).detach()
            weight.view(-1).view(torch.int32)[17] ^= 1 << 12  # the last bit may be lost in the next update

    with monkeypatch.context() as patch:
        patch.setattr(train_stage.step, "update_weights", update_with_another_bit)
        train_with_paths_of_pipeline()
    altered = read_curve(CURVE)
    assert altered[5] == honest[5]

    pattern = (
        rf"plots/validation\.csv: step 10 has tokens .* {altered[10][DIGEST]}; "
        rf"retrained from step 8: .* {honest[10][DIGEST]}"
    )
    remove(Checkpoint(run, 10))
    with pytest.raises(IntegrityError, match=pattern):
        call(end=10)
    assert not Checkpoint(run, 10).path.exists(), "nothing is stored"


ADVICE = r"; delete it and checkpoint-000000010\.json, and run the command again$"


def test_a_damaged_checkpoint_is_no_beginning(run):
    damaged = Checkpoint(run, 10)
    damaged.path.write_bytes(damaged.path.read_bytes()[:-1])

    with pytest.raises(IntegrityError, match=rf"checkpoint-000000010\.pt: sha256 is .*{ADVICE}"):
        call(end=15)


@pytest.mark.parametrize("end", [15, 10])
def test_a_stored_checkpoint_with_another_digest_is_found(run, end):
    """At the beginning of the steps, and at their end."""
    digest = replace_by_another(Checkpoint(run, 10))

    pattern = rf"000000010\.pt: its digest is {digest}, plots/validation\.csv records .* at step 10{ADVICE}"
    with pytest.raises(IntegrityError, match=pattern):
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
    digest = read_curve(CURVE)[20][DIGEST]
    change_params(Path(), {"train.seed": 2})
    with pytest.raises(IntegrityError, match=rf"^{MODEL}: was made by run"):
        call(end=10)

    # Every validation must have a digest.
    CURVE.write_text(CURVE.read_text().replace(digest, ""))
    with pytest.raises(IntegrityError, match=r"^plots/validation\.csv: missing, or without digests of checkpoints"):
        call(end=10)


# Which steps.

VALIDATIONS = [0, 5, 10, 15, 20]


@pytest.mark.parametrize(
    ("stored", "end", "chosen"),
    [
        ([], 5, Steps(0, 5)),
        ([7, 10], 10, Steps(7, 10)),
        ([5, 10], 20, Steps(10, 20)),
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

"""`python src checkpoint`: a checkpoint of which only the digest was kept comes back with the same bits."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.core.files import read_json, sha256_file, write_json
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint
from lm.train.state import digest_of, named_tensors
from support.refusal import files_below
from support.train_cases import make_finished_run
from tools import checkpoint
from tools.common.paths import TRAIN
from tools.common.retrain import CURVE, read_curve

MODEL = Path("data/models/model.json")
KEPT = Path("data/models/kept_weights")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of 20 steps with validations at 5, 10, 15 and 20, which kept the weights of step 15."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DVC_ROOT", raising=False)
        return make_finished_run(tmp_path_factory.mktemp("checkpoint"), kept_step=15)


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """The folder of the run, in a copy of the workspace."""
    shutil.copytree(made.folder, tmp_path / "workspace", symlinks=True)
    monkeypatch.chdir(tmp_path / "workspace")
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (run,) = Path(".runs").glob("[!.]*")
    return run


def tensors(found: Checkpoint) -> dict[str, torch.Tensor]:
    return dict(named_tensors(load_checkpoint(found)))


def remove(found: Checkpoint):
    found.path.unlink()
    found.record.unlink()


def fails(capfd, *argv) -> str:
    """Run the command, which must fail; return its last line."""
    capfd.readouterr()
    assert checkpoint.main(list(argv)) != 0
    return capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("nearest", [0, 5])
def test_a_removed_checkpoint_comes_back_with_every_bit(run, capsys, nearest):
    before = tensors(Checkpoint(run, 10))
    for stored in list_checkpoints(run):
        if stored.step != nearest:
            remove(stored)
    assert checkpoint.main(["10"]) == 0
    origin = f"{run}/checkpoint-000000005.pt" if nearest else "the initial weights"
    first, _, last = capsys.readouterr().out.splitlines()
    digest = read_curve(CURVE)[10]["checkpoint_digest"]
    assert first == f"training {10 - nearest} steps from {origin}"
    assert last == f"{run}/checkpoint-000000010.pt: has the digest {digest} of plots/validation.csv"
    after = tensors(Checkpoint(run, 10))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in run.glob(".*")) == [], "no temporary folder is left"


def test_its_weights_are_those_that_the_run_kept(run):
    """Also if the run went on elsewhere, which its model.json records."""
    model = read_json(MODEL)
    write_json(MODEL, model | {"segments": [*model["segments"], model["segments"][0] | {"first_step": 16}]})
    remove(Checkpoint(run, 15))
    assert checkpoint.main(["15", "data/early"]) == 0
    (kept,) = KEPT.iterdir()
    assert sha256_file("data/early/best_model_params.pt") == sha256_file(kept / "best_model_params.pt")
    assert read_json("data/early/model.json") == read_json(kept / "model.json")


def test_a_stored_checkpoint_is_not_trained_again(run, capsys):
    assert checkpoint.main(["10"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{run}/checkpoint-000000010.pt: has the digest ")


def test_a_wrong_step_names_those_that_can_be_rebuilt(run, capfd):
    for step in ("0", "7"):
        line = fails(capfd, step)
        assert line == f"error: step is {step}; it must be the step of a validation: 5, 10, 15, 20"


def test_an_existing_folder_is_not_replaced(run, capfd):
    assert fails(capfd, "10", "data/models") == "error: data/models: exists; name a new folder"


def test_a_checkpoint_with_another_digest_is_not_used(run, capfd):
    stored = Checkpoint(run, 10)
    state = torch.load(stored.path, weights_only=True)
    next(iter(state["model"].values())).view(-1)[0] += 1
    torch.save(state, stored.path)
    line = fails(capfd, "10")
    assert "checkpoint-000000010.pt: sha256 is " in line
    assert line.endswith("; delete it and checkpoint-000000010.json, and run `python src checkpoint 10`")
    write_json(stored.record, read_json(stored.record) | {"sha256": sha256_file(stored.path)})
    found = digest_of(named_tensors(state))
    assert f"its digest is {found}, plots/validation.csv records" in fails(capfd, "10", "data/early")
    assert not Path("data/early").exists()


def test_a_run_that_trains_other_bits_is_found(run, capfd):
    """The nearest checkpoint is another one than that of the run, with a SHA-256 that fits."""
    remove(Checkpoint(run, 10))
    start = [stored for stored in list_checkpoints(run) if stored.step < 10][-1]
    state = torch.load(start.path, weights_only=True)
    next(iter(state["model"].values())).view(-1)[0] += 1
    torch.save(state, start.path)
    write_json(start.record, read_json(start.record) | {"sha256": sha256_file(start.path)})
    assert "checkpoint-000000010.pt: its digest is " in fails(capfd, "10")


def test_a_stage_that_fails_gives_its_exit_status_and_changes_nothing(run, capfd):
    remove(Checkpoint(run, 10))
    before = files_below(run)
    os.truncate(TRAIN, 100)
    assert checkpoint.main(["10"]) == IntegrityError.exit_code
    *_, stage, command = capfd.readouterr().err.splitlines()
    assert "train.bin" in stage and command == "error: src/train.py failed; its message is above"
    assert files_below(run) == before


def test_the_workspace_must_describe_the_run(run, capfd):
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("seed: 1", "seed: 2"))
    assert fails(capfd, "10").startswith("error: data/models/model.json: seed is 1, params.yaml has 2")


def test_every_validation_must_have_a_digest(run, capfd):
    digest = read_curve(CURVE)[20]["checkpoint_digest"]
    CURVE.write_text(CURVE.read_text().replace(digest, ""))
    line = fails(capfd, "10")
    assert line.startswith("error: plots/validation.csv: missing, or without digests of checkpoints")

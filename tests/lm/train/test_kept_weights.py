"""train.keep_weights_at: the weights of chosen steps, which neither a kill nor another number of ranks changes."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.weights import load_trained
from support.train_cases import clear, die_at, fresh_training, make_training, only_run, results, run_stage, stop_after

KEPT = [Path(f"data/models/kept_weights/step-{step:09d}") for step in (0, 3, 5)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("template") / "ws")
    workspace.change(**{"train.schedule": "wsd", "train.decay_fraction": 0.5})
    workspace.change(**{"train.keep_weights_at": [0, 512 * 3 + 100, 512 * 5], "train.max_tokens": 512 * 8})
    return workspace


@pytest.fixture
def workspace(template):
    with fresh_training(template):
        yield template


def run(*sabotage, code=0):
    ended = run_stage(*sabotage)
    assert ended.code == code, ended.err
    return ended


def kept():
    return {str(path): path.read_bytes() for path in sorted(Path("data/models/kept_weights").rglob("*.*"))}


def test_the_weights_of_chosen_steps_are_kept_beside_the_model(workspace):
    run()
    with_kept = results()
    record = json.loads(Path("data/models/model.json").read_text())
    assert list(record["kept_weights"]) == [path.name for path in KEPT]
    for path, tokens in zip(KEPT, (0, 512 * 3, 512 * 5), strict=True):
        own = load_trained(path, CPU)[1]
        assert own["best"]["sha256"] == record["kept_weights"][path.name] and own["best"]["tokens_seen"] == tokens
    assert len(set(record["kept_weights"].values())) == 3
    # They change nothing of the run.
    clear()
    workspace.change(**{"train.keep_weights_at": []})
    run()
    without = results()
    assert without.keys() == with_kept.keys() and not Path("data/models/kept_weights").exists()
    assert {n for n in without if without[n] != with_kept[n]} == {"data/models/model.json"}


@pytest.mark.parametrize(
    "sabotage", [("torch.save", 2, "during"), ("lm.train.outputs.save_weights", 2, "after"), ("step", 4)]
)
def test_a_killed_run_keeps_the_same_weights(workspace, sabotage):
    run()
    expected = kept() | results()
    clear()
    if sabotage[0] == "step":
        stop_after(4)
    else:
        run(die_at, *sabotage, code=-signal.SIGKILL)
    run()
    assert kept() | results() == expected


def test_a_longer_run_keeps_the_same_weights(workspace):
    workspace.change(**{"train.max_tokens": 512 * 14})
    run()
    expected = kept()
    clear()
    workspace.change(**{"train.max_tokens": 512 * 8})
    run()
    workspace.change(**{"train.max_tokens": 512 * 14})
    assert "which has the same steps up to step 4" in run().out
    assert kept() == expected


def test_weights_of_another_step_are_refused(workspace):
    run()
    first, second = KEPT[1:]
    shutil.copyfile(second / "best_model_params.pt", first / "best_model_params.pt")
    with pytest.raises(IntegrityError, match=r"step-000000003/best_model_params\.pt: sha256 is .* its record says"):
        load_trained(first, CPU)
    shutil.copyfile(second / "model.json", first / "model.json")
    with pytest.raises(IntegrityError, match=r"step-000000003/model\.json: is of step 5, not that of its folder"):
        load_trained(first, CPU)


def test_a_run_that_lost_weights_does_not_finish(workspace):
    stop_after(4)
    shutil.rmtree(only_run() / "kept_weights" / KEPT[1].name)
    assert "step-000000003/model.json: missing; delete" in run(code=4).sentence

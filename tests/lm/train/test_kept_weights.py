"""train.keep_weights_at: the weights of chosen steps, which neither a kill nor another number of ranks changes."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.weights import load_trained
from support.train_cases import (
    Ended,
    clear,
    die_at,
    fresh_training,
    make_training,
    only_run,
    results,
    run_stage,
    stop_after,
)

KEPT_WEIGHTS = Path("data/models/kept_weights")
STEP_0 = KEPT_WEIGHTS / "step-000000000"
STEP_3 = KEPT_WEIGHTS / "step-000000003"
STEP_5 = KEPT_WEIGHTS / "step-000000005"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("template") / "ws")
    settings = {
        "train.schedule": "wsd",
        "train.decay_fraction": 0.5,
        "train.max_tokens": 512 * 8,
        "train.keep_weights_at": [0, 512 * 3 + 100, 512 * 5],  # steps 0, 3 and 5
    }
    workspace.change(**settings)
    return workspace


@pytest.fixture
def workspace(template):
    with fresh_training(template):
        yield template


def run(*sabotage, code: int = 0) -> Ended:
    """Run the stage to its end, which must have this exit code."""
    ended = run_stage(*sabotage)
    assert ended.code == code, ended.err
    return ended


def kept_files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(KEPT_WEIGHTS.rglob("*.*"))}


def test_the_weights_of_chosen_steps_are_kept_beside_the_model(workspace):
    run()

    kept = json.loads(Path("data/models/model.json").read_text())["kept_weights"]
    assert list(kept) == [STEP_0.name, STEP_3.name, STEP_5.name]
    assert len(set(kept.values())) == 3, "the weights of each step differ"
    for path, tokens_seen in ((STEP_0, 0), (STEP_3, 512 * 3), (STEP_5, 512 * 5)):
        _, record = load_trained(path, CPU)
        assert record["best"]["sha256"] == kept[path.name]
        assert record["best"]["tokens_seen"] == tokens_seen


def test_to_keep_weights_changes_nothing_else_of_a_run(workspace):
    run()
    with_kept = results()
    clear()
    workspace.change(**{"train.keep_weights_at": []})

    run()

    without_kept = results()
    assert not KEPT_WEIGHTS.exists()
    different = [name for name in with_kept if with_kept[name] != without_kept[name]]
    assert different == ["data/models/model.json"]


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(lambda: run(die_at, "torch.save", 2, "during", code=-signal.SIGKILL), id="as it saves"),
        pytest.param(
            lambda: run(die_at, "lm.train.outputs.save_weights", 2, "after", code=-signal.SIGKILL),
            id="when weights are kept",
        ),
        pytest.param(lambda: stop_after(4), id="between two steps that are kept"),
    ],
)
def test_a_killed_run_keeps_the_same_weights(workspace, kill):
    run()
    expected = kept_files() | results()
    clear()

    kill()
    run()

    assert kept_files() | results() == expected


def test_a_longer_run_keeps_the_same_weights(workspace):
    workspace.change(**{"train.max_tokens": 512 * 14})
    run()
    expected = kept_files()
    clear()
    workspace.change(**{"train.max_tokens": 512 * 8})
    run()

    workspace.change(**{"train.max_tokens": 512 * 14})
    extended = run()

    assert "which has the same steps up to step 4" in extended.out
    assert kept_files() == expected


def test_weights_of_another_step_are_refused(workspace):
    run()
    shutil.copyfile(STEP_5 / "best_model_params.pt", STEP_3 / "best_model_params.pt")

    with pytest.raises(IntegrityError, match=r"step-000000003/best_model_params\.pt: sha256 is .* its record says"):
        load_trained(STEP_3, CPU)


def test_weights_and_record_of_another_step_are_refused(workspace):
    run()
    shutil.copyfile(STEP_5 / "best_model_params.pt", STEP_3 / "best_model_params.pt")
    shutil.copyfile(STEP_5 / "model.json", STEP_3 / "model.json")

    with pytest.raises(IntegrityError, match=r"step-000000003/model\.json: is of step 5, not that of its folder"):
        load_trained(STEP_3, CPU)


def test_a_run_that_lost_weights_does_not_finish(workspace):
    stop_after(4)
    shutil.rmtree(only_run() / "kept_weights" / STEP_3.name)

    ended = run(code=4)

    assert "step-000000003/model.json: missing; delete" in ended.sentence

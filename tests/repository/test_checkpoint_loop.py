"""The loop of docs/experiments.md#checkpoints: each checkpoint is evaluated, and exported with its own results."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.files import read_json
from support import ROOT
from support.workspace import Workspace
from tools.export_hf import cli as export_hf

pytestmark = pytest.mark.slow
STEP_10 = Path("checkpoints/10")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, finished) -> Workspace:
    """The finished run, after the loop over its two validations; the last one selected the best weights."""
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    begin = page.index("for step in 180 360 540 720; do")
    loop = page[begin : page.index("```", begin)].replace("180 360 540 720", "10 20")
    workspace = Workspace(tmp_path_factory.mktemp("checkpoints") / "repository", finished)
    shown = workspace.run("bash", "-euo", "pipefail", "-c", loop).stdout
    assert "checkpoints/10/eval.json" in shown
    return workspace


@pytest.fixture
def workspace(evaluated, monkeypatch) -> Workspace:
    """The working directory."""
    monkeypatch.chdir(evaluated.folder)
    return evaluated


def test_the_best_weights_have_the_losses_of_the_stage_and_earlier_ones_higher_ones(workspace):
    name = "evaluation/document_losses.parquet"
    assert read_json("data/models/model.json")["best"]["step"] == 20

    assert pq.read_table(f"checkpoints/20/{name}") == pq.read_table(f"data/{name}")
    early = read_json("checkpoints/10/eval.json")["bits_per_byte"]
    assert early > read_json("metrics/eval.json")["bits_per_byte"]


def test_a_checkpoint_is_exported_with_its_evaluation(workspace):
    status = export_hf.main(["exported", "--models", str(STEP_10), "--evaluation", str(STEP_10 / "evaluation")])

    assert status == 0
    assert read_json("exported/model.json")["best"]["step"] == 10
    card = Path("exported/README.md").read_text()
    assert "python src verify --retrain 10 --weights early" in card
    assert "sha256sum early/best_model_params.pt" in card

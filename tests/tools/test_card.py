"""The model card of `python src export_hf`: what the records hold, and nothing else."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from support.export_cases import (
    EVALUATION,
    MANIFEST,
    PARAMS,
    SOURCE,
    SOURCES,
    call,
    write_export,
    write_run,
)
from support.git import git
from support.model_cases import SHAPE
from support.refusal import refused
from support.stages import change_params
from tools.export_hf.card import model_card


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> SimpleNamespace:
    """A run and its export, which tests copy before they change it."""
    return write_export(tmp_path_factory.mktemp("exported"))


def card_with(exported, evaluation=EVALUATION, manifest=MANIFEST, license_id=None, **record) -> str:
    """Return the card of changed records and without those that may be missing; `record` changes model.json."""
    params = {"model.name": "micro", "data.source": SOURCE, "train": PARAMS["train"]}
    figures = {"evaluation": evaluation, "audit": {}, "manifest": manifest, "train": {}, "validation": {}}
    return model_card(exported.record | record, params, figures, exported.tokenizer.eot_id, license_id)


def test_the_hub_reads_the_head_of_the_card(exported):
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported.path / "README.md").data

    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-generation"
    assert data.license is None
    assert data.model_name == f"micro-{SOURCE}"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("bits_per_byte", 1.2346)
    assert (result.dataset_name, result.dataset_split) == (SOURCE, "validation")


def test_the_card_has_the_score_the_data_and_the_parameters_of_the_records(exported):
    card = (exported.path / "README.md").read_text()

    # The score and the data.
    assert "**1.2346 bits per byte**" in card
    assert "95 % interval over documents: 1.1111 to 1.4444" in card
    assert "windows of 32 tokens that move by 16" in card
    assert "train: 9 documents, 12,345 UTF-8 bytes, 5,000 tokens" in card
    assert f"`{SOURCE}`: torch==2.13.0" in card
    assert "8.1 % are in sequences of 13 tokens" in card

    # How to make it again.
    assert "`sha256sum data/models/best_model_params.pt`" in card
    assert f"must print `{exported.record['best']['sha256']}`" in card
    (text,) = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)
    params = yaml.safe_load(text)
    assert params["models.micro"] == SHAPE
    assert params["train"]["seq_len"] == 32
    assert params["data.source"] == SOURCE
    assert params[f"sources.{SOURCE}"] == SOURCES["sources"][SOURCE]


def test_the_origin_of_the_text_is_not_a_path(exported):
    commit = "c" * 40
    sources = {
        "web": {"kind": "hub", "repo": "o/n", "commit": commit},
        "own": {"kind": "local", "path": "/home/me/diary"},
        "made": {"kind": "stories", "licence": "MIT"},
    }
    manifest = {"source": "mixture", "kind": "mixture", "sources": sources}

    card = card_with(exported, manifest=manifest, license_id="mit")

    lines = card.splitlines()
    assert f"- `web`: o/n, commit {commit}" in lines
    assert "- `own`: of kind local" in lines
    assert "- `made`: of kind stories, licence MIT" in lines
    assert "diary" not in card
    head = yaml.safe_load(card.split("---")[1])
    assert head["datasets"] == ["o/n"]
    assert head["license"] == "mit"


def test_only_exact_numerics_promise_bytes_on_any_processor(exported):
    exact = {"from_step": 0, "numerics": "exact"}
    fast = {"from_step": 9, "numerics": "fast", "device": "cpu"}

    assert "on any processor, for any number of threads" in card_with(exported, segments=[exact])
    assert "on the same device with the same versions" in card_with(exported, segments=[exact, fast])


# The commit.


@pytest.fixture
def committed(tmp_path, monkeypatch) -> SimpleNamespace:
    """A run in a Git repository whose metrics are those of the model, as the working directory."""
    run = write_run(tmp_path)
    write_json(tmp_path / "metrics" / "train.json", {"val_loss": run.record["best"]["val_loss"]})
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "the run")
    run.head = git("rev-parse", "HEAD")
    return run


def card_of(run) -> str:
    assert call("export") == 0
    return (run.folder / "export" / "README.md").read_text()


def test_the_card_names_the_commit_and_the_digest(committed):
    card = card_of(committed)

    assert f"git checkout {committed.head}\n" in card
    assert f"must print `{committed.record['best']['sha256']}`" in card


def add_code() -> None:
    Path("src/new.py").write_text("# x\n")


def commit_other_metrics() -> None:
    write_json("metrics/train.json", {"val_loss": 9.0})
    git("commit", "-qam", "other metrics")


@pytest.mark.parametrize("change", [add_code, commit_other_metrics])
def test_a_commit_of_other_files_is_not_named(committed, change):
    change()

    assert "git checkout" not in card_of(committed)


# Records of another run.


def edit_json(name: str, **values):
    """Return an edit of entries of a JSON file of a run."""
    return lambda run: write_json(run / name, read_json(run / name) | values)


def edit_parameter(name: str, value):
    """Return an edit of a parameter of a run."""
    return lambda run: change_params(run, {name: value})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (edit_parameter("train.peak_lr", 0.5), "train.peak_lr is 0.5, "),
        (edit_parameter("models.micro.d_ff", 65), "models.micro.d_ff is 65, the model was trained with 64"),
        (edit_json("data/evaluation/details.json", weights_sha256="0" * 12), "is about the model 000000000000"),
        (edit_json("data/processed_datasets/validation.json", sha256="0"), "describes other tokens than those"),
        (edit_json("data/models/model.json", tokenizer_sha256="0"), "trained with tokenizer 0…"),
    ],
)
def test_records_of_another_run_are_refused(exported, tmp_path, monkeypatch, capsys, edit, said):
    run = shutil.copytree(exported.folder, tmp_path / "run")
    params = {"params.yaml": {"train": read_yaml(run / "params.yaml")["train"]}}
    (run / "dvc.lock").write_text(yaml.safe_dump({"stages": {"train": {"params": params}}}))
    edit(run)
    monkeypatch.chdir(run)

    status = call(tmp_path / "new")

    refused(status, capsys.readouterr().err, 4, said)
    assert not (tmp_path / "new").exists()

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
    PARAMS,
    SOURCE,
    SOURCES,
    call,
    write_run,
)
from support.git import git
from support.model_cases import SHAPE
from support.refusal import refused
from support.stages import change_params
from tools.export_hf.card import model_card


def card_with(exported, manifest: dict, license_id: str, **record) -> str:
    """Return the card of another text, and without records that may be missing; `record` changes model.json."""
    params = {"model.name": "micro", "data.source": SOURCE, "train": PARAMS["train"]}
    figures = {"evaluation": EVALUATION, "audit": {}, "manifest": manifest, "train": {}, "validation": {}}
    return model_card(exported.record | record, params, figures, exported.tokenizer.eot_id, license_id)


def test_the_hub_reads_the_head_of_the_card(exported):
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported.path / "README.md").data

    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("bits_per_byte", 1.2346)
    assert (result.dataset_name, result.dataset_split) == (SOURCE, "validation")


def page_of(card: str) -> str:
    """Return a card without its hashes and its parameters."""
    without_parameters = re.sub(r"```yaml\n.*?```", "```yaml\n#\n```", card, flags=re.DOTALL)
    return re.sub("[0-9a-f]{12,}", "#", without_parameters)


def test_the_card_has_the_score_the_data_and_the_parameters_of_the_records(exported, check_page):
    card = (exported.path / "README.md").read_text()

    check_page("card/run.md", page_of(card))
    (text,) = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)
    params = yaml.safe_load(text)
    assert params["models.micro"] == SHAPE
    assert params["train"]["seq_len"] == 32
    assert params[f"sources.{SOURCE}"] == SOURCES["sources"][SOURCE]


def test_the_card_of_a_mixture_names_origins_but_no_path_and_of_exact_numerics_any_processor(exported, check_page):
    sources = {
        "web": {"kind": "hub", "repo": "o/n", "commit": "c" * 7},
        "own": {"kind": "local", "path": "/home/me/diary"},
        "made": {"kind": "stories", "licence": "MIT"},
    }
    manifest = {"source": "mixture", "kind": "mixture", "sources": sources}

    exact = {"from_step": 0, "numerics": "exact"}
    card = card_with(exported, manifest, license_id="mit", segments=[exact])
    of_both = card_with(exported, manifest, license_id="mit", segments=[exact, {"from_step": 9, "numerics": "fast"}])

    check_page("card/mixture.md", page_of(card))
    assert "on the same device with the same versions" in of_both


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
    Path("src/new.py").touch()


def commit_other_metrics() -> None:
    write_json("metrics/train.json", {"val_loss": 9.0})
    git("commit", "-qam", "other metrics")


@pytest.mark.parametrize("change", [add_code, commit_other_metrics])
def test_a_commit_of_other_files_is_not_named(committed, change):
    change()

    assert "git checkout" not in card_of(committed)


# Records of another run.


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("params.yaml", {"train.peak_lr": 0.5}, "train.peak_lr is 0.5, "),
        ("presets.yaml", {"models.micro.d_ff": 65}, "models.micro.d_ff is 65, the model was trained with 64"),
        ("data/evaluation/details.json", {"weights_sha256": "0"}, "is about the model 0,"),
        ("data/processed_datasets/validation.json", {"sha256": "0"}, "describes other tokens than those"),
        ("data/models/model.json", {"tokenizer_sha256": "0"}, "trained with tokenizer 0…"),
    ],
)
def test_records_of_another_run_are_refused(exported, tmp_path, monkeypatch, capsys, file, values, said):
    run = shutil.copytree(exported.folder, tmp_path / "run")
    params = {"params.yaml": {"train": read_yaml(run / "params.yaml")["train"]}}
    (run / "dvc.lock").write_text(yaml.safe_dump({"stages": {"train": {"params": params}}}))
    if file.endswith(".yaml"):
        change_params(run, values)
    else:
        write_json(run / file, read_json(run / file) | values)
    monkeypatch.chdir(run)

    status = call(tmp_path / "new")

    refused(status, capsys.readouterr().err, 4, said)
    assert not (tmp_path / "new").exists()

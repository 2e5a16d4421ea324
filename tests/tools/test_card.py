"""The model card of `python src export_hf`: what the records hold, and nothing else."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from lm.core.files import write_json
from lm.core.params import read_yaml
from support.export_cases import EVALUATION, MANIFEST, PARAMS, SOURCES, call, write_export, write_run
from support.model_cases import SHAPE
from tools.export_hf.card import model_card, public_url

SOURCE = PARAMS["data"]["source"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return write_export(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def card(exported) -> str:
    return (exported.path / "README.md").read_text()


def rows_of(card: str) -> list[list[str]]:
    """Return the cells of all tables."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in card.splitlines() if line.startswith("|")]


def render(exported, evaluation=EVALUATION, manifest=MANIFEST, license_id=None, **record) -> str:
    """Return a card with changed records and without those that may be missing."""
    params = {"model.name": "micro", "data.source": SOURCE, "train": PARAMS["train"]}
    figures = {"evaluation": evaluation, "audit": {}, "manifest": manifest, "train": {}, "validation": {}}
    return model_card(exported.record | record, params, figures, exported.tokenizer.eot_id, license_id)


def test_the_hub_reads_the_head_of_the_card(exported):
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported.path / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "text-generation", None)
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("bits_per_byte", 1.2346, "validation")
    assert (data.model_name, result.dataset_name) == (f"micro-{SOURCE}", SOURCE)


def test_the_card_has_the_loss_with_its_error_and_interval(card):
    assert "**1.2346 ± 0.0432 bits per byte** on the validation text" in card
    assert "(95 % interval: 1.1111 to 1.4444)." in card
    for row in (["whole validation text", "7", "1.2346", "0.0432"],
                ["documents that share little with the training text", "6", "1.2500", ""]):  # fmt: skip
        assert row in rows_of(card)
    assert "windows of 32 tokens that move by 16" in card and "up to 67 tokens in 9 samples" in card


def test_a_run_without_samples_names_none(exported):
    none = {"samples": 0, "longest_copy_tokens": None}

    card = render(exported, EVALUATION | {"samples": none})

    assert "copied from the training text. Do not use it" in " ".join(card.split()) and "None" not in card


def test_the_card_has_data_training_and_hashes(exported, card):
    assert "- train: 9 documents, 12,345 UTF-8 bytes, 5,000 tokens\n" in card
    assert "after step 10 of 20," in card and "over the training text 0.50 times" in card
    for row in (["`data/processed_datasets/train.bin`", "a" * 64],
                ["`data/processed_datasets/validation.bin`", "b" * 64],
                ["`text of the training split`", "ab" * 32],
                ["`data/tokenizer/meta.json`", exported.tokenizer.sha256],
                ["`data/models/best_model_params.pt`", exported.record["best"]["sha256"]]):  # fmt: skip
        assert row in rows_of(card)
    assert f"- `{SOURCE}`: torch==2.13.0\n" in card and "8.1 % are in sequences of 13 tokens" in card
    assert "longest" not in card
    params = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card, re.DOTALL)[1])
    assert params["models.micro"] == SHAPE and params["train"]["seq_len"] == 32
    assert params["data.source"] == SOURCE and params[f"sources.{SOURCE}"] == SOURCES["sources"][SOURCE]


def test_a_card_has_sources_and_documents(exported):
    sources = {"stories": {"documents": 3, "bits_per_byte": 0.5, "bits_per_byte_se": 0.01}}
    evaluation = EVALUATION | {"sources": sources}
    card = render(exported, evaluation, attend_across_documents=False)
    assert ["source `stories`", "3", "0.5000", "0.0100"] in rows_of(card)
    assert "must contain one document:\n\n```python" in card
    assert "must contain one document" not in render(exported)


def test_the_origin_of_the_text_is_no_path(exported):
    sources = {
        "web": {"kind": "hub", "repo": "o/n", "commit": "c" * 40},
        "own": {"kind": "local", "path": "/home/me/diary"},
        "made": {"kind": "stories", "licence": "MIT"},
    }
    card = render(exported, manifest={"source": "mixture", "kind": "mixture", "sources": sources}, license_id="mit")
    assert f"- `web`: o/n, commit {'c' * 40}\n- `own`: of kind local\n- `made`: of kind stories, licence MIT\n" in card
    head = yaml.safe_load(card.split("---")[1])
    assert head["datasets"] == ["o/n"] and head["license"] == "mit" and "diary" not in card


def test_only_exact_numerics_promise_bytes(exported):
    one = {"from_step": 0, "numerics": "exact"}
    other = {"from_step": 9, "numerics": "fast", "device": "cpu"}
    assert "on any processor, for any number of threads" in render(exported, segments=[one])
    card = render(exported, segments=[one, other])
    assert "on any processor" not in card and "on the same device with the same versions" in card
    assert "Computed with numerics exact; then numerics fast, device cpu." in card


def test_the_card_names_the_processors_that_were_tested(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exact = [{"from_step": 0, "numerics": "exact"}]
    assert "A test run" not in render(exported, segments=exact)
    seen = [
        {"processor": "A 1", "how": "natively", "run": "short", "weights": "ab", "threads": 1},
        {"processor": "A 1", "how": "natively", "run": "short", "weights": "ab", "threads": 2},
        {"processor": "A 1", "how": "emulated as B", "run": "short", "weights": "ab", "threads": 1},
        {"processor": "C 3", "how": "natively", "run": "short", "weights": "before", "threads": 1},
    ]
    write_json("metrics/golden_bits.json", {"seen_on": seen, "short": {"weights": {"5": "0", "10": "ab"}}})
    said = "A test run (`python src prove`) had equal bits on: A 1; A 1 emulated as B.\n"
    assert said in render(exported, segments=exact)
    assert "A test run" not in render(exported, segments=[{"from_step": 0, "numerics": "fast"}])


# The commit.


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """Make a git repository whose metrics are those of the model."""
    run = write_run(tmp_path)
    write_json(tmp_path / "metrics" / "train.json", {"val_loss": run.record["best"]["val_loss"]})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
                  ["remote", "add", "origin", "https://me:ghp_secret@example.com/o/n.git"]):  # fmt: skip
        subprocess.run(["git", *words], check=True)
    run.head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    return run


def card_of(run) -> str:
    assert call(run.folder / "export", *run.options) == 0
    return (run.folder / "export" / "README.md").read_text()


def test_the_card_names_the_commit_and_the_digest(committed):
    card = card_of(committed)
    assert f"git clone https://example.com/o/n.git reprolm && cd reprolm\ngit checkout {committed.head}\n" in card
    assert f"must print `{committed.record['best']['sha256']}`" in card and "ghp_secret" not in card


@pytest.mark.parametrize("path", ["params.yaml", "src/new.py", "metrics/train.json"])
def test_a_commit_of_other_files_is_not_named(committed, path):
    Path(path).write_text(
        '{"val_loss": 9.0}' if path.startswith("metrics") else Path("params.yaml").read_text() + "# x\n"
    )
    if path.startswith("metrics"):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "y"], check=True)
    assert "git checkout" not in card_of(committed)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://github.com/o/n", "https://github.com/o/n"),
        ("https://me:ghp_secret@github.com/o/n", "https://github.com/o/n"),
        ("https://a:b@c@github.com/o/n", None),
        ("git@github.com:o/n.git", "git@github.com:o/n.git"),
        ("/home/me/work", None),
    ],
)
def test_an_address_is_shown_without_secrets(url, shown):
    assert public_url(url) == shown


# Records of another run.


def edit_json(path: Path, edit) -> None:
    value = read_yaml(path)  # JSON is YAML too
    edit(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("file", "edit", "sentence"),
    [
        ("params.yaml", lambda p: p["train"].update(seq_len=64), "seq_len is 64, the model was trained with 32"),
        ("params.yaml", lambda p: p["train"].update(peak_lr=0.5), "train.peak_lr is 0.5, "),
        ("presets.yaml", lambda p: p["models"]["micro"].update(d_ff=65), "d_ff is 65, the model was trained with 64"),
        ("evaluation/details.json", lambda p: p.update(weights_sha256="0" * 12), "is about the model 000000000000"),
        ("processed_datasets/validation.json", lambda p: p.update(sha256="0"), "describes other tokens than those"),
        ("models/model.json", lambda r: r.update(tokenizer_sha256="0"), "trained with tokenizer 0…"),
    ],
)
def test_a_card_with_figures_of_another_run_is_refused(exported, tmp_path, capsys, file, edit, sentence):
    shutil.copytree(exported.folder, tmp_path, dirs_exist_ok=True)
    ran_with = {"params.yaml": {"train": copy.deepcopy(read_yaml(tmp_path / "params.yaml")["train"])}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": {"train": {"params": ran_with}}}))
    edit_json(tmp_path / file, edit)
    moved = [tmp_path / x.relative_to(exported.folder) if isinstance(x, Path) else x for x in exported.options]
    assert call(tmp_path / "new", *moved) == 4
    assert sentence in capsys.readouterr().err and not (tmp_path / "new").exists()

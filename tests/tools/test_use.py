"""`python src use`: recipes pass the check, train, keep comments; what is wrong writes nothing."""

import re
from pathlib import Path

import pytest

from lm.core.files import read_json
from lm.core.params import read_yaml
from support import ROOT
from support.recipe_cases import NUM_STEPS, RECIPES, apply, recipe_folder, train_small, write_own_text
from support.refusal import files_below, refused
from support.stages import COPIED, change_params
from tools import use
from tools.export_hf import cli as export_hf
from tools.record.parameters import flatten
from tools.record.problems import find_all_problems


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = recipe_folder(tmp_path / "repository")
    monkeypatch.chdir(folder)
    return folder


def state(folder: Path) -> dict:
    """Return file → name → value of the parameter files."""
    return {name: flatten(read_yaml(folder / name)) for name in COPIED}


def values_of(recipe: str) -> dict:
    """Return file → name → value of a recipe."""
    sections = read_yaml(ROOT / "recipes" / f"{recipe}.yaml")
    return {file: flatten(values) for file, values in sections.items()}


# Recipes.


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_changes_its_values_and_keeps_all_else(folder, capsys, name):
    recipe = values_of(name)
    before = state(folder)
    texts_before = {file: (folder / file).read_text() for file in COPIED}

    apply(name)

    # Every value is new, named, and valid.
    printed = capsys.readouterr().out
    after = state(folder)
    for file, values in recipe.items():
        for key, value in values.items():
            assert after[file][key] == value, key
            assert before[file].get(key, "none") != value, key
            entry = ".".join(key.split(".")[:2])
            assert f"{file}: {key}  " in printed or f"{file}: {entry}  is new" in printed, key
    assert printed.splitlines()[-2:] == ["next: dvc exp run", "undo: make back"]
    assert find_all_problems() == []

    # All other lines stay, and so do comments.
    for file, text in texts_before.items():
        text_after = (folder / file).read_text()
        replaced = [line for line in text.splitlines() if line not in text_after.splitlines()]
        changed_values = [key for key in recipe.get(file, {}) if key in before[file]]
        assert len(replaced) == len(changed_values), replaced


# One reads the default text, the other a dataset of the Hub.
FAST = ("search_cpu", "hub_dataset")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in RECIPES if name not in (*FAST, "fine_tuning")]


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_a_recipe_trains_for_a_few_steps_on_small_text(folder, name):
    apply(name)
    write_own_text(folder)

    train_small(folder)

    chosen = read_yaml("params.yaml")
    model = read_json("data/models/model.json")
    assert model["last"]["step"] == NUM_STEPS
    assert 0 < model["last"]["val_loss"] < 20
    assert model["segments"][-1]["numerics"] == chosen["train"]["numerics"]
    assert read_json("data/raw/manifest.json")["source"] == chosen["data"]["source"]
    assert 0 < read_json("metrics/eval.json")["bits_per_byte"] < 20


@pytest.mark.slow
def test_a_model_is_fine_tuned_as_its_recipe_says(folder):
    export = ["exported"]
    bring_back = ["--from", "exported", "data/start"]
    commands = [" ".join(["python src export_hf", *arguments]) for arguments in (export, bring_back)]
    assert " && ".join(commands) in "\n".join(use.read_comment(Path("recipes/fine_tuning.yaml")))
    apply("own_text")
    write_own_text(folder)
    train_small(folder)
    first = read_json("data/models/model.json")
    assert export_hf.main(export) == 0
    assert export_hf.main(bring_back) == 0

    apply("fine_tuning")
    write_own_text(folder, seed=9)
    train_small(folder)

    tuned = read_json("data/models/model.json")
    assert tuned["tokenizer_sha256"] == first["tokenizer_sha256"]
    assert tuned["init_sha256"]
    assert tuned["data_sha256"] != first["data_sha256"]


def test_the_page_of_the_recipes_has_a_row_for_each():
    rows = re.findall(r"^\| \[(\w+)\]", (ROOT / "recipes" / "README.md").read_text(), re.M)

    assert rows == RECIPES


# The command.


def test_of_two_recipes_the_second_is_on_top_own_values_stay_and_a_second_use_changes_nothing(folder, capsys):
    own = (folder / "params.yaml").read_text().replace("seed: 1 ", "seed: 7 ", 1)
    (folder / "params.yaml").write_text(own)

    assert use.main(["stack_c", "own_text"]) == 0
    first = capsys.readouterr().out
    before = files_below(folder)
    assert use.main(["stack_c", "own_text"]) == 0
    second = capsys.readouterr().out

    params = read_yaml("params.yaml")
    assert params["data"]["source"] == "local"
    assert params["model"]["name"] == "small"
    assert params["train"]["seed"] == 7
    assert "sampled_vocab_size: null " in (folder / "params.yaml").read_text()
    assert "params.yaml: data.source  torch_headers -> local\n" in first
    assert "All files already have these values." in second
    assert files_below(folder) == before


# The content of a recipe, and what the sentence about it names.
WRONG = [
    ("params.yaml:\n  train:\n    seqlen: 64\n", "params.yaml: train.seqlen is unknown"),
    ("params.yaml:\n  training:\n    seq_len: 64\n", "mine.yaml: params.yaml: training is unknown"),
    ("dvc.yaml:\n  stages: 1\n", "mine.yaml: dvc.yaml is none of the files params.yaml, "),
    ("params.yaml:\n  train:\n    seq_len: 0\n", "params.yaml: train.seq_len is 0"),
    ("params.yaml:\n  model:\n    name: huge\n", "presets.yaml: models.huge is missing"),
    (
        "params.yaml:\n  model:\n    name: mine\npresets.yaml:\n  models:\n    mine:\n      n_layer: 2\n",
        "presets.yaml: models.mine.max_seq_len is missing",
    ),
]


def test_a_wrong_recipe_is_one_sentence_and_writes_nothing(folder, capsys):
    for content, said in WRONG:
        (folder / "recipes" / "mine.yaml").write_text(content)
        before = files_below(folder)

        status = use.main(["own_text", "mine"])

        refused(status, capsys.readouterr().err, 2, said)
        assert files_below(folder) == before


def test_an_unknown_name_and_a_wrong_file_are_one_sentence_and_write_nothing(folder, capsys):
    before = files_below(folder)
    for name in ("tinystory_gpt2", "../recipes/own_text"):
        refused(use.main(["fast_cpu", name]), capsys.readouterr().err, 2, f"no recipe {name!r}; the nearest is ")
    assert files_below(folder) == before

    change_params(folder, {"train.peak_lr": -1})
    before = files_below(folder)
    refused(use.main(["own_text"]), capsys.readouterr().err, 2, "train.peak_lr is -1.0")
    assert files_below(folder) == before

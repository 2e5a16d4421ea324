"""The recipes of benchmarks/speedrun.yaml end with that of params.yaml, and a run finds its place among them."""

import json

import pytest
import yaml

import speedrun
from support import ROOT


def test_the_last_recipe_is_that_of_the_parameters():
    files = [yaml.safe_load((ROOT / name).read_text()) for name in ("params.yaml", "presets.yaml")]
    values = speedrun.read_recipes()[-1].values
    for name, value in values.items():
        section = next(file for file in files if name.split(".")[0] in file)
        for part in name.split("."):
            section = section[part]
        if name not in ("train.numerics", "train.dtype"):  # fast numerics, in bfloat16
            assert section == value, name
    assert values["train.numerics"] == "fast" and values["train.dtype"] == "bfloat16"


def test_every_recipe_changes_something_and_says_so():
    rows = yaml.safe_load(speedrun.RECIPES.read_text())
    assert len({row["name"] for row in rows}) == len(rows) and all(row["changes"] for row in rows)
    for before, after in zip(speedrun.read_recipes(), speedrun.read_recipes()[1:], strict=False):
        assert before.values != after.values and before.values.keys() == after.values.keys()


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    rows = [{"recipe": name, "bits_per_byte": {"median": loss}} for name, loss in (("first", 1.5), ("second", 1.2))]
    result = {"processor": "Some (model 1)", "budget_s": 60, "rows": rows}
    (tmp_path / "speedrun_some.json").write_text(json.dumps(result))
    monkeypatch.setattr(speedrun, "result_file", lambda: tmp_path / "speedrun_some.json")
    return tmp_path


@pytest.mark.parametrize(("loss", "place"), [(1.1, 1), (1.3, 2), (1.6, 3)])
def test_a_run_is_placed_among_the_recorded_recipes(recorded, loss, place):
    head, *table = speedrun.places(loss, 60)
    assert head == f"place {place} of 3; recorded after 60 s on Some (model 1):"
    assert "this run" in table[place - 1] and [row.split()[0] for row in table] == sorted(
        row.split()[0] for row in table
    )


def test_a_processor_without_a_record_says_which_have_one(recorded, monkeypatch):
    monkeypatch.setattr(speedrun, "result_file", lambda: recorded / "speedrun_other.json")
    (line,) = speedrun.places(1.3, 60)
    assert "no record on this processor" in line and line.endswith("only on Some (model 1)")


def test_a_result_is_named_after_its_processor():
    assert speedrun.result_file("AMD EPYC (family 25, model 17)").name == "speedrun_amd_epyc_family_25_model_17.json"

"""The recipes of benchmarks/speedrun.yaml end with that of params.yaml, and a run is ranked among them."""

import json

import pytest
import yaml

import figures_speed
import speedrun
from recorded import RESULTS
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
    rows = [{"recipe": name, "bits_per_byte": loss} for name, loss in (("first", 1.5), ("second", 1.2))]
    result = {"machine": "2 cores of Some", "budget_s": 60, "rows": rows}
    (tmp_path / "speedrun_some.json").write_text(json.dumps(result))
    monkeypatch.setattr(speedrun, "result_file", lambda: tmp_path / "speedrun_here.json")
    monkeypatch.setattr(speedrun, "machine_name", lambda: "2 cores of Some")


@pytest.mark.parametrize(("loss", "place"), [(1.1, 1), (1.3, 2), (1.6, 3)])
def test_a_run_is_ranked_among_the_recorded_recipes(recorded, loss, place):
    head, *table = speedrun.rank(loss, 60)
    assert head == f"rank {place} of 3 on 2 cores of Some:"
    losses = [row.split()[0] for row in table]
    assert "this run" in table[place - 1] and losses == sorted(losses)


def test_only_runs_of_equal_time_on_the_same_machine_are_ranked(recorded, monkeypatch):
    assert speedrun.rank(1.3, 30) == ["the recorded recipes trained for 60 s, this one for 30 s"]
    monkeypatch.setattr(speedrun, "machine_name", lambda: "16 cores of Some")
    assert speedrun.rank(1.3, 60) == ["no recipe is recorded on 16 cores of Some, only on 2 cores of Some"]


def test_a_result_is_named_after_its_machine():
    path = speedrun.result_file("2 cores of AMD EPYC (family 25, model 17)")
    assert path.name == "speedrun_2_cores_of_amd_epyc_family_25_model_17.json"


def test_a_recipe_shows_its_change_where_there_are_several_seeds():
    runs = [{"seconds": 61.2, "bits_per_byte": 1.5}, {"seconds": 58.9, "bits_per_byte": 1.4}]
    first = {"recipe": "first", "tokens": 1000, "runs": runs}
    second = first | {"recipe": "second", "change": {"value": -0.1, "p_value": 0.0001}}
    single = second | {"recipe": "third", "change": {"value": 0.02, "p_value": None}}
    found = {"machine": "2 cores of Some", "seeds": [1, 2], "rows": [first, second, single]}
    rows = figures_speed.table_of_records(found).splitlines()[-3:]
    assert rows[0] == "| first | 1,000 | 59 to 61 | 1.400 to 1.500 | – | – |"
    assert rows[1].endswith("| -0.100 | < 0.001 |") and rows[2].endswith("| +0.020 | – |")


def test_the_recorded_recipes_trained_for_about_the_same_time():
    for path in RESULTS.glob("speedrun_*.json"):
        found = json.loads(path.read_text())
        seconds = [run["seconds"] / found["budget_s"] for row in found["rows"] for run in row["runs"]]
        # Steps are measured in turns, so drift treats recipes alike; the page shows the seconds that runs took.
        assert min(seconds) > 0.8 and max(seconds) < 1.35, "a machine whose speed drifts"


def test_a_loss_that_was_not_reached_is_said():
    run = {"seconds_to_target": {"ours": 30.0, "reference": 180.0}}
    missed = {"seconds_to_target": {"ours": None, "reference": 180.0}}
    assert figures_speed.reached([run, run]).endswith("within 30 s: 6.0 (6.0 to 6.0) times as fast.")
    assert figures_speed.reached([run, missed]).endswith("1 of 2 seeds did not reach it.")
    assert figures_speed.reached([missed]) == "1 of 1 seeds did not reach it."

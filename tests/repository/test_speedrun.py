"""The recipes of benchmarks/speedrun.yaml end with that of params.yaml, and a run is ranked among them."""

import argparse
import json

import numpy as np
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


@pytest.fixture
def appended(monkeypatch, tmp_path):
    """Return a function that appends two recipes to two recorded ones, without training."""
    recipes = [speedrun.Recipe(name, {}) for name in ("first", "second", "third", "fourth")]
    path, seen = tmp_path / "speedrun.json", []
    row = {"recipe": "first", "runs": [{"seconds": 60.0, "bits_per_byte": 1.5}], "bits_per_byte": 1.5}
    old = {"budget_s": 60, "seeds": [1], "rows": [row, row | {"recipe": "second"}]}
    path.write_text(json.dumps(old))
    monkeypatch.setattr(speedrun, "read_recipes", lambda: recipes)
    monkeypatch.setattr(speedrun, "prepare", lambda folder, values: folder)
    monkeypatch.setattr(speedrun, "token_rates", lambda folders: [{"median": 10.0} for _ in folders])

    def train(folder, num_tokens, seed):
        seen.append(folder.name)
        return {"seconds": 61.0, "tokens": num_tokens, "seed": seed, "bits_per_byte": 1.4 - 0.1 * int(folder.name)}

    monkeypatch.setattr(speedrun, "train", train)

    def append(without_first=False, **changes):
        del recipes[: int(without_first)]
        args = {"seconds": 60, "seeds": [1], "out": path, "record": False, "append": True} | changes
        speedrun.record(tmp_path, argparse.Namespace(**args))
        return old["rows"], json.loads(path.read_text())["rows"], seen

    return append


def test_appended_recipes_are_compared_with_runs_of_the_same_day(appended):
    old, rows, seen = appended()
    assert [row["recipe"] for row in rows] == ["first", "second", "third", "fourth"] and rows[:2] == old
    assert seen == ["0", "1", "2"]  # the second recipe again, then the new ones
    assert rows[2]["runs_of_recipe_before"][0]["bits_per_byte"] == 1.4
    assert [row["change"]["value"] for row in rows[2:]] == [pytest.approx(-0.1)] * 2


@pytest.mark.parametrize("changes", [{"seconds": 30}, {"seeds": [1, 2]}, {"without_first": True}])
def test_results_of_other_recipes_times_or_seeds_are_not_appended_to(appended, changes):
    with pytest.raises(SystemExit, match=r"speedrun\.json has .*, needed: "):
        appended(**changes)


def test_a_machine_whose_speed_drifts_treats_recipes_alike(monkeypatch):
    drift = np.random.default_rng(1).uniform(1, 2, speedrun.ROUNDS)
    monkeypatch.setattr(speedrun, "make_step", lambda tokens: (None, tokens))
    monkeypatch.setattr(speedrun, "interleave", lambda turns, rounds: {"0": list(drift), "1": list(1.5 * drift)})
    first, second = speedrun.token_rates([1000, 2000])
    assert second["median"] / first["median"] == pytest.approx(2 / 1.5)
    assert first["min"] < first["median"] < first["max"] == 4000 / min(drift)


def test_a_result_is_named_after_its_machine():
    path = speedrun.result_file("2 cores of AMD EPYC (family 25, model 17)")
    assert path.name == "speedrun_2_cores_of_amd_epyc_family_25_model_17.json"


def test_a_recipe_shows_its_change_where_there_are_several_seeds():
    runs = [{"tokens": 1000, "seconds": s, "bits_per_byte": loss} for s, loss in ((61.2, 1.5), (58.9, 1.4))]
    first = {"recipe": "first", "runs": runs}
    second = first | {"recipe": "second", "change": {"value": -0.1, "p_value": 0.0001}}
    single = second | {"recipe": "third", "change": {"value": 0.02, "p_value": None}}
    found = {"machine": "2 cores of Some", "seeds": [1, 2], "rows": [first, second, single]}
    rows = figures_speed.table_of_records(found).splitlines()[-3:]
    assert rows[0] == "| first | 1,000 | 59 to 61 | 1.400 to 1.500 | – | – |"
    assert rows[1].endswith("| -0.100 | < 0.001 |") and rows[2].endswith("| +0.020 | – |")


def test_a_recipe_that_was_trained_again_has_a_row_for_each_day():
    runs, later = ([{"tokens": 1000, "seconds": seconds, "bits_per_byte": 1.5}] for seconds in (60, 70))
    rows = [{"recipe": "first", "runs": runs}, {"recipe": "second", "runs": later, "runs_of_recipe_before": later}]
    table = figures_speed.table_of_records({"machine": "2 cores of Some", "seeds": [1], "rows": rows}).splitlines()[-3:]
    assert [row.split(" | ")[0] for row in table] == ["| first", "| first, on a later day", "| second"]
    assert [row.split(" | ")[2] for row in table] == ["60 to 60", "70 to 70", "70 to 70"]


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

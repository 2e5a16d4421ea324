"""Commands that run missing seeds: which seeds, under which name, with which values for -S."""

import pytest

from lm.core.params import read_yaml
from support import ROOT
from tools.compare.seeds import as_override, free_name, missing_seeds, queue_commands, settings_of
from tools.record.parameters import flatten, preset_names_left_out


@pytest.fixture
def params(monkeypatch) -> dict:
    """The parameters of a run with the values of the repository, which is the working folder."""
    monkeypatch.chdir(ROOT)
    selected = ("models.tiny.", "tokenizers.bpe.")
    presets = flatten(read_yaml("presets.yaml"))
    of_the_run = {name: value for name, value in presets.items() if name.startswith(selected)}
    return preset_names_left_out(flatten(read_yaml("params.yaml")) | of_the_run)


@pytest.mark.parametrize(
    ("sides", "missing"),
    [
        ([[1, 1]], [[2, 3, 4, 5]]),  # one side, a seed twice
        ([[11, 12, 13], [13]], [[1, 2], [1, 2, 11, 12]]),  # one has other seeds too
        ([[7, 8], [6, 7], [1]], [[1, 2, 6], [1, 2, 8], [2, 6, 7, 8]]),  # three sides
    ],
)
def test_the_lowest_missing_seeds_make_five_pairs_of_all_sides(sides, missing):
    assert [missing_seeds(side, sides) for side in sides] == missing


@pytest.mark.parametrize(
    ("wish", "taken", "name"),
    [
        ("base-1", ["base-1", "base-2"], "base-seeds"),
        ("origin/main", [], "origin-main-seeds"),
        ("base", ["base-seeds", "base-seeds2-1"], "base-seeds3"),
    ],
)
def test_new_experiments_have_a_name_that_none_has_yet(wish, taken, name):
    assert free_name(wish, taken) == name


def test_the_values_that_differ_from_the_files_are_given_without_the_seed(params):
    changed = {"train.peak_lr": 1e-5, "models.*.d_ff": 512, "train.seed": 9}

    assert settings_of(params | changed) == ["train.peak_lr=1e-05", "presets.yaml:models.tiny.d_ff=512"]


def test_the_values_of_another_preset_are_given_by_its_name_if_there_is_one(params):
    shape = read_yaml("presets.yaml")["models"]["small"]
    of_small = params | {"model.name": "small"} | {f"models.*.{name}": value for name, value in shape.items()}

    assert settings_of(of_small) == ["model.name=small"]
    assert settings_of(of_small | {"model.name": "gone"}) is None


VALUES = [None, True, 3, 1e-5, [0, 2048], "bpe", "true", "nan", "inf", "2.13.0", "it's", "", "a b,c"]


@pytest.mark.parametrize("value", VALUES)
def test_hydra_reads_the_value_back(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(f"x={as_override(value)}")

    assert override.value() == value
    assert not override.is_sweep_override()


def test_a_run_of_other_code_has_to_be_checked_out_first(params):
    of_the_run = params | {"train.peak_lr": 9.0}
    other_code = {"src/train.py": "0" * 32}

    comment, command = queue_commands("old", of_the_run, other_code, seeds=[2, 4], name="old-seeds")

    assert comment.startswith("# old ran with other src/train.py")
    assert "check it out first" in comment
    assert command == "dvc exp run --queue -n old-seeds -S train.seed=2,4"

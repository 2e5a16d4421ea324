"""Commands that run missing seeds: which seeds, under which name, with which values for -S."""

import shlex

import pytest

from lm.core.params import read_yaml
from support import ROOT
from tools.common.parameters import flatten, preset_names_left_out
from tools.common.seeds import as_override, free_name, missing_seeds, queue_commands, settings_of, sweep


@pytest.fixture
def params(monkeypatch) -> dict:
    """The parameters of a run with the values of the repository, which is the working folder."""
    monkeypatch.chdir(ROOT)
    selected = ("models.tiny.", "tokenizers.bpe.")
    presets = {name: value for name, value in flatten(read_yaml("presets.yaml")).items() if name.startswith(selected)}
    return preset_names_left_out({**flatten(read_yaml("params.yaml")), **presets})


@pytest.mark.parametrize(
    ("used", "missing"),
    [([1], [2, 3, 4, 5]), ([2, 7], [1, 3, 4]), ([1, 2, 3, 4, 5], []), ([9, 8, 7, 6, 5, 4], []), ([1, 1], [2, 3, 4, 5])],
)
def test_the_lowest_unused_seeds_complete_five(used, missing):
    assert missing_seeds(used) == missing


def test_seeds_in_a_row_are_a_range():
    assert [sweep(seeds) for seeds in ([2, 3, 4], [1, 3, 4], [7])] == ["range(2,5)", "1,3,4", "7"]


@pytest.mark.parametrize(
    ("wish", "taken", "name"),
    [
        ("main", [], "main-seeds"),
        ("base-1", ["base-1", "base-2"], "base-seeds"),
        ("HEAD~2", [], "HEAD-seeds"),
        ("origin/main", [], "origin-main-seeds"),
        ("base-seeds-3", ["base-seeds-3"], "base-seeds2"),
        ("base", ["base-seeds", "base-seeds2-1"], "base-seeds3"),
    ],
)
def test_new_experiments_have_a_name_that_none_has_yet(wish, taken, name):
    assert free_name(wish, taken) == name


def test_the_values_that_differ_from_the_files_are_given(params):
    assert settings_of(params) == []
    changed = {"train.peak_lr": 1e-5, "models.*.d_ff": 512, "train.patience_evals": 3, "train.seed": 9}
    assert settings_of(params | changed) == [
        "train.peak_lr=1e-05",
        "train.patience_evals=3",
        "presets.yaml:models.tiny.d_ff=512",
    ]


def test_the_field_of_a_preset_has_the_name_of_the_preset_that_the_run_selected(params):
    small = {f"models.*.{name}": value for name, value in read_yaml("presets.yaml")["models"]["small"].items()}
    selected = params | {"model.name": "small"} | small
    assert settings_of(selected) == ["model.name=small"]
    assert settings_of(selected | {"model.name": "gone"}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (True, "true"), (3, "3"), (0.5, "0.5"), ([0, 2048], "[0,2048]"), ("bpe", "bpe"),
        ("true", "'true'"), ("2.13.0", "'2.13.0'"), ("it's", "'it\\'s'"), ("", "''"), (["a"], None), ({}, None),
    ],
)  # fmt: skip
def test_a_value_is_written_in_the_grammar_of_hydra(value, text):
    assert as_override(value) == text


@pytest.mark.parametrize("value", [None, True, 3, 1e-5, [0, 2048], "bpe", "true", "2.13.0", "it's", "", "a b,c"])
def test_hydra_reads_the_value_back(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(f"x={as_override(value)}")
    assert override.value() == value and not override.is_sweep_override()


def test_a_run_of_other_code_has_to_be_checked_out_first(params):
    first, second = queue_commands("old", params | {"train.peak_lr": 9.0}, {"src/train.py": "0" * 32}, [2], "old-seeds")
    assert first == "# old ran with other src/train.py than this folder has; check it out first"
    assert shlex.split(second) == ["dvc", "exp", "run", "--queue", "-n", "old-seeds", "-S", "train.seed=2"]

"""No number of a section is unchecked: below zero, each one is refused."""

import pytest

from lm.core.errors import ParamsError
from lm.core.params import coerce, read_yaml
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.train.config import TrainParams, TrainRuntime
from support import ROOT
from tokenize_split import TokenizeRuntime

SECTIONS = {
    "params.yaml: train": (read_yaml(ROOT / "params.yaml")["train"], TrainParams),
    "params.yaml: eval": (read_yaml(ROOT / "params.yaml")["eval"], EvalParams),
    "runtime.yaml: train": (read_yaml(ROOT / "runtime.yaml")["train"], TrainRuntime),
    "runtime.yaml: tokenize": (read_yaml(ROOT / "runtime.yaml")["tokenize"], TokenizeRuntime),
    "presets.yaml: models": (read_yaml(ROOT / "presets.yaml")["models"]["tiny"], ModelParams),
}


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


NUMBERS = [
    (section, name) for section, (values, _) in SECTIONS.items() for name, value in values.items()
    if is_number(value) or value is None
]  # fmt: skip


@pytest.mark.parametrize(("section", "name"), NUMBERS)
@pytest.mark.parametrize("wrong", [-1, -5.0])
def test_a_number_below_zero_is_refused(section, name, wrong):
    values, kind = SECTIONS[section]
    coerce(values, kind, "section", "file")
    value = int(wrong) if isinstance(values[name], int) or values[name] is None else wrong
    with pytest.raises(ParamsError, match=rf"file: section\.{name} is {value}"):
        coerce(values | {name: value}, kind, "section", "file")


@pytest.mark.parametrize("name", ["keep_fingerprints", "num_processes", "timeout_s"])
def test_zero_is_refused_where_it_means_nothing(name):
    values, kind = SECTIONS["runtime.yaml: train"]
    with pytest.raises(ParamsError, match=rf"section\.{name} is 0.*, needed: (at least 1|above 0)"):
        coerce(values | {name: 0}, kind, "section", "file")


@pytest.mark.parametrize("name", ["checkpoint_every_s", "keep_resumable"])
def test_zero_is_a_value_elsewhere(name):
    values, kind = SECTIONS["runtime.yaml: train"]
    assert getattr(coerce(values | {name: 0}, kind, "section", "file"), name) == 0


def test_a_checkpoint_to_keep_lies_within_the_run():
    values, kind = SECTIONS["params.yaml: train"]
    for tokens in (-1, values["max_tokens"] + 1):
        with pytest.raises(ParamsError, match="keep_checkpoints"):
            coerce(values | {"keep_checkpoints": [0, tokens]}, kind, "section", "file")

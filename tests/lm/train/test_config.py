"""No number of a section is unchecked: below zero, each one is refused."""

import pytest

from lm.core.errors import ParamsError
from lm.core.params import coerce, read_yaml
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.tokenizer.config import TokenizeRuntime
from lm.train.config import TrainParams, TrainRuntime
from support import ROOT

SECTIONS = {
    "params.yaml: train": (read_yaml(ROOT / "params.yaml")["train"], TrainParams),
    "params.yaml: eval": (read_yaml(ROOT / "params.yaml")["eval"], EvalParams),
    "runtime.yaml: train": (read_yaml(ROOT / "runtime.yaml")["train"], TrainRuntime),
    "runtime.yaml: tokenize": (read_yaml(ROOT / "runtime.yaml")["tokenize"], TokenizeRuntime),
    "presets.yaml: models": (read_yaml(ROOT / "presets.yaml")["models"]["tiny"], ModelParams),
}


def numbers() -> list[tuple[str, str]]:
    """Return (section, name) of each value that is a number, or may be one."""
    found = []
    for section, (values, _) in SECTIONS.items():
        for name, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number or value is None:
                found.append((section, name))
    return found


@pytest.mark.parametrize(("section", "name"), numbers())
def test_a_number_below_zero_is_refused(section, name):
    values, kind = SECTIONS[section]
    coerce(values, kind, "section", "file")

    with pytest.raises(ParamsError, match=rf"file: section\.{name} is -1"):
        coerce(values | {name: -1}, kind, "section", "file")


@pytest.mark.parametrize("name", ["keep_fingerprints", "num_processes", "timeout_s"])
def test_zero_is_refused_where_it_means_nothing(name):
    values, kind = SECTIONS["runtime.yaml: train"]

    with pytest.raises(ParamsError, match=rf"section\.{name} is 0.*; it must be (at least 1|above 0)"):
        coerce(values | {name: 0}, kind, "section", "file")


@pytest.mark.parametrize("name", ["checkpoint_every_s", "keep_checkpoints"])
def test_zero_is_a_value_elsewhere(name):
    values, kind = SECTIONS["runtime.yaml: train"]

    read = coerce(values | {name: 0}, kind, "section", "file")

    assert getattr(read, name) == 0


TEN_STEPS = {
    "seq_len": 16,
    "batch_tokens": 64,
    "micro_batch_tokens": 32,
    "max_tokens": 640,
    "warmup_steps": 2,
    "peak_lr": 0.1,
    "min_lr": 0.01,
    "numerics": "exact",
    "dtype": "float32",
}


def train_params(**changes):
    values, kind = SECTIONS["params.yaml: train"]
    return coerce(values | TEN_STEPS | changes, kind, "train", "file")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("warmup_steps", [0, 9]),  # of 10 steps
        ("min_lr", [0, 0.1]),
        ("micro_batch_tokens", [16, 64]),
        ("batch_tokens", [32, 96]),
        ("beta1", [0, 0.999]),
        ("beta2", [0, 0.999]),
        ("dtype", ["float32", "auto"]),
        ("compile", [False]),
    ],
)
def test_the_limits_of_a_value_are_accepted(name, values):
    for value in values:
        train_params(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("warmup_steps", [10]),  # of 10 steps
        ("min_lr", [-0.01, 0.11]),
        ("micro_batch_tokens", [8, 40]),
        ("batch_tokens", [48, 16]),
        ("beta1", [1]),
        ("beta2", [1]),
        ("dtype", ["bfloat16"]),
        ("compile", [True]),
    ],
)
def test_a_value_beyond_its_limits_is_refused(name, values):
    for value in values:
        with pytest.raises(ParamsError, match=rf"file: train\.{name}(\[0\])? is "):
            train_params(**{name: value})


def test_fast_numerics_may_round_and_compile():
    assert train_params(numerics="fast", dtype="bfloat16", compile=True).compile


def test_a_single_batch_is_a_run():
    assert train_params(max_tokens=64, warmup_steps=0).max_steps == 1


def test_less_than_a_batch_is_no_run():
    with pytest.raises(ParamsError, match=r"train\.max_tokens is 63; it must be at least batch_tokens 64"):
        train_params(max_tokens=63, warmup_steps=0)


def test_lengths_in_tokens_are_rounded_down_to_steps():
    params = train_params(
        max_tokens=64 * 11 - 1,
        eval_every_tokens=64 * 3 - 1,
        log_every_tokens=64 * 2 - 1,
    )

    assert params.max_steps == 10
    assert params.eval_every_steps == 2
    assert params.log_every_steps == 1


def test_an_interval_has_one_step_at_least():
    params = train_params(eval_every_tokens=1, log_every_tokens=1)

    assert params.eval_every_steps == 1
    assert params.log_every_steps == 1


def test_validations_and_rows_of_the_curve_have_intervals_of_their_own():
    params = train_params(eval_every_tokens=64 * 2 - 1, log_every_tokens=64 * 3 - 1)

    assert params.eval_every_steps == 1
    assert params.log_every_steps == 2


def test_a_batch_has_whole_sequences():
    assert train_params(seq_len=16, batch_tokens=64).batch_size == 4

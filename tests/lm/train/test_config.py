"""The range of every number in the parameters of training, evaluation, the model, and this machine."""

import pytest

from lm.core.errors import ParamsError
from lm.core.params import coerce, read_yaml
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.tokenizer.config import TokenizeRuntime
from lm.train.config import TrainParams, TrainRuntime
from support import ROOT

PARAMS = read_yaml(ROOT / "params.yaml")
RUNTIME = read_yaml(ROOT / "runtime.yaml")
MODELS = read_yaml(ROOT / "presets.yaml")["models"]
SECTIONS = {
    "train": (PARAMS["train"], TrainParams),
    "eval": (PARAMS["eval"], EvalParams),
    "model": (MODELS["tiny"], ModelParams),
    "runtime train": (RUNTIME["train"], TrainRuntime),
    "runtime tokenize": (RUNTIME["tokenize"], TokenizeRuntime),
}
ZERO_MEANS_SOMETHING = {
    "train": {"min_lr", "warmup_steps", "weight_decay", "beta1", "beta2", "seed"},
    "eval": {"temperature", "seed"},
    "model": set(),
    "runtime train": {"checkpoint_every_s", "keep_checkpoints"},
    "runtime tokenize": set(),
}
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


def numbers_that_accept(section: str, number: int) -> set[str]:
    """Return the names of the values of a section that may be this number; each of the others is refused by name."""
    values, kind = SECTIONS[section]
    coerce(values, kind, "section", "file")
    accepted = set()
    for name, value in values.items():
        if isinstance(value, str | bool):
            continue
        try:
            coerce(values | {name: number}, kind, "section", "file")
            accepted.add(name)
        except ParamsError as error:
            assert f"file: section.{name} is {number}" in str(error)
    return accepted


@pytest.mark.parametrize("section", SECTIONS)
def test_no_number_may_be_below_zero_and_these_may_be_zero(section):
    assert numbers_that_accept(section, -1) == set()
    assert numbers_that_accept(section, 0) == ZERO_MEANS_SOMETHING[section]


def train_params(**changes) -> TrainParams:
    return coerce(PARAMS["train"] | TEN_STEPS | changes, TrainParams, "train", "file")


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("max_tokens", [192], [63]),
        ("warmup_steps", [0, 9], [10]),  # of 10 steps
        ("min_lr", [0, 0.1], [-0.01, 0.11]),
        ("micro_batch_tokens", [16, 64], [8, 40]),
        ("batch_tokens", [32, 96], [16, 48]),
        ("beta1", [0, 0.999], [1.0]),
        ("beta2", [0, 0.999], [1.0]),
        ("decay_fraction", [1], [1.1]),
        ("dtype", ["float32", "auto"], ["bfloat16"]),
        ("compile", [False], [True]),
    ],
)
def test_the_limits_of_a_value(name, accepted, refused):
    for value in accepted:
        train_params(**{name: value})

    for value in refused:
        with pytest.raises(ParamsError, match=rf"file: train\.{name} is {value}; it must be "):
            train_params(**{name: value})


def test_fast_numerics_may_round_and_compile():
    assert train_params(numerics="fast", dtype="bfloat16", compile=True).compile


@pytest.mark.parametrize(
    ("max_tokens", "eval_every_tokens", "log_every_tokens", "steps"),
    [
        (64 * 11 - 1, 64 * 3 - 1, 64 * 2 - 1, (10, 2, 1)),
        (64, 1, 1, (1, 1, 1)),  # a single batch is a run, and an interval has at least one step
    ],
)
def test_lengths_in_tokens_are_rounded_down_to_steps(max_tokens, eval_every_tokens, log_every_tokens, steps):
    params = train_params(
        max_tokens=max_tokens,
        eval_every_tokens=eval_every_tokens,
        log_every_tokens=log_every_tokens,
        warmup_steps=0,
    )

    assert (params.max_steps, params.eval_every_steps, params.log_every_steps) == steps
    assert params.batch_size == 4

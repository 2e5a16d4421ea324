"""Learning-rate schedules by their definitions, and what holds for any: its bounds, and that it rises only once."""

import itertools
import math
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.train.config import TrainParams
from lm.train.step import learning_rate
from support.properties import check_examples


class Schedule(types.SimpleNamespace):
    """The parameters of a schedule alone."""

    decay_begins = TrainParams.decay_begins


@st.composite
def schedules(draw):
    """Return the arguments of a schedule of at least one step, its warm-up shorter than the run."""
    max_steps = draw(st.integers(1, 400))
    peak_lr = draw(st.floats(1e-8, 10))
    return {
        "max_steps": max_steps,
        "warmup_steps": draw(st.integers(0, max_steps - 1)),
        "peak_lr": peak_lr,
        "min_lr": peak_lr * draw(st.floats(0, 1)),
        "schedule": draw(st.sampled_from(["cosine", "wsd"])),
        "decay_fraction": draw(st.floats(0.001, 1)),
    }


def rates_of_all_steps(params: Schedule) -> list[float]:
    return [learning_rate(step, params) for step in range(params.max_steps)]


@check_examples
@given(schedule=schedules())
def test_the_rate_rises_to_its_highest_and_never_again(schedule):
    params = Schedule(**schedule)
    rounding = 1e-9 * params.peak_lr

    rates = rates_of_all_steps(params)

    top = rates.index(max(rates))
    for before, after in itertools.pairwise(rates[: top + 1]):
        assert after > before - rounding
    for before, after in itertools.pairwise(rates[top:]):
        assert after <= before + rounding
    assert 0 < max(rates) <= params.peak_lr + rounding
    assert min(rates[params.warmup_steps :]) >= params.min_lr - rounding


def rates_of(**changes) -> tuple[list[float], int]:
    """Return the rates of 20 steps, of which 4 warm up, from a peak of 1 to 0.1; and where the decay begins."""
    schedule = {
        "max_steps": 20,
        "warmup_steps": 4,
        "peak_lr": 1.0,
        "min_lr": 0.1,
        "decay_fraction": 0.25,
    }
    params = Schedule(**schedule | changes)
    return rates_of_all_steps(params), params.decay_begins


WARMUP = [0.25, 0.5, 0.75, 1.0]


def test_wsd_by_its_definition():
    """The last five steps fall linearly; the step after them, which is not taken, would have the lowest rate."""
    rates, decay_begins = rates_of(schedule="wsd")

    assert decay_begins == 15
    at_the_peak = [1.0] * 11
    decay = [1.0, 0.82, 0.64, 0.46, 0.28]
    assert rates == pytest.approx([*WARMUP, *at_the_peak, *decay])


def test_cosine_by_its_definition():
    """Half a period over the 16 steps after the warm-up."""
    rates, decay_begins = rates_of(schedule="cosine")

    assert decay_begins == 0
    half_period = [0.1 + 0.9 * (1 + math.cos(math.pi * i / 16)) / 2 for i in range(16)]
    assert rates == pytest.approx([*WARMUP, *half_period])
    assert rates[4] == pytest.approx(1.0), "the first step after the warm-up"
    assert rates[12] == pytest.approx(0.55), "half way between peak and minimum"

"""What holds for any learning-rate schedule: its bounds, its warm-up, and that it never rises afterwards."""

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


@check_examples
@given(schedule=schedules())
def test_a_schedule_warms_up_and_never_rises_again(schedule):
    params = Schedule(**schedule)
    rates = [learning_rate(step, params) for step in range(schedule["max_steps"])]
    warmup = rates[: schedule["warmup_steps"]]
    rest = rates[schedule["warmup_steps"] :]
    room = 1e-9 * schedule["peak_lr"]
    assert all(0 < rate <= schedule["peak_lr"] * (i + 1) / len(warmup) + room for i, rate in enumerate(warmup))
    assert all(schedule["min_lr"] - room <= rate <= schedule["peak_lr"] + room for rate in rest)
    top = rates.index(max(rates))
    assert all(after > before - room for before, after in itertools.pairwise(rates[: top + 1]))
    assert all(after <= before + room for before, after in itertools.pairwise(rates[top:]))
    decay_steps = max(1, round(schedule["decay_fraction"] * schedule["max_steps"]))
    if schedule["schedule"] == "cosine" or schedule["max_steps"] - decay_steps >= schedule["warmup_steps"]:
        assert not warmup or math.isclose(warmup[-1], schedule["peak_lr"])


@check_examples
@given(schedule=schedules())
def test_the_rate_never_jumps(schedule):
    params = Schedule(**schedule | {"schedule": "wsd"})
    rates = [learning_rate(step, params) for step in range(schedule["max_steps"])]
    decay_steps = max(1, round(schedule["decay_fraction"] * schedule["max_steps"]))
    steepest = max(1 / max(1, schedule["warmup_steps"]), 1 / decay_steps) * schedule["peak_lr"] * (1 + 1e-9)
    assert all(abs(after - before) <= steepest for before, after in itertools.pairwise(rates))


def rates_of(**changes):
    """Return the rates at which 20 steps are taken, of which 4 warm up, from a peak of 1 to 0.1."""
    schedule = {"max_steps": 20, "warmup_steps": 4, "peak_lr": 1.0, "min_lr": 0.1, "decay_fraction": 0.25} | changes
    params = Schedule(**schedule)
    return [learning_rate(step, params) for step in range(params.max_steps)], params.decay_begins


WARMUP = [0.25, 0.5, 0.75, 1.0]


def test_wsd_by_its_definition():
    """The last five steps fall linearly; the step after them, which is not taken, would have the lowest rate."""
    rates, begins = rates_of(schedule="wsd")
    assert begins == 15
    assert rates == pytest.approx([*WARMUP, *[1.0] * 11, 1.0, 0.82, 0.64, 0.46, 0.28])


def test_cosine_by_its_definition():
    """Half a period over the 16 steps after the warm-up."""
    rates, begins = rates_of(schedule="cosine")
    assert begins == 0
    half_period = [0.1 + 0.9 * (1 + math.cos(math.pi * i / 16)) / 2 for i in range(16)]
    assert rates == pytest.approx([*WARMUP, *half_period])
    assert (rates[4], rates[12]) == pytest.approx((1.0, 0.55))


@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_without_a_warmup_the_first_step_has_the_peak_rate(schedule):
    assert rates_of(schedule=schedule, warmup_steps=0)[0][0] == 1.0


def test_where_warmup_and_decay_overlap_the_smaller_rate_counts():
    rates, begins = rates_of(schedule="wsd", warmup_steps=10, decay_fraction=1.0, min_lr=0.0)
    assert begins == 0
    assert rates == pytest.approx([min((step + 1) / 10, (20 - step) / 20) for step in range(20)])


def test_the_decay_takes_at_least_one_step():
    rates, begins = rates_of(schedule="wsd", decay_fraction=0.01)
    assert begins == 19 and rates[-1] == 1.0

"""What holds for any learning-rate schedule: its bounds, its warm-up, and that it never rises afterwards."""

import itertools
import math
import types

from hypothesis import given
from hypothesis import strategies as st

from lm.train.schedule import learning_rate
from support.properties import check_examples


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
    params = types.SimpleNamespace(**schedule)
    rates = [learning_rate(step, params) for step in range(schedule["max_steps"])]
    warmup, rest = rates[: schedule["warmup_steps"]], rates[schedule["warmup_steps"] :]
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
    params = types.SimpleNamespace(**schedule | {"schedule": "wsd"})
    rates = [learning_rate(step, params) for step in range(schedule["max_steps"])]
    decay_steps = max(1, round(schedule["decay_fraction"] * schedule["max_steps"]))
    steepest = max(1 / max(1, schedule["warmup_steps"]), 1 / decay_steps) * schedule["peak_lr"] * (1 + 1e-9)
    assert all(abs(after - before) <= steepest for before, after in itertools.pairwise(rates))

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
        "schedule": draw(st.sampled_from(["cosine", "stable_decay"])),
        "decay_share": draw(st.floats(0.001, 1)),
    }


@check_examples
@given(schedule=schedules())
def test_a_schedule_warms_up_to_its_peak_and_never_rises_again(schedule):
    params = types.SimpleNamespace(**schedule)
    rates = [learning_rate(step, params) for step in range(schedule["max_steps"])]
    warmup, rest = rates[: schedule["warmup_steps"]], rates[schedule["warmup_steps"] :]
    room = 1e-9 * schedule["peak_lr"]
    assert all(0 < rate <= schedule["peak_lr"] + room for rate in warmup)
    assert all(after > before for before, after in itertools.pairwise(warmup))
    assert not warmup or math.isclose(warmup[-1], schedule["peak_lr"])
    assert all(schedule["min_lr"] - room <= rate <= schedule["peak_lr"] + room for rate in rest)
    assert all(after <= before + room for before, after in itertools.pairwise(rest))

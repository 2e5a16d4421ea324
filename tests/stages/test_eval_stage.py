"""Test the parameters of the stage eval."""

import pytest

import eval as eval_stage


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01])
def test_a_stride_outside_the_window_is_refused(fraction):
    with pytest.raises(ValueError, match=f"stride_fraction is {fraction}, needed: above 0, at most 1"):
        eval_stage.EvalParams(fraction, 1, 1, 1.0, 1, 1, 1)

"""Test the parameters of the stage eval."""

import pytest

import eval as eval_stage
from lm.core.errors import ParamsError
from lm.core.params import coerce


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01])
def test_a_stride_outside_the_window_is_refused(fraction):
    values = {
        "stride_fraction": fraction,
        "num_samples": 1,
        "sample_tokens": 1,
        "temperature": 1.0,
        "top_k": 1,
        "seed": 1,
    }
    with pytest.raises(ParamsError, match=f"stride_fraction is {fraction}, needed: above 0, at most 1"):
        coerce(values, eval_stage.EvalParams, "eval", "params.yaml")


def test_the_parameter_of_the_minimal_pairs_says_where_it_went(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("eval:\n  num_pairs: 500\n")
    with pytest.raises(ParamsError, match="num_pairs is now the option --pairs of `python src probes`"):
        eval_stage.read_params()

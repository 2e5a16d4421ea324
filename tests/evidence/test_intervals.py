"""Intervals over documents contain the true value, p-values are small as often as they should be."""

import numpy as np
import pytest

from benchmarks.quality.simulations import of_documents, of_items, populations
from evidence.intervals import Estimate, dominating_documents, effective_documents, ratio_interval, studentized

NUM_EXPERIMENTS = 400


@pytest.mark.parametrize(
    ("population", "num_documents"),
    [
        ("difference that depends on length", 24),
        ("difference that depends on length", 96),
        ("difference independent of length", 96),
    ],
)
def test_the_interval_covers_the_truth_and_p_is_small_as_often_as_it_should_be(population, num_documents):
    """Intervals that hold where the difference depends on the length are slightly wide where it does not."""
    truth, draw = populations()[population]

    found = of_documents(truth, draw, num_documents, NUM_EXPERIMENTS)

    assert 0.92 <= found["coverage"] <= 0.99
    assert found["p <= 0.01"] <= 0.04
    assert 0.12 <= found["p <= 0.25"] <= 0.3
    assert 0.33 <= found["p <= 0.5"] <= 0.55


@pytest.mark.parametrize("num_documents", [12, 80])
def test_items_of_one_document_count_as_dependent(num_documents):
    """False positives within three standard errors of 5 %; with the items as independent there would be far more."""
    found = of_items(num_documents, NUM_EXPERIMENTS)

    assert found["coverage"] == pytest.approx(0.95, abs=3 * np.sqrt(0.05 * 0.95 / NUM_EXPERIMENTS))


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_p_passes_its_level_at_both_ends_of_an_interval(confidence):
    rng = np.random.default_rng(3)
    log_sizes = rng.normal(7, 0.8, 30)
    sizes = np.exp(log_sizes)
    rates = 0.5 - 0.2 * log_sizes + rng.normal(0, 0.1, 30)  # long documents draw the interval to one side

    def interval(zero: float) -> Estimate:
        """Return the interval of the rates above `zero`, always with the same draws."""
        return ratio_interval((rates - zero) * sizes, sizes, np.random.default_rng(1), confidence, resamples=999)

    found = interval(zero=0.0)

    little = 1e-6 * (found.high - found.low)
    level = 1 - confidence + 1e-9
    assert interval(found.low + little).p_value > level
    assert interval(found.low - little).p_value <= level
    assert interval(found.high - little).p_value > level
    assert interval(found.high + little).p_value <= level


@pytest.mark.parametrize("spread", [0, 0.3, 1.3, 3])
def test_degrees_of_freedom_are_those_of_the_covariance(spread):
    sizes = np.random.default_rng(1).lognormal(7, spread, 12)

    _, _, found = studentized(sizes, sizes, 0.0)

    weights = sizes / sizes.sum()
    residuals = np.eye(12) - np.outer(weights, np.ones(12))  # of the values, from their own weighted mean
    covariance = residuals @ np.diag(weights**2) @ residuals.T
    scale = np.sqrt(np.diag(covariance) / weights**2)
    scaled = covariance / np.outer(scale, scale)
    assert found == pytest.approx(np.trace(scaled) ** 2 / np.square(scaled).sum())


@pytest.mark.parametrize(
    ("values", "sizes", "value", "has_se", "low"),
    [
        pytest.param([1.0], [10], 0.1, False, None, id="one document"),
        pytest.param([1.0, 3.0, 2.0], [10, 10, 10], 0.2, True, None, id="three"),
        pytest.param([5.0] * 9 + [7.0], [10] * 9 + [0], 0.5, True, None, id="equal rates, and one without text"),
        pytest.param([0.0] * 20, [7] * 20, 0.0, True, 0.0, id="no difference at all"),
    ],
)
def test_few_documents_or_equal_rates_have_no_interval_without_a_warning(values, sizes, value, has_se, low):
    with np.errstate(all="raise"):
        found = ratio_interval(np.array(values), np.array(sizes), np.random.default_rng(8))

    assert found.value == pytest.approx(value)
    assert (found.se is not None) == has_se
    assert (found.low, found.high) == (low, low)
    assert found.p_value == (None if low is None else 1)


def test_dominating_documents_have_more_than_a_twentieth_and_the_largest_is_first():
    fractions = dominating_documents(np.array([10, 60, 4, 126]))

    assert list(fractions.items()) == [(3, 0.63), (1, 0.3)]


def test_documents_count_by_their_length():
    assert effective_documents(np.full(7, 300)) == pytest.approx(7)
    assert effective_documents(np.array([1, 1, 1000])) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("effect", "p_value", "is_bound"),
    [
        (0.9, 0.09, False),
        (1.1, 0.03, False),
        (1.2, 0.02, True),
    ],
)
def test_the_least_p_value_of_the_resamples_is_a_bound(effect, p_value, is_bound):
    """One hundred samples, this one among them, show at least 2 %, one sample for each tail."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 150, 12)
    values = (rng.normal(size=12) + effect) * sizes

    estimate = ratio_interval(values, sizes, np.random.default_rng(1), resamples=99)

    assert estimate.p_value == p_value
    assert estimate.p_is_bound == is_bound

"""Intervals over documents contain the true value, p-values are small as often as they should be."""

import csv

import numpy as np
import pytest

from lm.evaluate import intervals
from lm.evaluate.intervals import (
    dominating_documents,
    effective_documents,
    ratio_interval,
    studentized,
)
from support import ROOT
from support.loss_cases import LN2, corpus


def difference(data, rng, **options):
    """Return the interval of B - A of `corpus`."""
    nats_a, nats_b, sizes = data
    return ratio_interval((nats_b - nats_a) / LN2, sizes, rng, **options)


def committed_pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sizes and bits per byte under both configurations of the committed comparison (96,)."""
    with open(ROOT / "benchmarks" / "results" / "optimizers.csv", encoding="utf-8") as file:
        return tuple(np.array(list(csv.reader(file))[1:], dtype=float)[:, 1:].T)


@pytest.mark.parametrize(("documents", "population"), [(24, "committed pairs"), (96, "lognormal")])
def test_coverage_where_length_matters(documents, population):
    """Differences fall with the length of a document, as in the committed pairs (correlation -0.56)."""
    sizes, a, b = committed_pairs()
    logs = np.log(sizes)
    slope, start = np.polyfit(logs, b - a, 1)
    rng = np.random.default_rng(documents)
    p_values = []
    for _ in range(400):
        if population == "committed pairs":
            chosen = rng.integers(96, size=documents)
            truth = (b - a) @ sizes / sizes.sum()
            size = sizes[chosen]
            rate = (b - a)[chosen]
        else:
            log_size = rng.normal(logs.mean(), logs.std(), documents)
            truth = slope * logs.var()
            scatter = rng.choice(b - a - start - slope * logs, documents)
            size = np.exp(log_size)
            rate = slope * (log_size - logs.mean()) + scatter
        p_values.append(ratio_interval((rate - truth) * size, size, rng, resamples=299).p_value)
    p_values = np.array(p_values)
    assert 0.92 <= np.mean(p_values > 0.05) <= 0.985
    assert np.mean(p_values <= 0.01) <= 0.04
    assert 0.12 <= np.mean(p_values <= 0.25) <= 0.3


def test_without_a_difference_p_is_uniform():
    """Intervals that hold where the difference depends on the length are slightly wide where it does not."""
    rng = np.random.default_rng(4)
    found = [difference(corpus(rng, 96, 0.0), rng, resamples=299) for _ in range(400)]
    p_values = np.array([each.p_value for each in found])
    assert 0.925 <= np.mean([each.low <= 0 <= each.high for each in found]) <= 0.99
    for level in (0.25, 0.5, 0.75):
        assert level - 0.12 <= np.mean(p_values <= level) <= level + 0.05


@pytest.mark.parametrize(("shift", "confidence"), [(0.0, 0.5), (0.03, 0.95), (0.08, 0.99)])
def test_p_and_interval_agree(shift, confidence):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        found = difference(corpus(rng, 30, shift), rng, confidence=confidence, resamples=999)
        assert (found.p_value <= 1 - confidence + 1e-9) == (not found.low <= 0 <= found.high)
        assert found.low < found.value < found.high


def test_resamples_are_drawn_from_the_smoothed_documents(monkeypatch):
    """Log sizes keep mean and variance, also beyond the longest; rates are linear in them, with unbiased scatter."""
    rng = np.random.default_rng(3)
    drawn = []
    logs = rng.normal(7, 1.3, 12)
    rates = 0.5 - 0.05 * logs + rng.normal(0, 0.1, 12)
    sizes = np.exp(logs)

    def recording_studentized(*given):
        drawn.append(given)
        return studentized(*given)

    monkeypatch.setattr(intervals, "studentized", recording_studentized)
    z = intervals._resampled(rates * sizes, sizes, rng, 20_000)
    values, drawn_sizes = (np.concatenate([given[i] for given in drawn]) for i in range(2))
    assert z.shape == (20_000,) and values.shape == drawn_sizes.shape == (20_000, 12)

    offsets = logs - logs.mean()
    drawn_offsets = np.log(drawn_sizes)
    assert drawn_offsets.mean() == pytest.approx(0, abs=0.02)
    assert drawn_offsets.var() == pytest.approx(logs.var(ddof=1), rel=0.1)
    assert drawn_offsets.max() > offsets.max() + logs.std() and drawn_offsets.min() < offsets.min() - logs.std()

    slope, start = np.polyfit(offsets, rates, 1)
    scatter = values / drawn_sizes - start - slope * drawn_offsets
    assert scatter.mean() == pytest.approx(0, abs=0.002)
    assert scatter.var() == pytest.approx(np.square(rates - start - slope * offsets).sum() / 10, rel=0.03)
    assert values.sum() / drawn_sizes.sum() == pytest.approx(drawn[0][2], abs=0.003), "the true ratio of the model"


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


def test_too_few_documents_give_no_interval():
    rng = np.random.default_rng(8)
    alone = ratio_interval(np.array([1.0]), np.array([10]), rng)
    assert alone.value == pytest.approx(0.1) and alone.se is alone.low is alone.p_value is None
    with np.errstate(all="raise"):
        for count in (2, 3):
            few = difference(corpus(rng, count), rng, resamples=199)
            assert few.se > 0 and few.low is few.high is few.p_value is None
        equal = ratio_interval(np.array([*[5.0] * 9, 7.0]), np.array([*[10] * 9, 0]), rng)
        zero = ratio_interval(np.zeros(20), np.full(20, 7), rng)
    assert equal.value == 0.5 and equal.low is None, "documents without text do not count"
    assert (zero.value, zero.low, zero.high, zero.p_value) == (0, 0, 0, 1)


def test_effective_number_and_dominating_documents():
    assert effective_documents(np.full(7, 300)) == pytest.approx(7)
    assert list(dominating_documents(np.array([10, 60, 4, 126])).items()) == [(3, 0.63), (1, 0.3)], "the largest first"
    assert dominating_documents(np.array([5, 95])) == {1: 0.95}, "one that holds 5 % does not dominate"


@pytest.mark.parametrize(("effect", "p_value", "is_bound"), [(0.9, 0.09, False), (1.1, 0.03, False), (1.2, 0.02, True)])
def test_the_least_p_value_of_the_resamples_is_a_bound(effect, p_value, is_bound):
    """One hundred samples, this one among them, show at least 2 %, one sample for each tail."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 150, 12)
    values = (rng.normal(size=12) + effect) * sizes

    estimate = ratio_interval(values, sizes, np.random.default_rng(1), resamples=99)

    assert (estimate.p_value, estimate.p_is_bound) == (p_value, is_bound)

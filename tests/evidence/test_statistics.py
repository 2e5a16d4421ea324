"""Statistics of comparisons equal printed tables and published examples, and keep their promises in simulations."""

import numpy as np
import pytest
from scipy.special import stdtrit

from evidence.answer import p_text, size_correlation
from evidence.difference import difference_of_items, holm, welch
from evidence.intervals import Estimate, ratio_interval
from evidence.spread import POWER, detectable_difference

NUM_SIMULATIONS = 600


# Differences over seeds.


def test_welch_equals_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = np.array([27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4])
    b = np.array([27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4])

    found = welch(b, a)

    assert found.value / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.value < found.high < 0


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.5, 1.6]), ([1.0, 1.0], [2.0, 2.0])])
def test_a_single_run_or_equal_values_of_each_side_give_no_interval(a, b):
    found = welch(np.array(a), np.array(b))

    assert found.value == pytest.approx(np.mean(b) - np.mean(a))
    assert (found.low, found.p_value) == (None, None)


# Differences of items of documents.


def items(rng, num_documents: int, effect: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return B - A (N,) of right or wrong answers, sizes 1, and the document of each of 1 to 12 items.

    In each document one model is a little better, by chance; on average B is better by `effect`.
    """
    items_of_document = rng.integers(1, 13, num_documents)
    document = np.repeat(np.arange(num_documents), items_of_document)
    skill = rng.normal(0, 0.25, num_documents)[document]
    advantage = (effect + skill) / 2
    chance_of_a = np.clip(0.5 - advantage, 0, 1)
    chance_of_b = np.clip(0.5 + advantage, 0, 1)
    is_right_in_a = rng.random(len(document)) < chance_of_a
    is_right_in_b = rng.random(len(document)) < chance_of_b
    differences = is_right_in_b.astype(float) - is_right_in_a
    return differences, np.ones(len(document)), document


def sums_by(clusters, *columns) -> list[np.ndarray]:
    """Return the sums of columns (N,) over each cluster (C,)."""
    _, cluster = np.unique(clusters, return_inverse=True)
    return [np.bincount(cluster, column) for column in columns]


def rate_of_rejections(num_documents: int, by_item: bool = False, effect: float = 0.0) -> float:
    """Return the fraction of simulations with p ≤ 0.05; `by_item`: each item counts as independent."""
    rng = np.random.default_rng(num_documents)
    num_rejected = 0
    for _ in range(NUM_SIMULATIONS):
        differences, sizes, document = items(rng, num_documents, effect)
        clusters = np.arange(len(document)) if by_item else document
        found = difference_of_items(*sums_by(clusters, differences, sizes))
        num_rejected += found.p_value <= 0.05
    return num_rejected / NUM_SIMULATIONS


@pytest.mark.parametrize("num_documents", [12, 80])
def test_items_of_one_document_count_as_dependent(num_documents):
    """False positives within three standard errors of 5 %; with the items as independent there would be far more."""
    by_document = rate_of_rejections(num_documents)
    by_item = rate_of_rejections(num_documents, by_item=True)

    standard_error = np.sqrt(0.05 * 0.95 / NUM_SIMULATIONS)
    assert by_document == pytest.approx(0.05, abs=3 * standard_error)
    assert by_item > 0.12


def difference_of_single_items(differences) -> Estimate:
    """Return the estimate from one item of each document."""
    count = len(differences)
    return difference_of_items(np.array(differences, float), np.ones(count))


def test_single_items_give_the_paired_t_test():
    differences = [1, -1, 1, 1, 0, 1, 1, 0, 1, -1]

    found = difference_of_single_items(differences)

    assert found.value == pytest.approx(0.4)
    assert found.se == pytest.approx(np.std(differences, ddof=1) / np.sqrt(10))
    assert found.degrees_of_freedom == pytest.approx(9)


@pytest.mark.parametrize(
    ("differences", "has_interval"),
    [
        pytest.param([1, 2, 1, 2, 1, 2], True, id="six"),
        pytest.param([1, 2, 1, 2, 1, 0], False, id="six of which five differ"),
        pytest.param([1] * 10, False, id="no spread"),
    ],
)
def test_an_interval_needs_six_documents_that_differ_and_spread(differences, has_interval):
    found = difference_of_single_items(differences)

    assert (found.low is not None) == has_interval


def values_of_correlation(count: int, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values and sizes (N,) whose rates have exactly this correlation with the log of the sizes."""
    rng = np.random.default_rng(count)
    logs, noise = rng.normal(0, 1, (2, count))
    logs = (logs - logs.mean()) / logs.std()
    # Take out of the noise what it shares with the logs.
    noise -= noise.mean() + logs * (noise @ logs) / count
    noise /= noise.std()
    rates = correlation * logs + np.sqrt(1 - correlation**2) * noise
    sizes = np.exp(logs)
    return rates * sizes, sizes


@pytest.mark.parametrize(
    ("count", "correlation", "is_warned_of"),
    [
        (97, 0.25, False),
        (97, -0.35, True),
        (16, 0.45, False),
        (16, 0.55, True),
    ],
)
def test_a_correlation_is_warned_of_above_the_limit_and_its_own_noise(count, correlation, is_warned_of):
    """Above 0.3, and above twice its standard error 1 / √n."""
    values, sizes = values_of_correlation(count, correlation)

    found = size_correlation(np.append(values, 0), np.append(sizes, 0))  # a document of no bytes has no rate

    assert found == (pytest.approx(correlation) if is_warned_of else None)


# Several comparisons.


def adjusted(p_values) -> list:
    """Return p after Holm's correction."""
    estimates = [Estimate(0.1, p_value=p) for p in p_values]
    return [each.p_value for each in holm(estimates)]


def test_holm_equals_a_worked_example():
    assert adjusted([0.9, 0.6]) == [1.0, 1.0]
    assert adjusted([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])


# What a comparison could have shown.


def test_a_detectable_difference_is_shown_in_four_of_five_comparisons():
    rng = np.random.default_rng(2)
    detectable = []
    for _ in range(20):
        differences, sizes, document = items(rng, 60)
        found = difference_of_items(*sums_by(document, differences, sizes))
        detectable.append(detectable_difference(found))
    effect = np.mean(detectable)

    assert rate_of_rejections(60, effect=effect) == pytest.approx(POWER, abs=0.06)
    assert rate_of_rejections(60, effect=effect / 2) < 0.4


def test_the_detectable_difference_has_the_degrees_of_freedom_of_few_documents():
    """For documents of equal length they are those of the t-test. The normal quantile would give less."""
    rng = np.random.default_rng(5)
    sizes = np.full(9, 100)
    found = ratio_interval(rng.normal(0, 1, 9), sizes, rng, resamples=499)

    half_interval = (found.high - found.low) / 2
    spare = detectable_difference(found) - half_interval

    assert spare / found.se == pytest.approx(stdtrit(8, POWER))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(Estimate(0.1), id="no standard error"),
        pytest.param(Estimate(0.1, 0.0), id="no interval"),
        pytest.param(Estimate(0.0, 0.0, 0.0, 0.0, 1.0), id="no spread"),
    ],
)
def test_without_an_interval_nothing_is_said_about_power(found):
    assert detectable_difference(found) is None


# p as text.


def test_a_limit_of_p_is_not_shown_as_its_value():
    rng = np.random.default_rng(1)
    sizes = np.full(50, 100)
    far_from_zero = ratio_interval(rng.normal(9, 0.1, 50) * sizes, sizes, rng)

    corrected = holm([far_from_zero, far_from_zero])

    assert far_from_zero.p_value == 2 / 2000
    assert p_text(far_from_zero) == "≤ 0.001"
    assert [p_text(each) for each in corrected] == ["≤ 0.002", "≤ 0.002"]
    assert [p_text(Estimate(1.0, p_value=p)) for p in (0.0412, 1e-12, None)] == ["0.041", "< 0.0001", ""]

"""Statistics of comparisons equal printed tables and published examples, and keep their promises in simulations."""

import numpy as np
import pytest

from lm.evaluate.intervals import Estimate, ratio_interval
from tools.common.statistics import (
    MOST_UNITS,
    chi_square_quantile,
    clustered_difference,
    detectable_by_runs,
    detectable_difference,
    deviation,
    holm,
    p_text,
    power,
    size_correlation,
    student_t_p_value,
    student_t_quantile,
    units_needed,
    welch,
)


# Two-sided quantiles and tails of Student's t, from printed tables.
@pytest.mark.parametrize(
    ("confidence", "df", "t"), [(0.95, 1, 12.7062), (0.95, 4, 2.77645), (0.99, 10, 3.16927), (0.9, 1000, 1.64638)]
)
def test_student_t_equals_printed_tables(confidence, df, t):
    assert student_t_quantile(confidence, df) == pytest.approx(t, abs=2e-5)
    assert student_t_p_value(-t, df) == pytest.approx(1 - confidence, abs=1e-5)


def test_welch_equals_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    found = welch(np.array(b), np.array(a))
    assert found.value / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.value < found.high < 0


def test_a_single_run_gives_no_interval_over_seeds():
    found = welch(np.array([1.0]), np.array([1.5, 1.6]))
    assert found.value == pytest.approx(0.55) and found.se is found.low is found.p_value is None
    assert welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])).p_value is None


# Differences of items of documents.


def items(rng, documents: int, effect: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return B - A (N,) of right or wrong answers, sizes 1, and the document of each of 1 to 12 items.

    In each document one model is a little better, by chance; on average B is better by `effect`.
    """
    document = np.repeat(np.arange(documents), rng.integers(1, 13, documents))
    skill = rng.normal(0, 0.25, documents)[document]
    right = [rng.random(len(document)) < np.clip(0.5 + side * (effect + skill) / 2, 0, 1) for side in (-1, 1)]
    return right[1].astype(float) - right[0], np.ones(len(document)), document


def rejected(documents: int, by_item: bool, effect: float = 0.0) -> float:
    """Return the fraction of 600 simulations with p ≤ 0.05."""
    rng = np.random.default_rng(documents)
    found = []
    for _ in range(600):
        differences, sizes, document = items(rng, documents, effect)
        clusters = np.arange(len(document)) if by_item else document
        found.append(clustered_difference(differences, sizes, clusters).p_value)
    return float(np.mean(np.array(found) <= 0.05))


@pytest.mark.parametrize("documents", [12, 80])
def test_items_of_one_document_count_as_dependent(documents):
    """False positives within three standard errors of 5 %; with the items as independent there would be far more."""
    assert abs(rejected(documents, by_item=False) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 600)
    assert rejected(documents, by_item=True) > 0.12


def test_single_items_give_the_paired_t_test():
    differences = np.array([1, -1, 1, 1, 0, 1, 1, 0, 1, -1.0])
    found = clustered_difference(differences, np.ones(10), np.arange(10))
    assert found.se == pytest.approx(differences.std(ddof=1) / np.sqrt(10)) and found.value == pytest.approx(0.4)
    assert found.degrees_of_freedom == pytest.approx(9)
    assert clustered_difference(np.ones(10), np.ones(10), np.arange(10)).low is None, "no spread"


@pytest.mark.parametrize(
    ("differences", "has_interval"), [([1, 2, 1, 2, 1], False), ([1, 2, 1, 2, 1, 2], True), ([1, 2, 1, 2, 1, 0], False)]
)
def test_an_interval_needs_six_documents_that_differ(differences, has_interval):
    count = len(differences)
    found = clustered_difference(np.array(differences, float), np.ones(count), np.arange(count))
    assert (found.low is not None) == has_interval


@pytest.mark.parametrize(
    ("count", "correlation", "is_warned_of"),
    [(97, 0.25, False), (97, 0.35, True), (97, -0.35, True), (16, 0.45, False), (16, 0.55, True)],
)
def test_a_correlation_is_warned_of_above_the_limit_and_its_own_noise(count, correlation, is_warned_of):
    """Above 0.3, and above twice its standard error 1 / √n. A document of no bytes has no rate."""
    rng = np.random.default_rng(count)
    logs, noise = rng.normal(0, 1, (2, count))
    logs = (logs - logs.mean()) / logs.std()
    noise -= noise.mean() + logs * (noise @ logs) / count
    rates = correlation * logs + np.sqrt(1 - correlation**2) * noise / noise.std()
    sizes = np.append(np.exp(logs), 0)
    found = size_correlation(np.append(rates * sizes[:-1], 0), sizes)
    assert found == (pytest.approx(correlation) if is_warned_of else None)


# Several comparisons, and what one could have shown.


def test_holm_equals_a_worked_example():
    def adjusted(p_values):
        return [each.p_value for each in holm([Estimate(0.1, p_value=p) for p in p_values])]

    assert adjusted([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    assert adjusted([0.9, 0.6]) == [1.0, 1.0]


def test_a_detectable_difference_is_shown_in_four_of_five_comparisons():
    rng = np.random.default_rng(2)
    detectable = np.mean([detectable_difference(clustered_difference(*items(rng, 60))) for _ in range(20)])
    assert rejected(60, False, detectable) == pytest.approx(0.8, abs=0.06)
    assert rejected(60, False, detectable / 2) < 0.4


def test_the_detectable_difference_has_the_degrees_of_freedom_of_few_documents():
    """For documents of equal length they are those of the t-test. The normal quantile would give less."""
    rng = np.random.default_rng(5)
    sizes = np.full(9, 100)
    found = ratio_interval(rng.normal(0, 1, 9), sizes, rng, resamples=499)
    spare = (detectable_difference(found) - (found.high - found.low) / 2) / found.se
    assert spare == pytest.approx(student_t_quantile(0.6, 8))


@pytest.mark.parametrize(("effect", "seeds"), [(4.0, 3), (1.5, 9), (0.7, 34)])
def test_the_seeds_needed_are_those_of_the_t_test(effect, seeds):
    """Seeds of each side for a difference in standard deviations, from tables of the two-sample t-test (Cohen 1988)."""
    values = np.array([-1.0, 0.0, 1.0])
    found = welch(values, values + effect)
    needed = units_needed(found, 3, 2)
    assert needed == pytest.approx(seeds, abs=1)
    assert f"a true difference of {detectable_difference(found):.4f} would" in power(found, 3, "seeds", 2, 2)
    assert f"one of {effect:.4f} needs about {needed} seeds." in power(found, 3, "seeds", 2, 2)
    assert "needs" not in power(found, 3, "seeds", 2, needed + 1)


def test_without_an_interval_nothing_is_said_about_power():
    for found in (Estimate(0.1), Estimate(0.1, 0.0), Estimate(0.0, 0.0, 0.0, 0.0, 1.0)):
        assert detectable_difference(found) is units_needed(found, 9, 2) is None
        assert power(found, 9, "seeds", 2, 2) == ""
    tiny = Estimate(1e-9, 1.0, -2.0, 2.0, 1.0, 8.0)
    assert units_needed(tiny, 9, 2) == MOST_UNITS + 1 and "more than 1,000,000 seeds" in power(tiny, 9, "seeds", 2, 2)
    assert units_needed(Estimate(9.0, 1.0, 7.0, 11.0, 0.0, 8.0), 9, 6) == 6


# What the deviation over seeds says.


@pytest.mark.parametrize(
    ("probability", "df", "x"),
    [(0.95, 1, 3.84146), (0.025, 2, 0.0506356), (0.975, 4, 11.1433), (0.025, 9, 2.70039), (0.95, 100, 124.342)],
)
def test_chi_square_equals_printed_tables(probability, df, x):
    assert chi_square_quantile(probability, df) == pytest.approx(x, rel=2e-5)


def test_the_interval_of_a_deviation_contains_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(3)

    found = [deviation(rng.normal(1.3, 0.01, 4), 0.9) for _ in range(2000)]

    inside = [each.low <= 0.01 <= each.high for each in found]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)


def test_two_seeds_have_a_deviation_and_no_interval():
    found = deviation(np.array([1.0, 1.2]))
    assert found.value == pytest.approx(0.2 / np.sqrt(2)) and found.num_seeds == 2
    assert found.low is found.high is None


@pytest.mark.parametrize("runs", [2, 5])
def test_the_difference_that_new_runs_could_show_is_that_of_a_comparison_with_this_noise(runs):
    """Two sides of `runs` values with the same deviation, compared by Welch's t."""
    values = np.random.default_rng(4).normal(1.3, 0.01, runs)
    found = welch(values, values + 0.5, 0.9)
    assert detectable_by_runs(values.std(ddof=1), 99, runs, 0.9) == pytest.approx(
        (found.high - found.low) / 2 + found.se * student_t_quantile(0.6, found.degrees_of_freedom)
    )


def test_one_run_of_each_side_shows_the_detectable_difference_in_four_of_five_cases():
    """The difference of two runs is judged by the deviation of five others."""
    rng = np.random.default_rng(6)
    detectable = detectable_by_runs(1.0, 4, 1)
    noise = rng.normal(0, 1, (4000, 5)).std(axis=1, ddof=1)
    differences = detectable + rng.normal(0, np.sqrt(2), 4000)

    is_shown = np.abs(differences) / (noise * np.sqrt(2)) > student_t_quantile(0.95, 4)

    assert np.mean(is_shown) == pytest.approx(0.8, abs=0.03)


def test_a_limit_of_p_is_not_shown_as_its_value():
    rng = np.random.default_rng(1)
    sizes = np.full(50, 100)
    far = ratio_interval(rng.normal(9, 0.1, 50) * sizes, sizes, rng)
    assert far.p_value == 2 / 2000 and p_text(far) == "≤ 0.001"
    assert [p_text(each) for each in holm([far, far])] == ["≤ 0.002", "≤ 0.002"]
    for p_value, text in ((0.0412, "0.041"), (1e-4, "0.0001"), (1e-12, "< 0.0001"), (None, "")):
        assert p_text(Estimate(1.0, p_value=p_value)) == text

"""Statistics of comparisons equal printed tables and published examples, and keep their promises in simulations."""

import numpy as np
import pytest

from lm.evaluate.intervals import Estimate, ratio_interval
from tools.common import statistics
from tools.common.statistics import (
    MOST_UNITS,
    clustered_difference,
    detectable_difference,
    holm,
    p_text,
    power,
    size_correlation,
    student_t_p_value,
    student_t_quantile,
    sum_by_cluster,
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


# Simulated differences of items: how often a test rejects, and whether intervals hold.


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
    rng, found = np.random.default_rng(documents), []
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


def test_the_clustered_interval_contains_the_true_difference():
    rng, held = np.random.default_rng(3), []
    for _ in range(600):
        found = clustered_difference(*items(rng, 40, 0.1))
        held.append(found.low <= 0.1 <= found.high)
    assert abs(np.mean(held) - 0.95) < 3 * np.sqrt(0.05 * 0.95 / 600)


def test_single_items_give_the_paired_t_test():
    differences = np.array([1, -1, 1, 1, 0, 1, 1, 0, 1, -1.0])
    found = clustered_difference(differences, np.ones(10), np.arange(10))
    assert found.se == pytest.approx(differences.std(ddof=1) / np.sqrt(10)) and found.value == pytest.approx(0.4)
    assert found.degrees_of_freedom == pytest.approx(9)
    assert clustered_difference(differences, np.ones(10), np.arange(10) // 2).low is None, "five documents differ"
    assert clustered_difference(np.ones(10), np.ones(10), np.arange(10)).low is None, "no spread"


def adjusted(p_values: list[float | None]) -> list[float | None]:
    return [each.p_value for each in holm([Estimate(0.1, p_value=p) for p in p_values])]


def test_holm_equals_a_worked_example_and_holds_the_error_of_the_family():
    assert adjusted([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    p_values = np.random.default_rng(1).random((2000, 10))
    p_values[:, :3] = 1e-9  # three differences are real: they do not make errors in the other seven more frequent
    wrong = np.mean([min(adjusted(row.tolist())[3:]) <= 0.05 for row in p_values])
    assert abs(wrong - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert np.mean(p_values[:, 3:].min(axis=1) <= 0.05) > 0.25, "without the correction"


def test_a_detectable_difference_is_shown_in_four_of_five_comparisons():
    rng = np.random.default_rng(2)
    detectable = np.mean([detectable_difference(clustered_difference(*items(rng, 60))) for _ in range(20)])
    assert rejected(60, False, detectable) == pytest.approx(0.8, abs=0.06)
    assert rejected(60, False, detectable / 2) < 0.4


@pytest.mark.parametrize(("effect", "seeds"), [(4.0, 3), (1.5, 9), (0.7, 34)])
def test_the_seeds_needed_are_those_of_the_t_test(effect, seeds):
    """Seeds of each side for a difference in standard deviations, from tables of the two-sample t-test (Cohen 1988)."""
    values = np.array([-1.0, 0.0, 1.0])
    assert units_needed(welch(values, values + effect), 3, 2) == pytest.approx(seeds, abs=1)


def test_without_an_interval_nothing_is_said_about_power():
    for found in (Estimate(0.1), Estimate(0.1, 0.0), Estimate(0.0, 0.0, 0.0, 0.0, 1.0)):
        assert detectable_difference(found) is units_needed(found, 9, 2) is None
    assert units_needed(Estimate(1e-9, 1.0, -2.0, 2.0, 1.0, 8.0), 9, 2) == MOST_UNITS + 1
    assert units_needed(Estimate(9.0, 1.0, 7.0, 11.0, 0.0, 8.0), 9, 6) == 6


# What a difference over documents could have shown.


@pytest.mark.parametrize("documents", [4, 9])
def test_the_detectable_difference_has_the_degrees_of_freedom_of_few_documents(documents):
    """Of documents of equal length, those of the t-test; with the normal quantile it would be smaller."""
    rng, sizes = np.random.default_rng(5), np.full(documents, 100)
    found = ratio_interval(rng.normal(0, 1, documents), sizes, rng, resamples=499)
    assert found.degrees_of_freedom == pytest.approx(documents - 1)
    spare = (detectable_difference(found) - (found.high - found.low) / 2) / found.se
    assert spare == pytest.approx(student_t_quantile(0.6, documents - 1)) and spare > 0.8416 + 0.03


# The bounds are what docs/metrics.md says of power, four standard errors of 200 corpora wider.
@pytest.mark.parametrize(("lengths", "least", "most"), [("equal", 0.69, 0.91), ("heavy-tailed", 0.4, 0.8)])
def test_how_often_a_detectable_difference_is_shown(lengths, least, most):
    rng, shown = np.random.default_rng(7), []

    def corpus(shift: float) -> Estimate:
        sizes = np.full(97, 1000.0) if lengths == "equal" else 1000 * (1 + rng.pareto(1.2, 97))
        return ratio_interval(rng.normal(shift, 0.1, 97) * sizes, sizes, rng, resamples=299)

    for _ in range(200):
        detectable = detectable_difference(corpus(0.0))
        p_value = corpus(detectable).p_value
        shown.append(p_value is None or p_value <= 0.05)  # None: the difference dwarfs the spread
    assert least <= np.mean(shown) <= most


def test_a_difference_that_depends_on_the_size_is_noticed():
    """There an interval over documents is too narrow: it contains the true value in far fewer than 95 %."""
    rng, held, noticed = np.random.default_rng(6), [], []
    for _ in range(300):
        logs = rng.normal(7, 1.5, 97)
        sizes, rates = np.exp(logs), 0.1 * (logs - 7) / 1.5 + rng.normal(0, 0.1, 97)
        truth = 0.1 * 1.5  # the mean of rates weighted by the sizes of a lognormal distribution
        found = clustered_difference(rates * sizes, sizes, np.arange(97))
        held.append(found.low <= truth <= found.high)
        noticed.append(size_correlation(rates * sizes, sizes) is not None)
    assert np.mean(held) < 0.9 and np.mean(noticed) > 0.95
    quiet = [size_correlation(rng.normal(0, 0.1, 97) * sizes, sizes) is not None for _ in range(300)]
    assert np.mean(quiet) < 0.05
    assert size_correlation(np.arange(5.0), np.full(5, 10)) is None, "equal sizes"


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


def test_the_least_number_of_documents_that_differ_gives_an_interval():
    for differences, has_interval in (
        ([1, 2, 1, 2, 1], False),
        ([1, 2, 1, 2, 1, 2], True),
        ([1, 2, 1, 2, 1, 0], False),
    ):
        found = clustered_difference(
            np.array(differences, float), np.ones(len(differences)), np.arange(len(differences))
        )
        assert (found.low is not None) == has_interval


def test_p_after_the_correction_is_at_most_1():
    assert adjusted([0.9, 0.6]) == [1.0, 1.0]


def test_how_many_units_a_difference_needs_is_said_where_they_are_many(monkeypatch):
    found = welch(np.array([1.0, 1.1, 1.2]), np.array([1.3, 1.35, 1.45]))
    shown = f" With 3 seeds, a true difference of {detectable_difference(found):.4f} would be shown in about 80 % of"
    for needed, said in (
        (9, "comparisons."),
        (10, f"comparisons; one of {found.value:.4f} needs about 10 seeds."),
        (MOST_UNITS + 1, f"comparisons; one of {found.value:.4f} needs more than 1,000,000 seeds."),
    ):
        monkeypatch.setattr(statistics, "units_needed", lambda *given, needed=needed: needed)
        assert power(found, 3, "seeds", 2, 10) == f"{shown} {said}"


def test_the_units_needed_are_the_fewest_that_detect_the_difference():
    """With as many units as are needed the detectable difference is the measured one; with one fewer it is larger."""
    rng = np.random.default_rng(4)
    differences = rng.normal(0.02, 0.1, 30)
    found = clustered_difference(differences, np.ones(30), np.arange(30))
    needed = units_needed(found, 30, 6)

    def detectable(count: int) -> float:
        se = found.se * np.sqrt(30 / count)
        return se * (student_t_quantile(0.95, count - 1) + student_t_quantile(0.6, count - 1))

    assert needed > 30 and detectable(needed) <= abs(found.value) < detectable(needed - 1)


def test_items_are_summed_by_document():
    sums, totals = sum_by_cluster(np.array([1.0, 2, 4]), np.array([1.0, 1, 3]), np.array(["b", "a", "b"]))
    assert sums.tolist() == [2, 5] and totals.tolist() == [1, 4]


def test_a_limit_of_p_is_not_shown_as_its_value():
    sizes = np.full(50, 100)
    rng = np.random.default_rng(1)
    far = ratio_interval(rng.normal(9, 0.1, 50) * sizes, sizes, rng)
    assert far.p_value == 2 / 2000 and p_text(far) == "≤ 0.001"
    assert [p_text(each) for each in holm([far, far])] == ["≤ 0.002", "≤ 0.002"]
    near = ratio_interval(rng.normal(0, 0.1, 50) * sizes, sizes, rng)
    assert p_text(near) == f"{near.p_value:.2g}"
    assert p_text(Estimate(1.0, p_value=1e-4)) == "0.0001" and p_text(Estimate(1.0, p_value=5.04e-4)) == "0.0005"
    assert p_text(Estimate(1.0)) == "" and p_text(Estimate(1.0, p_value=1e-12)) == "< 0.0001"

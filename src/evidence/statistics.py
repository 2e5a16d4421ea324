"""Differences over training seeds and over items of documents, what several of them show, and what they could show."""

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evidence.distributions import chi_square_quantile, student_t_p_value, student_t_quantile
from evidence.intervals import Estimate, studentized

POWER = 0.8  # of tests that show a difference of the detectable size, the convention since Cohen (1988)
CORRELATED = 0.3  # with the log of the size, from which a report warns
LEAST_DIFFERENT = 6  # clusters: if all of five fall on one side, the exact sign test has p = 2 / 2^5 > 0.05
MOST_UNITS = 10**6  # above which nobody wants to know how many
LEAST_SEEDS = 3  # from whose standard deviation a report extrapolates


def bits_per_byte(nats: np.ndarray, utf8_bytes: np.ndarray) -> float:
    """Return Σ nats / ln 2 / Σ bytes over documents (D,)."""
    return float(nats.sum() / math.log(2) / utf8_bytes.sum())


def welch(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return mean(b) - mean(a) of independent runs, one value for each seed, with possibly unequal variances.

    Welch's t with Satterthwaite's degrees of freedom (Welch 1947). The result has no interval if one side has a
    single run, or if all values of each side are equal.
    """
    delta = float(np.mean(b) - np.mean(a))
    if min(len(a), len(b)) < 2:
        return Estimate(delta)
    of_a, of_b = (float(np.var(values, ddof=1)) / len(values) for values in (a, b))  # squared standard errors
    variance = of_a + of_b
    if not variance:
        return Estimate(delta, 0.0)
    df = variance**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    return _student_t(delta, math.sqrt(variance), df, confidence)


def clustered_difference(
    differences: np.ndarray, sizes: np.ndarray, clusters: np.ndarray, confidence: float = 0.95
) -> Estimate:
    """Return Σ differences / Σ sizes over the items (N,) that two models answered, as an estimate for other clusters.

    `differences` are B - A, `sizes` what an item counts (1, or its bytes), `clusters` name what an item belongs to,
    such as its document. Items of one cluster depend on each other, so only the sums of clusters are independent: the
    standard error is the clustered one of paired differences (Miller 2024, arXiv 2411.00640), corrected for few and for
    unequal clusters, with Student's t (`studentized`). If fewer than LEAST_DIFFERENT clusters differ, there is no
    interval. It is too narrow where the rate of a cluster depends on its size (`size_correlation`): a 95 % interval
    contained the true value in 82 % of simulated corpora.
    """
    sums, totals = sum_by_cluster(differences, sizes, clusters)
    value = float(sums.sum() / totals.sum())
    if np.count_nonzero(sums) < LEAST_DIFFERENT:
        return Estimate(value)
    _, se, df = (float(each) for each in studentized(sums, totals, 0.0))
    if se <= 1e-9 * abs(value):  # all clusters have the same rate
        return Estimate(value, se)
    return _student_t(value, se, df, confidence)


def sum_by_cluster(differences: np.ndarray, sizes: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ differences and Σ sizes (C,) of the items (N,) of each cluster."""
    _, cluster = np.unique(clusters, return_inverse=True)
    return np.bincount(cluster, differences), np.bincount(cluster, sizes)


def size_correlation(values: np.ndarray, sizes: np.ndarray) -> float | None:
    """Return the correlation of the rates values / sizes (N,) with the log of the sizes, if it is one to warn of."""
    keep = sizes > 0
    rates = values[keep] / sizes[keep]
    logs = np.log(sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None


def p_text(found: Estimate) -> str:
    """Return the p-value of an estimate as text, with ≤ or < where only a limit is known."""
    if found.p_value is None:
        return ""
    if found.p_is_bound:
        return f"≤ {found.p_value:.2g}"
    return "< 0.0001" if found.p_value < 1e-4 else f"{found.p_value:.2g}"


def holm(found: Sequence[Estimate]) -> list[Estimate]:
    """Return the estimates of several comparisons with p-values that allow for their number (Holm 1979).

    The k-th smallest of m p-values is multiplied by m - k + 1, and is at least as large as the one before it. If no two
    runs differ, the chance that any of the comparisons has p ≤ 0.05 is then at most 5 %. Estimates without a p-value
    stay as they are.
    """
    tested = sorted((each.p_value, i) for i, each in enumerate(found) if each.p_value is not None)
    adjusted = list(found)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        multiplied = (len(tested) - rank) * p
        largest = max(largest, min(1.0, multiplied))
        adjusted[i] = found[i]._replace(p_value=largest)
    return adjusted


def detectable_difference(found: Estimate) -> float | None:
    """Return the smallest true difference that such a comparison shows with a probability of about POWER.

    It is (t(1 - α/2) + t(POWER)) standard errors (Bloom 1995): half the interval, whose confidence is 1 - α, and what
    the estimate falls short of the truth in POWER of the cases, with the degrees of freedom of the standard error.
    Where few documents hold most of the bytes, the probability is lower (docs/metrics.md). None if unknown.
    """
    if not found.se or found.low is None or found.high is None or found.degrees_of_freedom is None:
        return None
    spare = student_t_quantile(2 * POWER - 1, found.degrees_of_freedom)
    return (found.high - found.low) / 2 + found.se * spare


class Deviation(NamedTuple):
    """The standard deviation of independent runs over seeds; no interval with fewer than LEAST_SEEDS values."""

    value: float
    low: float | None
    high: float | None
    degrees_of_freedom: int

    @property
    def num_seeds(self) -> int:
        return self.degrees_of_freedom + 1


def deviation(values: np.ndarray, confidence: float = 0.95) -> Deviation:
    """Return the standard deviation of at least two values, with its equal-tailed interval for normal ones.

    With df = n - 1, (df · s²) / σ² has the chi-square distribution.
    """
    df = len(values) - 1
    value = float(np.std(values, ddof=1))
    if len(values) < LEAST_SEEDS:
        return Deviation(value, None, None, df)
    tail = (1 - confidence) / 2
    low = value * math.sqrt(df / chi_square_quantile(1 - tail, df))
    high = value * math.sqrt(df / chi_square_quantile(tail, df))
    return Deviation(value, low, high, df)


def detectable_by_runs(
    standard_deviation: float, degrees_of_freedom: int, runs: int, confidence: float = 0.95
) -> float:
    """Return the `detectable_difference` of `runs` new runs of each side, whose seeds differ by this deviation.

    With two runs or more, their own deviation decides (Welch's t of two equal sides, 2 · runs - 2 degrees of freedom).
    One run of each side has none, so the known deviation decides, with its `degrees_of_freedom`.
    """
    df = 2 * runs - 2 if runs > 1 else degrees_of_freedom
    se = standard_deviation * math.sqrt(2 / runs)
    return se * (student_t_quantile(confidence, df) + student_t_quantile(2 * POWER - 1, df))


def units_needed(found: Estimate, num_units: int, least: int, num_means: int) -> int | None:
    """Return how many units make the difference that `num_units` of them gave the detectable one; None if unknown.

    Units are documents (with one mean, of the paired differences), or seeds of each side (two means); the answer is
    from `least` to MOST_UNITS + 1. The standard error falls with the square root of their number, and both t of
    `detectable_difference` with the degrees of freedom: of n units for each mean, `num_means` · (n - 1).
    """
    detectable = detectable_difference(found)
    df = found.degrees_of_freedom
    if detectable is None or df is None or not found.value:
        return None

    def is_enough(count: int) -> bool:
        df_then = max(1.0, (df + num_means) * count / num_units - num_means)
        detectable_then = detectable * math.sqrt(num_units / count) * _both_t(df_then) / _both_t(df)
        return detectable_then <= abs(found.value)

    return least + bisect.bisect_left(range(least, MOST_UNITS + 1), True, key=is_enough)


def power(found: Estimate, num_units: int, units: str, least: int, least_named: int, num_means: int) -> str:
    """Return what a comparison of `num_units` units could have shown, as a sentence after a space, or "".

    How many units the measured difference needs, `least` or more, is said from `least_named` on.
    """
    detectable = detectable_difference(found)
    needed = units_needed(found, num_units, least, num_means)
    if detectable is None or needed is None:
        return ""
    shown = f"With {num_units:,} {units}, a true difference of {detectable:.4f} would be shown in about"
    shown += f" {100 * POWER:g} % of comparisons"
    if needed < least_named:
        return f" {shown}."
    count = f"about {needed:,}" if needed <= MOST_UNITS else f"more than {MOST_UNITS:,}"
    return f" {shown}; one of {abs(found.value):.4f} needs {count} {units}."


def _student_t(value: float, se: float, df: float, confidence: float) -> Estimate:
    """Return the estimate of a value whose standard error has `df` degrees of freedom."""
    half = se * student_t_quantile(confidence, df)
    return Estimate(value, se, value - half, value + half, student_t_p_value(value / se, df), df)


def _both_t(df: float) -> float:
    """Return t(0.975) + t(POWER), the detectable difference in standard errors."""
    return student_t_quantile(0.95, df) + student_t_quantile(2 * POWER - 1, df)

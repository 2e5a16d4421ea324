"""The noise of seeds, and the smallest difference that a comparison or further runs would show."""

import bisect
import math
from typing import NamedTuple

import numpy as np

from evidence.distributions import chi_square_quantile, student_t_quantile
from evidence.intervals import Estimate

POWER = 0.8  # of tests that show a difference of the detectable size, the convention since Cohen (1988)
MOST_UNITS = 10**6  # above which nobody wants to know how many
LEAST_SEEDS = 3  # from whose standard deviation a report extrapolates


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


def detectable_by_runs(
    standard_deviation: float, degrees_of_freedom: int, runs: int, confidence: float = 0.95, num_means: int = 2
) -> float:
    """Return the `detectable_difference` of `runs` new runs of each side, whose seeds differ by this deviation.

    With two runs or more, their own deviation decides (Welch's t of two equal sides, 2 · runs - 2 degrees of freedom).
    One run of each side has none, so the known deviation decides, with its `degrees_of_freedom`. If the deviation is
    that of the differences of pairs, there is one mean instead of two.
    """
    df = num_means * (runs - 1) if runs > 1 else degrees_of_freedom
    se = standard_deviation * math.sqrt(num_means / runs)
    return se * (student_t_quantile(confidence, df) + student_t_quantile(2 * POWER - 1, df))


def units_needed(found: Estimate, num_units: int, least: int, num_means: int) -> int | None:
    """Return how many units make the difference that `num_units` of them gave the detectable one; None if unknown.

    Units are documents or pairs of seeds (with one mean, of the differences), or seeds of each side (two means); the
    answer is from `least` to MOST_UNITS + 1. The standard error falls with the square root of their number, and both t
    of `detectable_difference` with the degrees of freedom: of n units for each mean, `num_means` · (n - 1).
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


def _both_t(df: float) -> float:
    """Return t(0.975) + t(POWER), the detectable difference in standard errors."""
    return student_t_quantile(0.95, df) + student_t_quantile(2 * POWER - 1, df)

"""The noise of seeds, and the smallest difference that a comparison or further runs would show."""

import bisect
import math
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtrit

from evidence.difference import Comparison, differences_of_pairs
from evidence.intervals import Estimate

POWER = 0.8  # of tests that show a difference of the detectable size, the convention since Cohen (1988)
MOST_UNITS = 10**6  # above which nobody wants to know how many
LEAST_SEEDS = 3  # from whose standard deviation a report extrapolates
SEEDS_OF_EACH_SIDE = (2, 3, 5, 10)


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
    low = value * math.sqrt(df / chdtri(df, tail))
    high = value * math.sqrt(df / chdtri(df, 1 - tail))
    return Deviation(value, low, high, df)


def detectable_difference(found: Estimate) -> float | None:
    """Return the smallest true difference that such a comparison shows with a probability of about POWER.

    It is (t(1 - α/2) + t(POWER)) standard errors (Bloom 1995): half the interval, whose confidence is 1 - α, and what
    the estimate falls short of the truth in POWER of the cases, with the degrees of freedom of the standard error.
    Where few documents hold most of the bytes, the probability is lower (docs/metrics.md). None if unknown.
    """
    if not found.se or found.low is None or found.high is None or found.degrees_of_freedom is None:
        return None
    spare = stdtrit(found.degrees_of_freedom, POWER)
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
    return se * (stdtrit(df, (1 + confidence) / 2) + stdtrit(df, POWER))


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
    return stdtrit(df, 0.975) + stdtrit(df, POWER)


class Detectable(NamedTuple):
    """The smallest difference that some numbers of seeds would show."""

    is_of_pairs: bool  # of equal seeds, whose spread is known; otherwise of independent runs
    differences: dict[int, float]  # seeds of each side → difference; {} if the noise is unknown


def detectable_by_seeds(comparison: Comparison, confidence: float) -> Detectable:
    """Return what other numbers of seeds would show; unknown with fewer than LEAST_SEEDS seeds.

    The noise is the standard deviation of the differences of pairs, if LEAST_SEEDS or more are known. Otherwise it is
    that over seeds, pooled over the sides with LEAST_SEEDS or more, as if seeds moved the sides independently.
    """
    a = comparison.sides.whole_a
    b = comparison.sides.whole_b
    if comparison.is_of_one_configuration:
        return Detectable(False, {})
    pairs = differences_of_pairs(a, b)
    is_of_pairs = len(pairs) >= LEAST_SEEDS
    samples = [pairs] if is_of_pairs else [side.scores for side in (a, b) if len(side.runs) >= LEAST_SEEDS]
    noise, df = pooled_deviation(samples)
    if not noise:
        return Detectable(is_of_pairs, {})
    num_means = 1 if is_of_pairs else 2
    differences = {seeds: detectable_by_runs(noise, df, seeds, confidence, num_means) for seeds in SEEDS_OF_EACH_SIDE}
    return Detectable(is_of_pairs, differences)


def pooled_deviation(samples: list[np.ndarray]) -> tuple[float, int]:
    """Return the pooled standard deviation of samples of at least two values, and its degrees of freedom."""
    degrees_of_freedom = sum(len(values) - 1 for values in samples)
    squares = sum((len(values) - 1) * float(np.var(values, ddof=1)) for values in samples)
    return (math.sqrt(squares / degrees_of_freedom) if squares else 0.0), degrees_of_freedom

"""The spread over seeds, and the smallest difference that numbers of seeds would show."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, chdtri, nctdtr, stdtrit

from evidence.difference import Difference
from evidence.runs import Group

POWER = 0.8  # of tests that show a difference of the detectable size, the convention since Cohen (1988)
LEAST_SEEDS = 3  # from whose spread anything is extrapolated
SEEDS_OF_EACH_SIDE = (2, 3, 5, 10)
SPLITS = (np.arange(64) + 0.5) / 64  # probabilities of the ways in which two sides share their squares


class Spread(NamedTuple):
    """A variance over seeds and its degrees of freedom."""

    variance: float
    degrees_of_freedom: int

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the ends of the interval of the standard deviation: df · s² / σ² has the chi-square distribution."""
        df = self.degrees_of_freedom
        tail = (1 - confidence) / 2
        return self.sd * math.sqrt(df / chdtri(df, tail)), self.sd * math.sqrt(df / chdtri(df, 1 - tail))


def spread_of(values: np.ndarray) -> Spread:
    """Return the spread of at least two values."""
    return Spread(float(np.var(values, ddof=1)), len(values) - 1)


def pooled(spreads: Sequence[Spread]) -> Spread:
    """Return the spread of several samples that spread alike; both numbers are 0 if there are none."""
    df = sum(each.degrees_of_freedom for each in spreads)
    sum_of_squares = sum(each.variance * each.degrees_of_freedom for each in spreads)
    return Spread(sum_of_squares / df if df else 0.0, df)


# The power of the tests of difference.py.


def power(ratio: float, seeds: int, are_pairs: bool, confidence: float) -> float:
    """Return the probability that a true difference of `ratio` standard deviations is shown.

    By `paired`, in deviations of the pairs; or by `welch`, with `seeds` of each side, in deviations of either side. The
    tail of a significant difference in the wrong direction is below 1e-4, and left out.

    Welch's t has the noncentral distribution of Student's t with equal numbers of seeds, but degrees of freedom that
    depend on the fraction that one side has of all squares. It has a beta distribution and is independent of their
    total, so the result is the mean over the fractions.
    """
    df = seeds - 1
    upper = (1 + confidence) / 2
    if are_pairs:
        critical = stdtrit(df, upper)
        noncentrality = ratio * math.sqrt(seeds)
    else:
        fraction = betaincinv(df / 2, df / 2, SPLITS)
        critical = stdtrit(df / (fraction**2 + (1 - fraction) ** 2), upper)
        noncentrality = ratio * math.sqrt(seeds / 2)
        df = 2 * df
    below = np.nan_to_num(nctdtr(df, noncentrality, critical), nan=0.0)  # SciPy has NaN for very large noncentralities
    return float(np.mean(1 - below))


def detectable_ratio(seeds: int, are_pairs: bool, confidence: float) -> float:
    """Return the smallest difference that is shown with probability POWER, in standard deviations, by bisection.

    Each side has `seeds` runs.
    """
    low = 0.0
    high = 1024.0
    for _ in range(60):
        middle = (low + high) / 2
        if power(middle, seeds, are_pairs, confidence) < POWER:
            low = middle
        else:
            high = middle
    return high


# What more seeds would show.


class Power(NamedTuple):
    """The smallest differences that numbers of seeds would show, if the true spread is the measured one."""

    are_pairs: bool  # the spread is that of differences of equal seeds; otherwise that over the seeds of each side
    standard_deviation: float
    low: float  # ends of its interval; the differences may be larger or smaller by the same factor
    high: float
    detectable: dict[int, float]  # seeds of each side → difference


def what_more_seeds_show(found: Difference) -> Power | None:
    """Return what other numbers of seeds would show; None with fewer than LEAST_SEEDS seeds.

    The spread is that of the differences of equal seeds if LEAST_SEEDS are common, otherwise that over seeds of the
    groups with LEAST_SEEDS or more, also of runs without a partner.
    """
    if found.are_pairs and len(found.a.runs) >= LEAST_SEEDS:
        return _power(spread_of(found.b.scores - found.a.scores), True, found.options.confidence)
    return noise_of([found.whole_a, found.whole_b], found.options.confidence)


def noise_of(groups: Sequence[Group], confidence: float) -> Power | None:
    """Return the spread over the seeds of groups, each of LEAST_SEEDS or more, and what more of them would show."""
    spreads = [spread_of(group.scores) for group in groups if len(group.runs) >= LEAST_SEEDS]
    return _power(pooled(spreads), False, confidence)


def _power(spread: Spread, are_pairs: bool, confidence: float) -> Power | None:
    if not spread.variance:
        return None
    detectable = {n: spread.sd * detectable_ratio(n, are_pairs, confidence) for n in SEEDS_OF_EACH_SIDE}
    return Power(are_pairs, spread.sd, *spread.interval(confidence), detectable)

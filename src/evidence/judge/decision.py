"""From the losses of two sides to an answer: keep, reject or undecided.

A seed decides the first weights and the order of the text, so runs of both sides with the same seed are often lucky
together. Their differences, the pairs, then have a fraction of the spread. A large change moves this luck, and pairs
gain nothing. So both are tried: the mean of the pairs, and the difference of the two means over all seeds of each side.
What has the smaller standard error counts.

A few runs tell little about their own spread, so the variance is moderated: it is a mean with the variance of the
night's other pairs, or sides, which counts as a few degrees of freedom (Smyth 2004, Statistical Applications in
Genetics and Molecular Biology 3, with a fixed weight). One that is far wider than the others (F test) is
judged by its own spread alone, and does not widen the noise of others.
"""

import math
from typing import NamedTuple

from scipy.special import fdtrc, stdtr

LOOKS = (2, 5, 12)  # seeds of the candidate after which a judgement may end
KEEP_FROM = 5  # seeds; fewer may say that a change is worth more runs, not that it is better
MOST_SEEDS = LOOKS[-1]
WIDE = 0.02  # the level of the F test by which a spread is far wider than the others
MOST_POOLED = {"pairs": 4, "sides": 16}  # degrees of freedom as which the spread of the others counts at most
HOPE = 0.7  # standard errors by which the true gain may be larger than the measured one
DIGITS = 8  # after the point, of the figures that are recorded and from which the answer follows


class Figures(NamedTuple):
    """What the runs of two sides gave, in the unit of the losses; differences are candidate - base.

    A side has `seeds` runs of the candidate, with seeds that the base has too, and `base_seeds` of the base. The
    interval over documents is the 95 % one of the pairs' mean; None if the documents are too few.
    """

    seeds: int
    base_seeds: int
    base_mean: float
    candidate_mean: float
    pairs_mean: float
    base_sd: float  # over seeds
    candidate_sd: float
    pairs_sd: float
    documents_low: float | None
    documents_high: float | None

    @property
    def sides_difference(self) -> float:
        return self.candidate_mean - self.base_mean


class Pool(NamedTuple):
    """The spread of a night's other pairs, or sides: a pooled variance and its degrees of freedom; 0 if none."""

    variance: float
    degrees_of_freedom: int

    def joined(self, sd: float, seeds: int) -> "Pool":
        """Add the standard deviation of one more side with `seeds` runs, as an analysis of variance pools them."""
        df = self.degrees_of_freedom + seeds - 1
        return Pool((self.variance * self.degrees_of_freedom + sd**2 * (seeds - 1)) / df, df)


EMPTY = Pool(0.0, 0)


class Spread(NamedTuple):
    """A variance over seeds and its degrees of freedom, after the others were taken into account."""

    variance: float
    degrees_of_freedom: float
    is_wide: bool  # far wider than the others, which then do not count


class Measured(NamedTuple):
    """A difference, its standard error and degrees of freedom, and from what: pairs or sides."""

    method: str
    difference: float
    standard_error: float
    degrees_of_freedom: float


class Decision(NamedTuple):
    """The answer, and what it follows from; `p` is that of one side: how often noise alone is as much better."""

    measured: Measured
    p: float
    level: float
    answer: str  # keep, reject or undecided
    more_seeds: int  # of the candidate, that an undecided judgement asks for
    reason: str
    has_wide_pairs: bool
    has_wide_candidate: bool


def moderated(sd: float, seeds: int, pool: Pool, most_pooled: int) -> Spread:
    """Return a variance between that of `seeds` values with deviation `sd` and that of the pool."""
    own = sd**2
    df = seeds - 1
    if pool.variance:
        is_wide = bool(fdtrc(df, pool.degrees_of_freedom, own / pool.variance) < WIDE)
        if is_wide:
            return Spread(own, df, True)
    weight = min(most_pooled, pool.degrees_of_freedom)
    return Spread((weight * pool.variance + df * own) / (weight + df), weight + df, False)


def measure(figures: Figures, pairs: Pool, sides: Pool) -> tuple[Measured, Spread, Spread]:
    """Return the difference with the smaller standard error, and the spreads of the pairs and of the candidate."""
    seeds = figures.seeds
    of_pairs = moderated(figures.pairs_sd, seeds, pairs, MOST_POOLED["pairs"])
    of_base = moderated(figures.base_sd, figures.base_seeds, sides, MOST_POOLED["sides"])

    # The base is one of the sides that the candidate is like, or far wider than.
    with_base = sides.joined(figures.base_sd, figures.base_seeds)
    of_candidate = moderated(figures.candidate_sd, seeds, with_base, MOST_POOLED["sides"])

    # Take the difference that is known better.
    by_pairs = Measured("pairs", figures.pairs_mean, math.sqrt(of_pairs.variance / seeds), of_pairs.degrees_of_freedom)
    by_sides = Measured(
        "sides",
        figures.sides_difference,
        math.sqrt(of_candidate.variance / seeds + of_base.variance / figures.base_seeds),
        of_candidate.degrees_of_freedom,  # of the side with fewer runs
    )
    is_better = by_pairs.standard_error <= by_sides.standard_error
    return by_pairs if is_better else by_sides, of_pairs, of_candidate


def p_of(measured: Measured, least_gain: float) -> float:
    """Return how often noise alone gives such a difference if the true gain is `least_gain` (Student's t)."""
    beyond = measured.difference + least_gain
    if not measured.standard_error:
        return 1.0
    return float(stdtr(measured.degrees_of_freedom, beyond / measured.standard_error))


def decide(figures: Figures, pairs: Pool, sides: Pool, level: float, least_gain: float = 0.0) -> Decision:
    """Return the answer to the figures of a judgement at its level; a gain must be larger than `least_gain`."""
    measured, of_pairs, of_candidate = measure(figures, pairs, sides)
    p = p_of(measured, least_gain)
    wide = (of_pairs.is_wide or of_candidate.is_wide, of_candidate.is_wide)
    over_documents = figures.documents_high is not None and figures.documents_high < 0

    # Keep what is better over seeds and over documents.
    if p <= level and over_documents and figures.seeds >= KEEP_FROM:
        return Decision(measured, p, level, "keep", 0, "better over seeds and over documents", *wide)

    # Ask for more seeds where they could still show a gain.
    if could_be_shown(figures, measured, level, least_gain):
        seeds = next(look for look in LOOKS if look > figures.seeds)
        reason = f"{MOST_SEEDS} seeds could show such a gain"
        return Decision(measured, p, level, "undecided", seeds - figures.seeds, reason, *wide)

    # Reject the rest.
    if measured.difference >= 0:
        reason = "not better"
    elif measured.difference >= -least_gain:
        reason = f"a smaller gain than {least_gain:g}"
    elif p <= level:
        reason = "better over seeds, not shown over documents"
    else:
        reason = "no larger than noise"
    return Decision(measured, p, level, "reject", 0, reason, *wide)


def could_be_shown(figures: Figures, measured: Measured, level: float, least_gain: float) -> bool:
    """Return whether MOST_SEEDS runs would show the measured gain plus HOPE standard errors."""
    if figures.seeds >= MOST_SEEDS or measured.difference >= 0 or not measured.standard_error:
        return False
    hoped_for = measured._replace(
        difference=measured.difference - HOPE * measured.standard_error,
        standard_error=measured.standard_error * math.sqrt(figures.seeds / MOST_SEEDS),
        degrees_of_freedom=measured.degrees_of_freedom + MOST_SEEDS - figures.seeds,
    )
    return p_of(hoped_for, least_gain) <= level

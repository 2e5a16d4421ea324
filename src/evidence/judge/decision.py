"""From the losses of two sides to an answer: keep, reject or undecided.

A seed decides the first weights and the order of the text, so runs of both sides with the same seed are often lucky
together. Their differences, the pairs, then have a fraction of the spread. A large change moves this luck, and pairs
gain nothing. So both are tried: the mean of the pairs, and the difference of the two means over all seeds of each side.
What has the smaller standard error counts.

A few runs tell little about their own spread, so the variance is moderated: it is a mean with the variance of the
night's other pairs, or sides, which counts as a few degrees of freedom (Smyth 2004, Statistical Applications in
Genetics and Molecular Biology 3, with a fixed weight). One that is far wider than the others (F test) is
judged by its own spread alone, and does not widen the noise of others.

A change that is about to be kept is run once more with a seed that nobody ran. These runs enter no mean and no p: they
must be better, too, and agree with the pairs.
"""

import math
from typing import NamedTuple

from scipy.special import fdtrc, stdtr, stdtrit

from evidence.spread import Spread, pooled

LOOKS = (2, 5, 12)  # seeds of the candidate after which a judgement may end
KEEP_FROM = 5  # seeds; fewer may say that a change is worth more runs, not that it is better
MOST_SEEDS = LOOKS[-1]
WIDE = 0.02  # the level of the F test by which a spread is far wider than the others
MOST_POOLED = {"pairs": 4, "sides": 16}  # degrees of freedom as which the spread of the others counts at most
HOPE = 0.7  # standard errors by which the true gain may be larger than the measured one
AGREE = 0.99  # how often honest runs with another seed agree with the pairs
DIGITS = 8  # of the figures that are recorded and from which the answer follows


class Figures(NamedTuple):
    """What the runs of two sides gave, in the unit of the losses; differences are candidate - base.

    A side has `seeds` runs of the candidate, with seeds that the base has too, and `base_seeds` of the base. The
    interval over documents is the 95 % one of the pairs' mean; None if all documents change alike, or a run gives only
    one number.
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
    def pairs(self) -> Spread:
        return Spread(self.pairs_sd**2, self.seeds - 1)

    @property
    def candidate(self) -> Spread:
        return Spread(self.candidate_sd**2, self.seeds - 1)

    @property
    def base(self) -> Spread:
        return Spread(self.base_sd**2, self.base_seeds - 1)


class Fresh(NamedTuple):
    """The losses of both sides with a seed that nobody ran before."""

    seed: int
    base: float
    candidate: float

    @property
    def difference(self) -> float:
        return self.candidate - self.base


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
    reason: str
    pairs: Spread  # moderated
    is_candidate_wide: bool  # far wider than the others
    are_pairs_wide: bool  # or those of a wide candidate: they say nothing about the noise of others


def is_wide(own: Spread, others: Spread) -> bool:
    """Return whether a spread is far wider than that of the others."""
    if not others.variance:
        return False
    return fdtrc(own.degrees_of_freedom, others.degrees_of_freedom, own.variance / others.variance) < WIDE


def moderated(own: Spread, others: Spread, most: int) -> Spread:
    """Return a spread between its own and that of the others, which counts as at most `most` degrees of freedom."""
    if is_wide(own, others):
        return own
    return pooled([own, others._replace(degrees_of_freedom=min(most, others.degrees_of_freedom))])


def measure(figures: Figures, of_pairs: Spread, sides: Spread) -> Measured:
    """Return the difference with the smaller standard error."""
    seeds = figures.seeds
    of_base = moderated(figures.base, sides, MOST_POOLED["sides"])
    of_candidate = moderated(figures.candidate, pooled([sides, figures.base]), MOST_POOLED["sides"])
    by_pairs = Measured("pairs", figures.pairs_mean, math.sqrt(of_pairs.variance / seeds), of_pairs.degrees_of_freedom)
    by_sides = Measured(
        "sides",
        figures.candidate_mean - figures.base_mean,
        math.sqrt(of_candidate.variance / seeds + of_base.variance / figures.base_seeds),
        of_candidate.degrees_of_freedom,  # of the side with fewer runs
    )
    return by_pairs if by_pairs.standard_error <= by_sides.standard_error else by_sides


def p_of(measured: Measured, least_gain: float) -> float:
    """Return how often noise alone gives such a difference if the true gain is `least_gain` (Student's t)."""
    beyond = measured.difference + least_gain
    if not measured.standard_error:
        return 1.0
    return float(stdtr(measured.degrees_of_freedom, beyond / measured.standard_error))


def decide(figures: Figures, pairs: Spread, sides: Spread, level: float, least_gain: float = 0.0) -> Decision:
    """Return the answer to the figures of a judgement at its level; a gain must be larger than `least_gain`.

    Without an interval over documents, seeds alone decide.
    """
    of_pairs = moderated(figures.pairs, pairs, MOST_POOLED["pairs"])
    measured = measure(figures, of_pairs, sides)
    p = p_of(measured, least_gain)
    over_documents = figures.documents_high is None or figures.documents_high < 0
    answer = "reject"

    # Keep what is better over seeds and over documents. Ask for more seeds where they could still show a gain.
    if p <= level and over_documents and figures.seeds >= KEEP_FROM:
        answer = "keep"
        reason = "better over seeds" if figures.documents_high is None else "better over seeds and over documents"
    elif could_be_shown(figures, measured, level, least_gain):
        answer = "undecided"
        reason = f"{MOST_SEEDS} seeds could show such a gain"
    elif measured.difference >= 0:
        reason = "not better"
    elif measured.difference >= -least_gain:
        reason = f"a smaller gain than {least_gain:g}"
    elif not measured.standard_error:
        reason = "all seeds give the same difference, so no noise is known"
    elif p <= level:
        reason = "better over seeds, not shown over documents"
    else:
        reason = "no larger than noise"

    # The base is one of the sides that the candidate is like, or far wider than.
    is_candidate_wide = is_wide(figures.candidate, pooled([sides, figures.base]))
    are_pairs_wide = is_candidate_wide or is_wide(figures.pairs, pairs)
    return Decision(measured, p, level, answer, reason, of_pairs, is_candidate_wide, are_pairs_wide)


def confirm(decision: Decision, seeds: int, fresh: Fresh) -> Decision:
    """Return the decision to keep a change after `seeds` if it is better with a fresh seed, too; else another one."""
    if fresh.difference < 0:
        return decision
    answer = "undecided" if seeds < MOST_SEEDS else "reject"
    reason = f"not better with seed {fresh.seed}, which nobody had run"
    return decision._replace(answer=answer, reason=reason)


def agrees(decision: Decision, figures: Figures, fresh: Fresh) -> bool:
    """Return whether a fresh pair may be one more of the pairs: it is in the interval that predicts the next one."""
    spread = decision.pairs
    t = float(stdtrit(spread.degrees_of_freedom, (1 + AGREE) / 2))
    widest = t * math.sqrt(spread.variance * (1 + 1 / figures.seeds))
    return abs(fresh.difference - figures.pairs_mean) <= widest


def could_be_shown(figures: Figures, measured: Measured, level: float, least_gain: float) -> bool:
    """Return whether MOST_SEEDS runs would show the measured gain plus HOPE standard errors.

    Rounded numbers of a few seeds may have no spread: more of them have some.
    """
    if figures.seeds >= MOST_SEEDS or measured.difference >= 0:
        return False
    if not measured.standard_error:
        return True
    hoped_for = measured._replace(
        difference=measured.difference - HOPE * measured.standard_error,
        standard_error=measured.standard_error * math.sqrt(figures.seeds / MOST_SEEDS),
        degrees_of_freedom=measured.degrees_of_freedom + MOST_SEEDS - figures.seeds,
    )
    return p_of(hoped_for, least_gain) <= level

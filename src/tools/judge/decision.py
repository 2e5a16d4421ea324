"""From the figures of two sides to an answer: keep, reject or undecided.

The noise of seeds is pooled: a few runs tell little about their own spread, and those of a whole night tell much. This
takes for granted that changes move the loss and not its spread over seeds. Therefore a change is kept only if the
interval of its own runs (Welch) excludes zero too.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from evidence.distributions import student_t_p_value

MOST_SEEDS = 12  # of each side, after which a change that was not shown is rejected
DIGITS = 8  # after the point, of the figures that are recorded and from which the answer follows


class Figures(NamedTuple):
    """What the runs of two sides gave, in bits per byte; sides have the same seeds. Low and high are 95 % intervals."""

    seeds: int  # of each side
    base_bpb: float
    candidate_bpb: float
    difference: float  # candidate - base
    base_sd: float  # over seeds
    candidate_sd: float
    seeds_low: float | None  # of the difference, over seeds; None if the runs of each side are all equal
    seeds_high: float | None
    documents_low: float | None  # of the difference, over documents; None if they are too few
    documents_high: float | None


class Spread(NamedTuple):
    """The standard deviation over the seeds of one side."""

    sd: float
    seeds: int


class Noise(NamedTuple):
    """The pooled standard deviation over seeds, and its degrees of freedom."""

    sd: float
    degrees_of_freedom: int


class Decision(NamedTuple):
    """The answer, and what it follows from; `p` is that of one side: how often noise alone is as much better."""

    noise: Noise
    p: float
    level: float
    answer: str  # keep, reject or undecided
    more_seeds: int  # of each side, that an undecided judgement asks for
    reason: str


def pooled_noise(spreads: Mapping[str, Spread]) -> Noise:
    """Return the pooled standard deviation of several sides, by name, as in an analysis of variance."""
    degrees_of_freedom = sum(spread.seeds - 1 for spread in spreads.values())
    squares = sum(spread.sd**2 * (spread.seeds - 1) for spread in spreads.values())
    return Noise(math.sqrt(squares / degrees_of_freedom), degrees_of_freedom)


def standard_error(noise: Noise, seeds: int) -> float:
    """Return the standard error of a difference between two means over `seeds` runs each."""
    return noise.sd * math.sqrt(2 / seeds)


def p_of(difference: float, noise: Noise, seeds: int) -> float:
    """Return how often noise alone gives so low a difference over `seeds` runs each (Student's t); 1 without noise."""
    if not noise.sd:
        return 1.0
    t = difference / standard_error(noise, seeds)
    both_sides = student_t_p_value(t, noise.degrees_of_freedom)
    return both_sides / 2 if t < 0 else 1 - both_sides / 2


def decide(figures: Figures, noise: Noise, level: float) -> Decision:
    """Return the answer to the figures of a judgement at its level."""
    p = p_of(figures.difference, noise, figures.seeds)
    over_seeds = figures.seeds_high is not None and figures.seeds_high < 0
    over_documents = figures.documents_high is not None and figures.documents_high < 0

    # Keep what is better over seeds and over documents.
    if p <= level and over_seeds and over_documents:
        return Decision(noise, p, level, "keep", 0, "better over seeds and over documents")

    # Ask for more seeds where they could still show a gain.
    if could_be_shown(figures, noise, level):
        more = min(figures.seeds, MOST_SEEDS - figures.seeds)
        return Decision(noise, p, level, "undecided", more, f"{MOST_SEEDS} seeds could show such a gain")

    # Reject the rest.
    if figures.difference >= 0:
        reason = "not better"
    elif p <= level and over_seeds:
        reason = "better over seeds, not shown over documents"
    else:
        reason = "no larger than noise"
    return Decision(noise, p, level, "reject", 0, reason)


def could_be_shown(figures: Figures, noise: Noise, level: float) -> bool:
    """Return whether MOST_SEEDS runs of each side would show the measured gain plus its standard error."""
    if figures.seeds >= MOST_SEEDS or figures.difference >= 0 or not noise.sd:
        return False
    hoped_for = figures.difference - standard_error(noise, figures.seeds)
    return p_of(hoped_for, noise, MOST_SEEDS) <= level

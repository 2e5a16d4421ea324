"""Two groups of runs on the same documents: their difference, and what it shows.

Legend: D documents; a difference is always B - A.
"""

import math
from typing import NamedTuple

import numpy as np

from evidence.differences import difference_of_items, holm, paired, welch
from evidence.intervals import Estimate, ratio_interval
from evidence.power import LEAST_SEEDS, detectable_by_runs
from evidence.runs import BITS_PER_BYTE, Group, Measure, Run, sources_of

# What decides a verdict, and the verdicts.
SEEDS = "seeds"
DOCUMENTS = "documents"
BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"
EQUIVALENT = "equivalent"
NOT_EQUIVALENT = "not equivalent"
NOT_DECIDED = "not decided"

SEEDS_OF_EACH_SIDE = (2, 3, 5, 10)


class Sides(NamedTuple):
    """The runs of two groups that a comparison is about."""

    a: Group
    b: Group
    whole_a: Group  # with the runs that are left out
    whole_b: Group
    are_pairs: bool  # of equal seeds, run by run

    @property
    def left_out(self) -> list[tuple[Group, list[Run]]]:
        """Return each group with its runs that have no partner, if it has any."""
        sides = ((self.whole_a, self.a), (self.whole_b, self.b))
        left_out = [(whole, [run for run in whole.runs if run not in side.runs]) for whole, side in sides]
        return [(whole, runs) for whole, runs in left_out if runs]


def common_seeds(a: Group, b: Group) -> Sides:
    """Return the runs of the seeds that both groups have, in the order of the seeds, or all runs without such seeds.

    A single common seed is no interval over seeds: if both groups have several runs, all of them count as independent.
    """
    both = {seed for seed in a.seeds if seed is not None} & {seed for seed in b.seeds if seed is not None}
    fewer = min(len(a.runs), len(b.runs))
    if not both or (len(both) == 1 and fewer > 1):
        return Sides(a, b, a, b, are_pairs=False)
    return Sides(a.of_seeds(both), b.of_seeds(both), a, b, are_pairs=True)


class Comparison(NamedTuple):
    """B - A over the documents, those of each source of a mixture, and over seeds; `baseline` is all of A itself."""

    sides: Sides
    baseline: Estimate
    documents: Estimate
    seeds: Estimate
    sources: dict[str, Estimate]

    @property
    def a(self) -> Group:
        return self.sides.a

    @property
    def b(self) -> Group:
        return self.sides.b

    @property
    def measure(self) -> Measure:
        return self.a.runs[0].measure

    @property
    def basis(self) -> str:
        """Return which interval decides: SEEDS if each side has at least two runs, otherwise DOCUMENTS.

        Over seeds, two configurations differ. Over documents, only these two trained models do.
        """
        fewer = min(len(self.a.runs), len(self.b.runs))
        return SEEDS if fewer >= 2 else DOCUMENTS

    @property
    def deciding(self) -> Estimate:
        """Return the difference over what `basis` names."""
        return self.seeds if self.basis == SEEDS else self.documents

    @property
    def is_paired(self) -> bool:
        """Return whether the interval over seeds is that of pairs of equal seeds."""
        return self.basis == SEEDS and self.sides.are_pairs

    @property
    def num_means(self) -> int:
        """Return how many means the interval over seeds compares: one of pairs, or two of independent runs."""
        return 1 if self.is_paired else 2

    @property
    def changes(self) -> np.ndarray:
        """Return the difference of each document (D,), in bits or in scores."""
        return self.b.values - self.a.values

    @property
    def sizes(self) -> np.ndarray:
        """Return the bytes or the number of items of each document (D,)."""
        return self.a.runs[0].sizes

    @property
    def is_of_one_configuration(self) -> bool:
        """Return whether both sides are runs of one configuration."""
        return self.a.runs[0].configuration == self.b.runs[0].configuration

    @property
    def is_same_run(self) -> bool:
        """Return whether both sides are one run under two names, such as a branch and its commit."""
        if len(self.a.runs) + len(self.b.runs) > 2 or not self.is_of_one_configuration:
            return False
        return self.a.seeds == self.b.seeds and np.array_equal(self.a.values, self.b.values)

    def verdict(self, found: Estimate, confidence: float) -> str:
        """Return BETTER, WORSE or NOT_SHOWN for B; p of `found` is corrected for several comparisons."""
        is_shown = found.p_value is not None and found.p_value <= 1 - confidence + 1e-9
        if not is_shown:
            return NOT_SHOWN
        is_higher = found.value > 0
        return BETTER if is_higher == self.measure.is_higher_better else WORSE

    def most_changed(self, count: int) -> np.ndarray:
        """Return the positions of the documents that changed most, in either direction, first."""
        return np.argsort(-np.abs(self.changes), kind="stable")[:count]


def compare_groups(a: Group, b: Group, seed: int, confidence: float, resamples: int) -> Comparison:
    """Return the differences between two groups, of their common seeds; documents are resampled with `seed`."""
    sides = common_seeds(a, b)
    a = sides.a
    b = sides.b
    sizes = a.runs[0].sizes
    is_of_items = a.runs[0].measure != BITS_PER_BYTE

    def interval(values: np.ndarray, own: np.ndarray) -> Estimate:
        if is_of_items:
            return difference_of_items(values[own], sizes[own], confidence)
        rng = np.random.default_rng(seed)
        return ratio_interval(values[own], sizes[own], rng, confidence, resamples)

    changes = b.values - a.values
    every = np.full(len(sizes), True)
    return Comparison(
        sides,
        baseline=interval(sides.whole_a.values, every),
        documents=interval(changes, every),
        seeds=difference_over_seeds(sides, confidence),
        sources={name: interval(changes, own) for name, own in sources_of([*a.runs, *b.runs]).items()},
    )


def difference_over_seeds(sides: Sides, confidence: float) -> Estimate:
    """Return the difference of the scores: of pairs of equal seeds if there are any, else of independent runs."""
    scores_of_a = sides.a.scores
    scores_of_b = sides.b.scores
    if sides.are_pairs:
        return paired(scores_of_b - scores_of_a, confidence)
    return welch(scores_of_a, scores_of_b, confidence)


def differences_of_pairs(a: Group, b: Group) -> np.ndarray:
    """Return the difference of the scores for each seed that both sides have (pairs,)."""
    score_of = dict(zip(a.seeds, a.scores, strict=True))
    both = [run for run in b.runs if run.seed is not None and run.seed in score_of]
    return np.array([run.score - score_of[run.seed] for run in both])


def corrected(found: list[Comparison]) -> list[Comparison]:
    """Return comparisons with one baseline, with p after Holm's correction.

    The comparisons over documents are one family of tests, those over seeds another, those of all sources a third.
    """
    documents = holm([each.documents for each in found])
    seeds = holm([each.seeds for each in found])
    sources = iter(holm([estimate for each in found for estimate in each.sources.values()]))
    changed = []
    for i, each in enumerate(found):
        of_sources = {name: next(sources) for name in each.sources}
        changed.append(each._replace(documents=documents[i], seeds=seeds[i], sources=of_sources))
    return changed


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


class Equivalence(NamedTuple):
    """Whether B differs from A by less than a margin, whatever the direction."""

    within: float  # the margin
    verdict: str  # EQUIVALENT, NOT_EQUIVALENT or NOT_DECIDED
    low: float | None  # the interval that must lie within the margin
    high: float | None
    confidence: float  # of this interval


def equivalence(
    comparison: Comparison, within: float, seed: int, confidence: float, resamples: int, num_comparisons: int
) -> Equivalence:
    """Return whether a comparison shows that the difference over its basis is smaller than `within`.

    Two one-sided tests (Schuirmann 1987): B is equivalent if both "B - A ≤ -within" and "B - A ≥ within" are rejected
    at the level 1 - confidence, which is so if the interval of confidence 2 · confidence - 1 lies within the margin. It
    is not equivalent if the interval of `confidence` lies outside. The level is divided by the number of comparisons
    (Bonferroni): no p-value for other margins than zero is known of resamples.
    """
    level = (1 - confidence) / num_comparisons

    def interval(of_confidence: float) -> Estimate:
        again = compare_groups(comparison.sides.whole_a, comparison.sides.whole_b, seed, of_confidence, resamples)
        return again.deciding

    inner = interval(1 - 2 * level)
    outer = interval(1 - level)
    verdict = NOT_DECIDED
    if inner.low is not None and inner.high is not None and -within < inner.low and inner.high < within:
        verdict = EQUIVALENT
    elif outer.low is not None and outer.high is not None and (outer.low > within or outer.high < -within):
        verdict = NOT_EQUIVALENT
    return Equivalence(within, verdict, inner.low, inner.high, 1 - 2 * level)

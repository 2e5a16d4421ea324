"""Two groups of runs on the same documents: their common seeds, their difference, and what it shows.

Legend: D documents; a difference is always B - A. Intervals over documents are in intervals.py, because the stage eval
needs them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from evidence.errors import WrongInput
from evidence.intervals import Estimate, ratio_interval, studentized
from evidence.runs import BITS_PER_BYTE, Group, Measure, Run, make_groups, sources_of

# What decides a verdict, and the verdicts.
SEEDS = "seeds"
DOCUMENTS = "documents"
BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"
EQUIVALENT = "equivalent"
NOT_EQUIVALENT = "not equivalent"
NOT_DECIDED = "not decided"

LEAST_DIFFERENT = 6  # documents: if all of five fall on one side, the exact sign test has p = 2 / 2^5 > 0.05


class Options(NamedTuple):
    """How to compare."""

    baseline: str | None = None  # the name of a group, None: the first
    within: float | None = None  # the margin of equivalence, None: not asked
    confidence: float = 0.95
    resamples: int = 1999  # of the documents


# Which runs are compared.


class Sides(NamedTuple):
    """The runs of two groups that a comparison is about."""

    a: Group
    b: Group
    whole_a: Group  # with the runs that are left out
    whole_b: Group
    are_pairs: bool  # of equal seeds, run by run

    @property
    def left_out(self) -> list[tuple[Group, list[Run]]]:
        """Return the groups in which some runs have no partner, each with these runs."""
        sides = ((self.whole_a, self.a), (self.whole_b, self.b))
        left_out = [(whole, [run for run in whole.runs if run not in side.runs]) for whole, side in sides]
        return [(whole, runs) for whole, runs in left_out if runs]


def common_seeds(a: Group, b: Group) -> Sides:
    """Return the runs of the seeds that both groups have, in the order of the seeds, or all runs without such seeds.

    A single common seed is no interval over seeds: if both groups have several runs, all of them count as independent.
    """
    both = a.known_seeds & b.known_seeds
    fewer = min(len(a.runs), len(b.runs))
    if not both or (len(both) == 1 and fewer > 1):
        return Sides(a, b, a, b, are_pairs=False)
    return Sides(a.of_seeds(both), b.of_seeds(both), a, b, are_pairs=True)


# One difference.


class Difference(NamedTuple):
    """B - A over the documents, those of each source of a mixture, and over seeds, all of the same runs."""

    sides: Sides
    documents: Estimate
    seeds: Estimate
    sources: dict[str, Estimate]
    p_value: float | None  # of the interval that decides; `compare` corrects it for the number of comparisons

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

        Over seeds, two configurations differ. Over documents, only these trained models do.
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
    def changes(self) -> np.ndarray:
        """Return the difference of each document (D,), in bits or in scores."""
        return self.b.values - self.a.values

    @property
    def sizes(self) -> np.ndarray:
        """Return the bytes or the number of items of each document (D,)."""
        return self.a.runs[0].sizes

    @property
    def is_of_one_configuration(self) -> bool:
        """Return whether both sides are runs of one configuration, such as one seed on two machines."""
        return self.a.runs[0].configuration == self.b.runs[0].configuration

    @property
    def is_tested(self) -> bool:
        """Return whether its p is one of the family that is corrected: not that of two machines."""
        return self.p_value is not None and not self.is_of_one_configuration

    def verdict(self, confidence: float) -> str:
        """Return BETTER, WORSE or NOT_SHOWN for B."""
        if self.p_value is None or self.p_value > 1 - confidence + 1e-9:
            return NOT_SHOWN
        is_higher = self.deciding.value > 0
        return BETTER if is_higher == self.measure.is_higher_better else WORSE


def difference(a: Group, b: Group, options: Options) -> Difference:
    """Return the difference between the common seeds of two groups, or between all of their runs."""
    sides = common_seeds(a, b)
    run = sides.a.runs[0]
    changes = sides.b.values - sides.a.values
    documents = over_documents(changes, run.sizes, run.measure, options)
    sources = {}
    for name, own in sources_of([*sides.a.runs, *sides.b.runs]).items():
        sources[name] = over_documents(changes[own], run.sizes[own], run.measure, options)
    if sides.are_pairs:
        seeds = paired(sides.b.scores - sides.a.scores, options.confidence)
    else:
        seeds = welch(sides.a.scores, sides.b.scores, options.confidence)
    found = Difference(sides, documents, seeds, sources, None)
    return found._replace(p_value=found.deciding.p_value)


def over_documents(values: np.ndarray, sizes: np.ndarray, measure: Measure, options: Options) -> Estimate:
    """Return Σ values / Σ sizes as an estimate for other documents."""
    if measure != BITS_PER_BYTE:
        return difference_of_items(values, sizes, options.confidence)
    return ratio_interval(values, sizes, np.random.default_rng(1), options.confidence, options.resamples)


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


def paired(differences: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return the mean of the differences (pairs,) of two runs with the same seed.

    Student's t, with one degree of freedom less than pairs. A seed fixes the initial weights and the order of the
    batches, so the losses of a small change can rise and fall with those of its baseline, and differences of pairs then
    spread less than those of independent runs. No interval with a single pair, or if all differences are equal.
    """
    delta = float(differences.mean())
    if len(differences) < 2:
        return Estimate(delta)
    se = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return _student_t(delta, se, len(differences) - 1, confidence)


def difference_of_items(sums: np.ndarray, sizes: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return Σ sums / Σ sizes over documents (D,), as an estimate for other documents.

    `sums` are the differences B - A of the scores of each document's items, `sizes` the numbers of items. Items of one
    document depend on each other, so only the sums are independent: the standard error is the clustered one of paired
    differences (Miller 2024, arXiv 2411.00640), corrected for few and for unequal documents, with Student's t
    (`studentized`). The interval needs at least LEAST_DIFFERENT documents with a difference.
    """
    value = float(sums.sum() / sizes.sum())
    if np.count_nonzero(sums) < LEAST_DIFFERENT:
        return Estimate(value)
    _, se, df = (float(each) for each in studentized(sums, sizes, 0.0))
    return _student_t(value, se, df, confidence)


def _student_t(value: float, se: float, df: float, confidence: float) -> Estimate:
    """Return the estimate of a value whose standard error has `df` degrees of freedom; no interval without noise."""
    if se <= 1e-9 * abs(value):
        return Estimate(value, se)
    half = se * float(stdtrit(df, (1 + confidence) / 2))
    p_value = float(2 * stdtr(df, -abs(value / se)))
    return Estimate(value, se, value - half, value + half, p_value, df)


# Equivalence.


class Equivalence(NamedTuple):
    """Whether B differs from A by less than a margin, whatever the direction."""

    within: float  # the margin
    verdict: str  # EQUIVALENT, NOT_EQUIVALENT or NOT_DECIDED
    low: float | None  # the interval that must lie within the margin
    high: float | None
    confidence: float  # of this interval


def equivalence(found: Difference, within: float, options: Options, num_tests: int) -> Equivalence:
    """Return whether the difference over what decides is smaller than `within`.

    Two one-sided tests (Schuirmann 1987): B is equivalent if both "B - A ≤ -within" and "B - A ≥ within" are rejected
    at the level 1 - confidence, which is so if the interval of confidence 2 · confidence - 1 lies within the margin. It
    is not equivalent if the interval of `confidence` lies outside. The level is divided by the number of tests
    (Bonferroni): no p-value for other margins than zero is known of resamples.
    """
    level = (1 - options.confidence) / num_tests

    def interval(confidence: float) -> Estimate:
        again = difference(found.sides.whole_a, found.sides.whole_b, options._replace(confidence=confidence))
        return again.deciding

    inner = interval(1 - 2 * level)
    outer = interval(1 - level)
    verdict = NOT_DECIDED
    if inner.low is None or inner.high is None or outer.low is None or outer.high is None:
        pass
    elif -within < inner.low and inner.high < within:
        verdict = EQUIVALENT
    elif outer.low > within or outer.high < -within:
        verdict = NOT_EQUIVALENT
    return Equivalence(within, verdict, inner.low, inner.high, 1 - 2 * level)


# All comparisons of one call.


class Comparisons(NamedTuple):
    """Groups of runs, the baseline first, and the difference of each other one from it; none if there is one group."""

    groups: list[Group]
    differences: list[Difference]  # p is corrected for the number of comparisons
    equivalences: list[Equivalence]  # of each difference, if a margin was given
    options: Options

    @property
    def confidence(self) -> float:
        return self.options.confidence

    @property
    def num_tests(self) -> int:
        """Return for how many tests p is corrected."""
        return sum(each.is_tested for each in self.differences)

    def not_better(self) -> list[str]:
        """Return the names of the groups that are not better than the baseline, with their verdicts."""
        verdicts = {each.b.name: each.verdict(self.confidence) for each in self.differences}
        return [f"{name} ({verdict})" for name, verdict in verdicts.items() if verdict != BETTER]


def compare(runs: Sequence[Run], options: Options) -> Comparisons:
    """Compare each other group of runs with the baseline. Raise WrongInput if an option is out of range.

    The p-values that decide are one family of tests. Which interval decides follows from the seeds, never from p, so
    each of them is valid for its own difference.
    """
    groups = with_baseline_first(make_groups(runs), options.baseline)
    baseline, *others = groups
    reject_wrong_options(options)

    # Each tail outside each interval must hold at least one resample, also if the level is divided.
    if options.within is not None and others:
        level = (1 - options.confidence) / len(others)
        options = options._replace(resamples=max(options.resamples, math.ceil(2 / level - 1 - 1e-6)))

    # Correct the p-values that decide.
    alone = [difference(baseline, other, options) for other in others]
    tested = {i: each.p_value for i, each in enumerate(alone) if each.is_tested and each.p_value is not None}
    differences = alone.copy()
    for i, p_value in zip(tested, holm([*tested.values()]), strict=True):
        differences[i] = alone[i]._replace(p_value=p_value)

    equivalences = []
    if options.within is not None:
        num_tests = max(1, len(tested))
        equivalences = [equivalence(each, options.within, options, num_tests) for each in differences]
    return Comparisons(groups, differences, equivalences, options)


def with_baseline_first(groups: list[Group], name: str | None) -> list[Group]:
    """Return the groups, the one with this name first."""
    if name is None:
        return groups
    named = [group for group in groups if group.name == name]
    if not named:
        raise WrongInput(f"--baseline is {name}; it must be one of {', '.join(group.name for group in groups)}")
    return named + [group for group in groups if group not in named]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons after the correction for their number (Holm 1979).

    The k-th smallest of m p-values is multiplied by m - k + 1, and is at least as large as the one before it. If no two
    runs differ, the chance that any of the comparisons has p ≤ 0.05 is then at most 5 %.
    """
    adjusted = list(p_values)
    largest = 0.0
    smallest_first = sorted(range(len(adjusted)), key=adjusted.__getitem__)
    for rank, i in enumerate(smallest_first):
        multiplied = (len(adjusted) - rank) * adjusted[i]
        largest = max(largest, min(1.0, multiplied))
        adjusted[i] = largest
    return adjusted


def reject_wrong_options(options: Options) -> None:
    """Raise WrongInput if an option is out of range."""
    if not 0.5 <= options.confidence <= 0.999:
        raise WrongInput(f"--confidence is {options.confidence}; it must be from 0.5 to 0.999, such as 0.95")
    if options.within is not None and not 0 < options.within < math.inf:
        raise WrongInput(f"--within is {options.within}; it must be above 0, in the unit of the difference")

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


def common_seeds(a: Group, b: Group) -> tuple[Group, Group, bool]:
    """Return the runs of the seeds that both groups have, or all runs without such seeds, and whether these are pairs.

    One common seed gives no interval over seeds. If both groups have several runs, all then count as independent.
    """
    both = set(a.seeds) & set(b.seeds) - {None}
    fewer = min(len(a.runs), len(b.runs))
    if not both or (len(both) == 1 and fewer > 1):
        return a, b, False
    return a.of_seeds(both), b.of_seeds(both), len(both) > 1


# One difference.


class Difference(NamedTuple):
    """B - A over the documents, those of each source of a mixture, and over seeds, all of the same runs."""

    a: Group
    b: Group
    whole_a: Group  # with the runs that have no partner, and are left out
    whole_b: Group
    are_pairs: bool  # of equal seeds, run by run
    documents: Estimate
    seeds: Estimate
    sources: dict[str, Estimate]
    options: Options
    p_value: float | None = None  # of the interval that decides, corrected for the number of tests
    num_tests: int = 1
    equivalence: "Equivalence | None" = None  # if a margin was given

    @property
    def left_out(self) -> list[str]:
        """Return the names of the runs without a partner."""
        kept = [*self.a.runs, *self.b.runs]
        return [run.name for run in [*self.whole_a.runs, *self.whole_b.runs] if run not in kept]

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
    def sizes(self) -> np.ndarray:
        """Return the bytes or the number of items of each document (D,)."""
        return self.a.runs[0].sizes

    @property
    def verdict(self) -> str:
        """Return BETTER, WORSE or NOT_SHOWN for B."""
        if self.p_value is None or self.p_value > 1 - self.options.confidence + 1e-9:
            return NOT_SHOWN
        is_higher = self.deciding.value > 0
        return BETTER if is_higher == self.measure.is_higher_better else WORSE


def difference(a: Group, b: Group, options: Options) -> Difference:
    """Return the difference between the common seeds of two groups, or between all of their runs."""
    of_a, of_b, are_pairs = common_seeds(a, b)
    run = of_a.runs[0]
    changes = of_b.values - of_a.values
    documents = over_documents(changes, run.sizes, run.measure, options)
    sources = {}
    for name, own in sources_of(run).items():
        sources[name] = over_documents(changes[own], run.sizes[own], run.measure, options)
    if are_pairs:
        seeds = paired(of_b.scores - of_a.scores, options.confidence)
    else:
        seeds = welch(of_a.scores, of_b.scores, options.confidence)
    found = Difference(of_a, of_b, a, b, are_pairs, documents, seeds, sources, options)
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
    delta = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(delta)
    of_a = float(a.var(ddof=1)) / len(a)  # squared standard errors
    of_b = float(b.var(ddof=1)) / len(b)
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
    interval: Estimate  # that must lie within the margin
    confidence: float  # of this interval


def equivalence(found: Difference, within: float) -> Equivalence:
    """Return whether the difference over what decides is smaller than `within`.

    Two one-sided tests (Schuirmann 1987): B is equivalent if both "B - A ≤ -within" and "B - A ≥ within" are rejected
    at the level 1 - confidence, which is so if the interval of confidence 2 · confidence - 1 lies within the margin. It
    is not equivalent if the interval of `confidence` lies outside. The level is divided by the number of tests
    (Bonferroni): no p-value for other margins than zero is known of resamples.
    """
    level = (1 - found.options.confidence) / found.num_tests

    def interval(confidence: float) -> Estimate:
        options = found.options._replace(confidence=confidence)
        return difference(found.whole_a, found.whole_b, options).deciding

    inner = interval(1 - 2 * level)
    outer = interval(1 - level)
    verdict = NOT_DECIDED
    if inner.low is None or inner.high is None or outer.low is None or outer.high is None:
        pass
    elif -within < inner.low and inner.high < within:
        verdict = EQUIVALENT
    elif outer.low > within or outer.high < -within:
        verdict = NOT_EQUIVALENT
    return Equivalence(within, verdict, inner, 1 - 2 * level)


# All comparisons of one call.


class Comparisons(NamedTuple):
    """Groups of runs, the baseline first, and the difference of each other one from it; none if there is one group."""

    groups: list[Group]
    differences: list[Difference]
    options: Options


def compare(runs: Sequence[Run], options: Options) -> Comparisons:
    """Compare each other group of runs with the baseline. Raise WrongInput if an option is out of range.

    The p-values that decide are one family of tests. Which interval decides follows from the seeds, never from p, so
    each of them is valid for its own difference.
    """
    reject_wrong_options(options)
    groups = make_groups(runs)
    names = [group.name for group in groups]
    first = options.baseline or names[0]
    if first not in names:
        raise WrongInput(f"--baseline is {first}; it must be one of {', '.join(names)}")
    groups.sort(key=lambda group: group.name != first)
    baseline, *others = groups

    # Each tail outside each interval must hold at least one resample, also if the level is divided.
    if options.within is not None and others:
        level = (1 - options.confidence) / len(others)
        options = options._replace(resamples=max(options.resamples, math.ceil(2 / level - 1 - 1e-6)))

    # Correct the p-values that decide.
    alone = [difference(baseline, other, options) for other in others]
    corrected = holm([each.p_value for each in alone])
    num_tests = max(1, len(alone) - corrected.count(None))
    differences = []
    for each, p_value in zip(alone, corrected, strict=True):
        found = each._replace(p_value=p_value, num_tests=num_tests)
        if options.within is not None:
            found = found._replace(equivalence=equivalence(found, options.within))
        differences.append(found)
    return Comparisons(groups, differences, options)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values of several comparisons after the correction for their number (Holm 1979); None stays.

    The k-th smallest of m p-values is multiplied by m - k + 1, and is at least as large as the one before it. If no two
    runs differ, the chance that any of the comparisons has p ≤ 0.05 is then at most 5 %.
    """
    smallest_first = sorted((p_value, i) for i, p_value in enumerate(p_values) if p_value is not None)
    adjusted = list(p_values)
    largest = 0.0
    for rank, (p_value, i) in enumerate(smallest_first):
        multiplied = (len(smallest_first) - rank) * p_value
        largest = adjusted[i] = max(largest, min(1.0, multiplied))
    return adjusted


def reject_wrong_options(options: Options) -> None:
    """Raise WrongInput if an option is out of range."""
    if not 0.6 <= options.confidence <= 0.999:
        raise WrongInput(f"--confidence is {options.confidence}; it must be from 0.6 to 0.999, such as 0.95")
    if options.within is not None and not 0 < options.within < math.inf:
        raise WrongInput(f"--within is {options.within}; it must be above 0, in the unit of the difference")

"""Differences B - A with intervals and p-values: over seeds, over documents of items, and of several comparisons.

Those of losses over documents are in intervals.py, because the stage eval needs them.
"""

import math
from collections.abc import Sequence

import numpy as np

from evidence.distributions import student_t_p_value, student_t_quantile
from evidence.intervals import Estimate, studentized

CORRELATED = 0.3  # with the log of the size, from which a report warns
LEAST_DIFFERENT = 6  # documents: if all of five fall on one side, the exact sign test has p = 2 / 2^5 > 0.05


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
    if se <= 1e-9 * abs(delta) or not se:
        return Estimate(delta, se)
    return _student_t(delta, se, len(differences) - 1, confidence)


def difference_of_items(sums: np.ndarray, sizes: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return Σ sums / Σ sizes over documents (D,), as an estimate for other documents.

    `sums` are the differences B - A of the scores of each document's items, `sizes` the numbers of items. Items of one
    document depend on each other, so only the sums are independent: the standard error is the clustered one of paired
    differences (Miller 2024, arXiv 2411.00640), corrected for few and for unequal documents, with Student's t
    (`studentized`). If fewer than LEAST_DIFFERENT documents differ, there is no interval.
    """
    value = float(sums.sum() / sizes.sum())
    if np.count_nonzero(sums) < LEAST_DIFFERENT:
        return Estimate(value)
    _, se, df = (float(each) for each in studentized(sums, sizes, 0.0))
    if se <= 1e-9 * abs(value):  # all documents have the same rate
        return Estimate(value, se)
    return _student_t(value, se, df, confidence)


def _student_t(value: float, se: float, df: float, confidence: float) -> Estimate:
    """Return the estimate of a value whose standard error has `df` degrees of freedom."""
    half = se * student_t_quantile(confidence, df)
    return Estimate(value, se, value - half, value + half, student_t_p_value(value / se, df), df)


def size_correlation(values: np.ndarray, sizes: np.ndarray) -> float | None:
    """Return the correlation of the rates values / sizes (N,) with the log of the sizes, if it is one to warn of."""
    keep = sizes > 0
    rates = values[keep] / sizes[keep]
    logs = np.log(sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None


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


def p_text(found: Estimate) -> str:
    """Return the p-value of an estimate as text, with ≤ or < where only a limit is known."""
    if found.p_value is None:
        return ""
    if found.p_is_bound:
        return f"≤ {found.p_value:.2g}"
    return "< 0.0001" if found.p_value < 1e-4 else f"{found.p_value:.2g}"

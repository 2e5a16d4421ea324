"""Confidence intervals of a ratio of sums over documents, such as bits per byte or a difference of two.

Legend: D documents, R resamples. benchmarks/results/interval_coverage.json says how often they hold.
"""

import math
from typing import NamedTuple

import numpy as np

_BLOCK = 1 << 20  # draws in memory at once
_SMOOTHING = 0.85  # of the normal reference rule (Silverman 1986, 3.4.2), in standard deviations of log size
LEAST_DOCUMENTS = 4


class Estimate(NamedTuple):
    """A value, its standard error, interval and p-value against zero; None where there are too few units.

    `p_is_bound`: p is at most `p_value`, the smallest that this number of resamples can show.
    """

    value: float
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    degrees_of_freedom: float | None = None
    p_is_bound: bool = False


def ratio_interval(
    values: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, confidence: float = 0.95, resamples: int = 1999
) -> Estimate:
    """Return Σ values / Σ sizes over documents (D,), as an estimate for other documents; size 0 counts as none.

    The ratio is studentized (`studentized`) and compared with the same of R samples from a smoothed model of the
    documents (`_resampled`): plain resampling never draws a document longer than the longest, so its intervals
    are too narrow if the rate depends on the length. The interval is the union of the equal-tailed and the symmetric
    bootstrap-t interval (Efron and Tibshirani 1993, 12.5; Hall 1988). p is the larger of both p-values, so
    p ≤ 1 - confidence exactly if the interval excludes zero. docs/compare.md gives the measured coverage.
    """
    values = values[sizes > 0]
    sizes = sizes[sizes > 0].astype(np.float64)
    ratio = float(values.sum() / sizes.sum())
    if not values.any():
        return Estimate(0.0, 0.0, 0.0, 0.0, 1.0)
    if len(values) < 2:
        return Estimate(ratio)
    z, se, df = (float(each) for each in studentized(values, sizes, 0.0))
    has_equal_rates = se <= 1e-9 * abs(ratio)
    if len(values) < LEAST_DOCUMENTS or has_equal_rates:  # nothing to estimate a spread from
        return Estimate(ratio, se)
    drawn = np.sort(_resampled(values, sizes, rng, resamples))
    sizes_of_z = np.sort(np.abs(drawn))

    # Take the z at the ranks at which the p-value is just `1 - confidence`; 1e-9 makes up for rounding.
    both = math.floor((1 - confidence) * (resamples + 1) + 1e-9)
    tail = max(1, both // 2)
    widest = float(sizes_of_z[-both])
    least = min(float(drawn[tail - 1]), -widest)
    most = max(float(drawn[-tail]), widest)
    low = ratio - se * _t_of(most, df)
    high = ratio - se * _t_of(least, df)

    # Count how many of R + 1 samples, this one included, are as far from zero, by each of the two intervals.
    in_tail = min(np.count_nonzero(drawn <= z), np.count_nonzero(drawn >= z))
    count_equal_tailed = 2 * (1 + in_tail)
    count_symmetric = 1 + np.count_nonzero(sizes_of_z >= abs(z))
    count = int(max(count_equal_tailed, count_symmetric))
    p_value = min(1.0, count / (resamples + 1))
    return Estimate(ratio, se, low, high, p_value, df, p_is_bound=count == 2)


def studentized(values: np.ndarray, sizes: np.ndarray, true_ratio: np.ndarray | float) -> tuple:
    """Return (z, standard error, degrees of freedom), each (…), of the ratios of documents (…, D).

    Both are those of Bell and McCaffrey (2002) for rates of equal spread, which matter where few documents hold
    most of the bytes. z is t = (ratio - truth) / se on the scale of a normal variable (Wallace 1959, equation 2.8).
    """
    total = sizes.sum(-1, keepdims=True)
    weights = sizes / total
    sum_of_squares = np.square(weights).sum(-1, keepdims=True)

    # A document of weight w draws the ratio towards its own rate, so the expected square of its residual is only
    # 1 - 2w + Σw² of its variance. Dividing by it (CR2) keeps the standard error unbiased if one document dominates.
    residual_variance = np.maximum(1 - 2 * weights + sum_of_squares, 1e-12)
    ratio = values.sum(-1, keepdims=True) / total
    residuals = values / total - ratio * weights
    se = np.sqrt((np.square(residuals) / residual_variance).sum(-1))

    df = _degrees_of_freedom(weights, sum_of_squares[..., 0], residual_variance)
    error = ratio[..., 0] - true_ratio
    t = np.clip(error / np.maximum(se, 1e-100), -1e100, 1e100)
    scale = (8 * df + 1) / (8 * df + 3)
    z = scale * np.sign(t) * np.sqrt(df * np.log1p(np.square(t) / df))
    return z, se, df


def _degrees_of_freedom(weights: np.ndarray, sum_of_squares: np.ndarray, residual_variance: np.ndarray) -> np.ndarray:
    """Return Satterthwaite's degrees of freedom (…): trace² / squared norm of the covariance of the residuals.

    With weights w (…, D), S = Σw² (…) and residual variances v (…, D), the covariance of documents i and j is
    w_i w_j (S - w_i - w_j) / √(v_i v_j), and w_i² for i = j. It would be a D × D matrix for each of the resamples.
    Its squared norm is therefore expanded into sums over documents.
    """
    leverage = np.square(weights) / residual_variance
    sum_0 = leverage.sum(-1)
    sum_1 = (leverage * weights).sum(-1)
    sum_2 = (leverage * np.square(weights)).sum(-1)

    # Σ leverage_i leverage_j (S - w_i - w_j)² over all i and j, then over i = j alone.
    S = sum_of_squares
    all_pairs = S**2 * sum_0**2 + 2 * sum_0 * sum_2 + 2 * sum_1**2 - 4 * S * sum_0 * sum_1
    equal_pairs = np.square(leverage * (S[..., None] - 2 * weights)).sum(-1)
    diagonal = (weights**4).sum(-1)
    squared_norm = all_pairs - equal_pairs + diagonal
    return S**2 / squared_norm


def _t_of(z: float, df: float) -> float:
    """Return the t of `studentized` whose z is given."""
    scaled = z * (8 * df + 3) / (8 * df + 1)
    return math.copysign(math.sqrt(df * math.expm1(min(scaled**2 / df, 700.0))), z)


def _resampled(values: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Return z (R,) of samples of D documents from a smoothed model of these.

    Log sizes are drawn from a kernel density with their own mean and variance (Silverman and Young 1987); a
    document's rate is linear in its log size, plus a residual drawn from those of all documents.
    """
    # Fit the line: rate = mean rate + slope * (log size - mean log size) + residual.
    count = len(sizes)
    rates = values / sizes
    mean_rate = rates.mean()
    logs = np.log(sizes)
    variance = logs.var(ddof=1)
    offsets = logs - logs.mean()
    slope = offsets @ rates / (offsets @ offsets) if variance > 1e-12 else 0.0
    residuals = rates - mean_rate - slope * offsets
    scatter = residuals * math.sqrt(count / (count - 2))  # two degrees of freedom went into the line

    # Without smoothing no resample has a document longer than the longest one, and the interval is too narrow if few
    # documents hold most bytes. The kernel widens the sizes; shrinking them to their mean first keeps the variance.
    bandwidth = _SMOOTHING * count**-0.2
    shrunk = offsets / math.sqrt(1 + bandwidth**2)
    kernel = variance * bandwidth**2 / (1 + bandwidth**2)
    mean_by_size = kernel + np.average(shrunk, weights=np.exp(shrunk))  # of the model's log sizes
    true_ratio = mean_rate + slope * mean_by_size

    # Draw the samples, some at a time.
    drawn = []
    block = max(1, _BLOCK // count)
    for done in range(0, resamples, block):
        shape = min(block, resamples - done), count
        log_size = rng.choice(shrunk, shape) + math.sqrt(kernel) * rng.normal(size=shape)
        rate = mean_rate + slope * log_size + rng.choice(scatter, shape)
        size = np.exp(log_size)
        z, _, _ = studentized(rate * size, size, true_ratio)
        drawn.append(z)
    return np.concatenate(drawn)


def dominating_documents(sizes: np.ndarray, above: float = 0.05) -> dict[int, float]:
    """Return document → its fraction of all bytes, for the documents with more than `above`, largest first."""
    fractions = sizes / sizes.sum()
    largest_first = np.argsort(-fractions, kind="stable")
    return {int(i): float(fractions[i]) for i in largest_first if fractions[i] > above}


def effective_documents(sizes: np.ndarray) -> float:
    """Return the number of equally long documents with the same weight: (Σ b)² / Σ b² (Kish 1965)."""
    return float(sizes.sum() ** 2 / np.square(sizes.astype(np.float64)).sum())

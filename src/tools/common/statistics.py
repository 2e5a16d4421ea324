"""Bits per byte of documents, and differences between configurations over training seeds."""

import functools
import math

import numpy as np

from lm.evaluate.intervals import Estimate

_legendre = functools.cache(np.polynomial.legendre.leggauss)  # takes longer to compute than to use


def bits_per_byte(nats: np.ndarray, utf8_bytes: np.ndarray) -> float:
    """Return Σ nats / ln 2 / Σ bytes over documents (D,)."""
    return float(nats.sum() / math.log(2) / utf8_bytes.sum())


def welch(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return mean(b) - mean(a) of independent runs, one value for each seed, with possibly unequal variances.

    Welch's t with Satterthwaite's degrees of freedom (Welch 1947). With a single run on one side, or if no
    value varies, there is no interval.
    """
    delta = float(np.mean(b) - np.mean(a))
    if min(len(a), len(b)) < 2:
        return Estimate(delta)
    variances = np.array([np.var(values, ddof=1) / len(values) for values in (a, b)])
    if not variances.any():
        return Estimate(delta, 0.0)
    se = math.sqrt(variances.sum())
    df = float(variances.sum() ** 2 / (variances**2 / [len(a) - 1, len(b) - 1]).sum())
    half = se * student_t_quantile(confidence, df)
    return Estimate(delta, se, delta - half, delta + half, student_t_p_value(delta / se, df), df)


def student_t_p_value(t: float, df: float) -> float:
    """Return P(|T| ≥ |t|) of Student's t with df ≥ 1 degrees of freedom, to about 1e-12.

    With t = √df · tan θ the density is proportional to cos^(df-1) θ, which is integrated to atan(|t| / √df).
    """
    end = math.atan(abs(t) / math.sqrt(df))
    points, weights = _legendre(200)
    integral = float(weights @ np.cos((points + 1) * end / 2) ** (df - 1)) * end / 2
    whole = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2))
    return max(0.0, 1 - integral / whole)


@functools.cache
def student_t_quantile(confidence: float, df: float) -> float:
    """Return the t with P(|T| ≤ t) = confidence, by bisection of the angle atan t."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p_value(math.tan(middle), df) > 1 - confidence else (low, middle)
    return math.tan(low)

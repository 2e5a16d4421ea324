"""Probabilities and quantiles for tests, from scipy.special, which loads faster than scipy.stats."""

from scipy import special


def student_t_p_value(t: float, df: float) -> float:
    """Return P(|T| ≥ |t|) of Student's t with `df` degrees of freedom."""
    return float(2 * special.stdtr(df, -abs(t)))


def student_t_quantile(confidence: float, df: float) -> float:
    """Return the t with P(|T| ≤ t) = confidence."""
    return float(special.stdtrit(df, (1 + confidence) / 2))


def chi_square_quantile(probability: float, df: float) -> float:
    """Return the x with P(X ≤ x) = probability of the chi-square distribution."""
    return float(special.chdtri(df, 1 - probability))

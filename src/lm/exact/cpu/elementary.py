"""Functions of single numbers: exponential, logarithm, sigmoid."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import math

import numpy as np

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ONE, ZERO
from lm.exact.cpu.registers import fma, times_power
from lm.exact.order import EXP_COEFFICIENTS, LOG2E, LOG2E_LOW, LOG_2, LOG_TERMS, MAGIC, SMALLEST_EXPONENT

E0, E1, E2, E3, E4, E5, E6 = EXP_COEFFICIENTS


@loop
def exp(x):
    """Return exp(x) of x ≤ 0, at least that of SMALLEST_EXPONENT; NaN stays NaN."""
    x = SMALLEST_EXPONENT if x < SMALLEST_EXPONENT else x
    magic = x * LOG2E + MAGIC
    whole = magic - MAGIC
    f = fma(x, LOG2E_LOW, fma(x, LOG2E, -whole))
    p = fma(E0, f, E1)
    p = fma(p, f, E2)
    p = fma(p, f, E3)
    p = fma(p, f, E4)
    p = fma(p, f, E5)
    p = fma(p, f, E6)
    power = times_power(p, magic)
    return power if x == x else x  # the bits of a NaN may become those of a number


@loop
def log(x):
    """Return log(x), float64, of x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    mantissa, exponent = math.frexp(np.float64(x))
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    total = 0.0
    for n in range(LOG_TERMS, 0, -2):
        total = total * square + 1.0 / n
    return total * z * 2.0 + exponent * LOG_2


@loop
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    is_positive = x > ZERO
    small = exp(-x if is_positive else x)
    numerator = ONE if is_positive else small
    return numerator / (ONE + small)

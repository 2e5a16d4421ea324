"""Functions of single numbers: exponential, logarithm, sigmoid."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from lm.exact.gpu.constants import (
    E0,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    INFINITY,
    LOG2E,
    LOG2E_LOW,
    LOG_2,
    LOG_TERMS,
    MAGIC,
    NAN,
    SMALLEST_EXPONENT,
)


@triton.jit
def exp(x):
    """Return exp(x) of x ≤ 0, at least that of SMALLEST_EXPONENT; NaN stays NaN."""
    x = tl.where(x < SMALLEST_EXPONENT, SMALLEST_EXPONENT, x)
    magic = x * LOG2E + MAGIC
    whole = magic - MAGIC
    f = tl.fma(x, LOG2E_LOW, tl.fma(x, LOG2E, -whole))
    p = tl.fma(f, E0, E1)
    p = tl.fma(p, f, E2)
    p = tl.fma(p, f, E3)
    p = tl.fma(p, f, E4)
    p = tl.fma(p, f, E5)
    p = tl.fma(p, f, E6)
    bits = p.to(tl.int32, bitcast=True) + (magic.to(tl.int32, bitcast=True) << 23)  # p 2^whole
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # the bits of a NaN may become those of a number


@triton.jit
def log(x):
    """Return log(x), float64, of normal x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) & 255) - 126
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True).to(tl.float64)
    z = (mantissa - 1.0) / (mantissa + 1.0)  # of float64, which is rounded to nearest
    square = z * z
    total = square * 0.0
    for n in tl.static_range(LOG_TERMS, 0, -2):
        total = total * square + 1.0 / n
    result = total * z * 2.0 + exponent.to(tl.float64) * LOG_2
    return tl.where(x < INFINITY, result, NAN)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    small = exp(tl.where(x > 0.0, -x, x))
    return tl.math.div_rn(tl.where(x > 0.0, 1.0, small), 1.0 + small)

"""Constants of lm.exact.order for kernels, and other numbers of kernels."""

import triton.language as tl

from lm.exact import order

TERMS = tl.constexpr(order.TERMS)
LANES = tl.constexpr(order.LANES)
SUM_ROWS = tl.constexpr(order.SUM_ROWS)
LOG2E = tl.constexpr(float(order.LOG2E))
LOG2E_LOW = tl.constexpr(float(order.LOG2E_LOW))
MAGIC = tl.constexpr(float(order.MAGIC))
SMALLEST_EXPONENT = tl.constexpr(float(order.SMALLEST_EXPONENT))
E0, E1, E2, E3, E4, E5, E6 = (tl.constexpr(float(coefficient)) for coefficient in order.EXP_COEFFICIENTS)
LOG_2 = tl.constexpr(order.LOG_2)
LOG_TERMS = tl.constexpr(order.LOG_TERMS)
GELU_SCALE = tl.constexpr(float(order.GELU_SCALE))
GELU_CUBIC = tl.constexpr(float(order.GELU_CUBIC))
GELU_CUBIC_SLOPE = tl.constexpr(float(order.GELU_CUBIC_SLOPE))
NEWTON_SCHULZ_EPS = tl.constexpr(float(order.NEWTON_SCHULZ_EPS))
INFINITY = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
WHOLE_FROM = tl.constexpr(2.0**52)  # from here on float64 numbers are integers

# What follows decides how fast the kernels are, and no bit.
UNROLL = tl.constexpr(8)  # steps of a loop whose loads are under way together

"""The definition of exact numerics: what decides a bit is here and nowhere else.

A number is made by additions, multiplications, divisions, square roots and fused multiply-adds (`fma`). IEEE 754 rounds
each of them alike on every processor, so the bits depend on the order of the additions alone.

- A sum begins at +0 and takes its terms one after the other, so it never is -0. A term of weight 0 may be left out.
- Long sums are cut into chains or blocks, which begin at multiples of their length from position 0 on.
- Tiles, bands, threads and devices decide how many results are computed at once. They decide no bit.
"""

import math

import numpy as np

# Lengths.

TERMS = 256  # products that are added by fma in one chain; the sums of the chains are added in order
LANES = 64  # partial sums of a row: number j of the row belongs to lane j % LANES; then halves of the lanes are added
NORM_NUMBERS = 4096  # numbers whose squares are added as a row, in float32; such blocks are added in float64, in order
SUM_ROWS = 128  # rows whose gradients of a norm's weight are added in order; the sums of such blocks are added in order
SHORT_WINDOW = 16  # tokens: shorter windows of attention are added token by token, not in chains of TERMS

# Gradients of several micro-batches are added as integers, and so are nats.

GRADIENT_UNIT = 2.0**-40  # what 1 stands for
LARGEST_GRADIENT = 2.0**50  # the largest such integer, so that a thousand of them fit into 64 bits

NATS_UNIT = 2.0**-30  # nats for which 1 stands

# Exponential and logarithm: exp(x) = 2^whole 2^f with |f| ≤ 1/2, and 2^f is a polynomial.

LOG2_OF_E = 1.4426950408889634
LOG2E = np.float32(LOG2_OF_E)
LOG2E_LOW = np.float32(LOG2_OF_E - float(LOG2E))  # what float32 cannot hold of it
MAGIC = np.float32(1.5 * 2**23)  # float32 numbers near it are integers
SMALLEST_EXPONENT = np.float32(-41.5)  # smaller ones count as this one, because subnormal numbers are slow
EXP_COEFFICIENTS = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.535336188319500e-4,
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    )
)
LOG_2 = 0.6931471805599453
LOG_TERMS = 27  # the highest power in the series of the logarithm

# The gate: gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2 / π) (x + 0.044715 x³).

GELU_SCALE = np.float32(2 * math.sqrt(2 / math.pi))
GELU_CUBIC = np.float32(0.044715)
GELU_CUBIC_SLOPE = np.float32(3 * 0.044715)

# Newton-Schulz iteration.

NEWTON_SCHULZ_EPS = np.float32(1e-7)  # is added to the norm of a matrix

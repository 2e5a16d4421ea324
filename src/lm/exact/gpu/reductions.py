"""Sums and the largest number of rows."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from lm.exact.gpu.constants import INFINITY, LANES, UNROLL
from lm.exact.gpu.elementary import exp


@triton.jit
def sum_of_lanes(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the sums (ROWS,) of x (ROWS, WIDTH): the second half is added to the first until one lane is left."""
    if WIDTH == 1:
        return tl.reshape(x, (ROWS,)) + 0.0  # a sum is never -0
    else:
        halves = tl.reshape(x, (ROWS, 2, WIDTH // 2))
        low, high = tl.split(tl.permute(halves, (0, 2, 1)))  # `split` takes the last dimension apart
        return sum_of_lanes(low + high, ROWS, WIDTH // 2)


@triton.jit
def row_squares(x, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of the squares of `width` (ROWS, 1) numbers from the addresses x (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=0.0)
        lanes = tl.fma(number, number, lanes)  # a square of 0 changes no lane, for none is -0
    return sum_of_lanes(lanes, ROWS, LANES)


@triton.jit
def row_dots(x, y, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of x * y of `width` (ROWS, 1) numbers from the addresses x and y (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=0.0)
        factor = tl.load(y + j + lane, mask=inside, other=0.0)
        added = tl.fma(number, factor, lanes)
        lanes = tl.where(inside, added, lanes)
    return sum_of_lanes(lanes, ROWS, LANES)


@triton.jit
def row_max(x, width, longest, ROWS: tl.constexpr):
    """Return the largest of `width` (ROWS, 1) numbers from the addresses x (ROWS, 1) on; NaN does not count."""
    lane = tl.arange(0, LANES)[None, :]
    largest = tl.full((ROWS, LANES), -INFINITY, tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=-INFINITY)
        largest = tl.where(number > largest, number, largest)
    return tl.max(largest, 1)


@triton.jit
def row_exponentials(x, largest, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of exp(number - largest) of `width` numbers from the addresses x (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=0.0)
        exponential = exp(number - largest[:, None])
        lanes = tl.where(inside, lanes + exponential, lanes)
    return sum_of_lanes(lanes, ROWS, LANES)

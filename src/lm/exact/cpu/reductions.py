"""Sums and the largest number of a row."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import numpy as np

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ZERO
from lm.exact.cpu.registers import (
    add,
    add_product,
    lanes_of,
    larger,
    largest_lane,
    load_lanes,
    load_last_lanes,
    sum_of_lanes,
)
from lm.exact.order import LANES, NORM_NUMBERS


@loop
def row_sum(x):
    """Return the sum of x (N,)."""
    lanes = lanes_of(ZERO)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = add(lanes, load_lanes(x, start))
    if whole < len(x):
        lanes = add(lanes, load_last_lanes(x, whole, ZERO))
    return sum_of_lanes(lanes)


@loop
def row_dot(x, y):
    """Return the sum of x * y, both (N,); it never is -0, however many zeros follow the last number."""
    lanes = lanes_of(ZERO)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = add_product(lanes, load_lanes(x, start), load_lanes(y, start))
    if whole < len(x):
        lanes = add_product(lanes, load_last_lanes(x, whole, ZERO), load_last_lanes(y, whole, ZERO))
    return sum_of_lanes(lanes) + ZERO


@loop
def row_max(x):
    """Return the largest number of x (N,); NaN does not count."""
    lowest = np.float32(-np.inf)
    lanes = lanes_of(lowest)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = larger(lanes, load_lanes(x, start))
    if whole < len(x):
        lanes = larger(lanes, load_last_lanes(x, whole, lowest))
    return largest_lane(lanes)


@loop
def square_sum(x):
    """Return the sum, float64, of the squares of x (N,)."""
    total = 0.0
    for start in range(0, len(x), NORM_NUMBERS):
        block = x[start : start + NORM_NUMBERS]
        total += np.float64(row_dot(block, block))
    return total

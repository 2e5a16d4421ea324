"""RMS norm, and its gradients."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false, reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.constants import LANES, SUM_ROWS, UNROLL
from lm.exact.gpu.launch import ROW_NUMBERS, cdiv, launch
from lm.exact.gpu.products import add_chains_kernel
from lm.exact.gpu.reductions import row_squares, sum_of_lanes


def rows_per_program(width: int) -> int:
    """Return how many rows a program computes, a power of two."""
    rows_that_fit = ROW_NUMBERS // max(width, 1)
    power_of_two = triton.next_power_of_2(rows_that_fit + 1) // 2
    return max(1, min(32, power_of_two))


@triton.jit
def own_rows(num_rows, width, ROWS: tl.constexpr):
    """Return the rows (ROWS,) of a program, whether they exist, and their first number and length, both (ROWS, 1).

    The length of a row that does not exist is 0.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    start = row[:, None].to(tl.int64) * width
    own_width = tl.where(is_row, width, 0)[:, None]
    return row, is_row, start, own_width


@triton.jit
def load_gain(weight, j, lane, width):
    """Return 1 + w of LANES columns from j on."""
    return 1.0 + tl.load(weight + j + lane, mask=j + lane < width, other=0.0)


@triton.jit
def rms_norm_kernel(x, weight, out, r, num_rows, width, eps, ROWS: tl.constexpr):
    """out = x r (1 + w) for rows of x, r = 1 / sqrt(mean(x²) + eps)."""
    row, is_row, start, own_width = own_rows(num_rows, width, ROWS)
    squares = row_squares(x + start, own_width, width, ROWS)
    mean = tl.math.div_rn(squares, tl.cast(width, tl.float32))
    inverse = tl.math.div_rn(1.0, tl.math.sqrt_rn(mean + eps))
    tl.store(r + row, inverse, mask=is_row)

    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = load_gain(weight, j, lane, width)
        result = number * inverse[:, None] * gain
        tl.store(out + start + j + lane, result, mask=inside)


@triton.jit
def rms_norm_gradient_kernel(grad, x, weight, r, grad_x, num_rows, width, ROWS: tl.constexpr):
    """Write the gradient of rows of x."""
    row, is_row, start, own_width = own_rows(num_rows, width, ROWS)
    inverse = tl.load(r + row, mask=is_row, other=0.0)
    lane = tl.arange(0, LANES)[None, :]

    # The component along x, which the norm removes.
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = load_gain(weight, j, lane, width)
        scaled = tl.load(grad + start + j + lane, mask=inside, other=0.0) * gain
        lanes = tl.where(inside, tl.fma(scaled, number, lanes), lanes)
    dot = sum_of_lanes(lanes, ROWS, LANES)
    along = tl.math.div_rn(dot * inverse, tl.cast(width, tl.float32))

    # The gradient without it.
    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = load_gain(weight, j, lane, width)
        scaled = tl.load(grad + start + j + lane, mask=inside, other=0.0) * gain
        unit = number * inverse[:, None]
        result = (scaled - unit * along[:, None]) * inverse[:, None]
        tl.store(grad_x + start + j + lane, result, mask=inside)


@triton.jit
def norm_weight_gradient_kernel(grad, x, r, sums, num_rows, width, BLOCK: tl.constexpr):
    """sums (blocks, width) = +0 and grad x r of the SUM_ROWS rows of each block, one after the other."""
    block = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    first = block * SUM_ROWS
    last = tl.minimum(first + SUM_ROWS, num_rows)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(first, last, loop_unroll_factor=UNROLL):
        number = tl.load(x + row * width + j, mask=inside, other=0.0)
        unit = number * tl.load(r + row)
        slope = tl.load(grad + row * width + j, mask=inside, other=0.0)
        total = total + slope * unit
    tl.store(sums + block * width + j, total, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x r (1 + w) (N, C) for x (N, C) and weight (C,), and r (N,) = 1 / sqrt(mean(x²) + eps)."""
    num_rows, width = x.shape
    out = torch.empty_like(x)
    r = x.new_empty(num_rows)
    rows = rows_per_program(width)
    grid = (cdiv(num_rows, rows),)
    launch(rms_norm_kernel, grid, x, weight, out, r, num_rows, width, eps, ROWS=rows)
    return out, r


def rms_norm_gradient(grad: Tensor, x: Tensor, weight: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (N, C) and of weight (C,)."""
    num_rows, width = x.shape

    # The gradient of x.
    grad_x = torch.empty_like(x)
    rows = rows_per_program(width)
    grid = (cdiv(num_rows, rows),)
    launch(rms_norm_gradient_kernel, grid, grad, x, weight, r, grad_x, num_rows, width, ROWS=rows)

    # The gradient of the weight: sums of blocks of rows.
    num_blocks = cdiv(num_rows, order.SUM_ROWS)
    sums = x.new_empty(num_blocks, width)
    grid = (num_blocks, cdiv(width, 128))
    launch(norm_weight_gradient_kernel, grid, grad, x, r, sums, num_rows, width, BLOCK=128)

    # The sums of the blocks, which are added in order.
    grad_weight = torch.empty_like(weight)
    grid = (cdiv(width, 32),)
    launch(add_chains_kernel, grid, sums, grad_weight, num_blocks, width, ADDS=False, BLOCK=32, num_warps=1)
    return grad_x, grad_weight

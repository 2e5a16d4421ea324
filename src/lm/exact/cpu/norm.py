"""RMS norm, and its gradients."""

import math

import numpy as np
import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ONE, ZERO
from lm.exact.cpu.parts import array, rows_of_part, run
from lm.exact.cpu.reductions import row_dot
from lm.exact.order import SUM_ROWS


@loop
def norm_row(x, weight, eps, out):
    """Write x r (1 + w) to out, all (C,); return r."""
    mean = row_dot(x, x) / np.float32(len(x))
    r = ONE / np.sqrt(mean + eps)
    for j in range(len(x)):
        out[j] = x[j] * r * (ONE + weight[j])
    return r


@loop
def norm_gradient_row(grad, x, weight, r, grad_x, grad_weight, gain):
    """Write the gradient of x to grad_x, add that of the weight to grad_weight; gain (C,) is overwritten."""
    # The gradient of the weight, and that of x r.
    for j in range(len(x)):
        unit = x[j] * r
        grad_weight[j] += grad[j] * unit
        gain[j] = grad[j] * (ONE + weight[j])

    # The gradient of x, without the component along x, which the norm removes.
    along = row_dot(gain, x) * r / np.float32(len(x))
    for j in range(len(x)):
        unit = x[j] * r
        grad_x[j] = (gain[j] - unit * along) * r


@loop
def rms_norm_loop(x, weight, eps, out, r, part, parts):
    for n in rows_of_part(len(x), part, parts):
        r[n] = norm_row(x[n], weight, eps, out[n])


@loop
def rms_norm_gradient_loop(grad, x, weight, r, grad_x, block_sums, part, parts):
    """Write the gradient of the weight by every SUM_ROWS rows to block_sums (blocks, C)."""
    gain = np.empty(x.shape[1], np.float32)
    for block in rows_of_part(len(block_sums), part, parts):
        grad_weight = block_sums[block]
        grad_weight[:] = ZERO
        first = block * SUM_ROWS
        last = min(len(x), first + SUM_ROWS)
        for n in range(first, last):
            norm_gradient_row(grad[n], x[n], weight, r[n], grad_x[n], grad_weight, gain)


@loop
def add_rows(x, total):
    """total (C,) = +0 and the rows of x (N, C), added one after the other."""
    for j in range(len(total)):
        total[j] = ZERO
    for n in range(len(x)):
        for j in range(len(total)):
            total[j] += x[n, j]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x r (1 + w) (N, C) for x (N, C) and weight (C,), and r (N,) = 1 / sqrt(mean(x²) + eps)."""
    out = torch.empty_like(x)
    r = x.new_empty(len(x))
    run(rms_norm_loop, x, weight, np.float32(eps), out, r, work=x.numel())
    return out, r


def rms_norm_gradient(grad: Tensor, x: Tensor, weight: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (N, C) and of weight (C,)."""
    grad_x = torch.empty_like(x)
    num_blocks = math.ceil(len(x) / SUM_ROWS)
    block_sums = x.new_empty(num_blocks, len(weight))
    run(rms_norm_gradient_loop, grad, x, weight, r, grad_x, block_sums, work=3 * x.numel())

    # The sums of blocks of rows are added in order.
    grad_weight = torch.empty_like(weight)
    add_rows(array(block_sums), array(grad_weight))
    return grad_x, grad_weight

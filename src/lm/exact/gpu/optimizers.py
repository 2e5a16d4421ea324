"""The updates of AdamW and of Muon."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import NEWTON_SCHULZ_EPS, UNROLL
from lm.exact.gpu.gradients import block_sums
from lm.exact.gpu.launch import NUMBERS, cdiv, launch
from lm.exact.gpu.products import multiply_matrices
from lm.exact.order import AdamWScalars


@triton.jit
def adamw_kernel(p, grad, mean, square, size_of_p, beta1, beta2, decay, size, root, eps, BLOCK: tl.constexpr):
    """Update p and both moments."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size_of_p

    # The moments.
    slope = tl.load(grad + i, mask=inside, other=0.0)
    old_first = tl.load(mean + i, mask=inside, other=0.0)
    first = old_first * beta1 + slope * (1.0 - beta1)
    old_second = tl.load(square + i, mask=inside, other=0.0)
    second = old_second * beta2 + slope * slope * (1.0 - beta2)
    tl.store(mean + i, first, mask=inside)
    tl.store(square + i, second, mask=inside)

    # The parameters.
    scale = tl.math.div_rn(tl.math.sqrt_rn(second), root) + eps
    change = tl.math.div_rn(first * size, scale)
    old = tl.load(p + i, mask=inside, other=0.0)
    tl.store(p + i, old * decay - change, mask=inside)


def adamw(p: Tensor, grad: Tensor, mean: Tensor, square: Tensor, scalars: AdamWScalars) -> None:
    """Update both moments, and p to p · decay - size · mean / (sqrt(square) / root + eps); all have one shape."""
    numbers = [float(np.float32(number)) for number in scalars]
    grid = (cdiv(p.numel(), NUMBERS),)
    launch(adamw_kernel, grid, p, grad, mean, square, p.numel(), *numbers, BLOCK=NUMBERS)


@triton.jit
def matrix_sizes_kernel(sums, sizes, num_blocks):
    """sizes = the root of the sums (n, num_blocks), which are added in float64 and in order, plus NEWTON_SCHULZ_EPS."""
    matrix = tl.program_id(0)
    total = tl.cast(0.0, tl.float64)
    for block in tl.range(0, num_blocks, loop_unroll_factor=UNROLL):
        block_sum = tl.load(sums + matrix * num_blocks + block)
        total = total + block_sum.to(tl.float64)
    size = tl.sqrt(total).to(tl.float32)  # of float64, which is rounded to nearest
    tl.store(sizes + matrix, size + NEWTON_SCHULZ_EPS)


@triton.jit
def divide_kernel(x, sizes, out, size_of_matrix, BLOCK: tl.constexpr):
    """out = x / the size of its matrix."""
    matrix = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size_of_matrix
    place = matrix * size_of_matrix + i
    number = tl.load(x + place, mask=inside, other=0.0)
    quotient = tl.math.div_rn(number, tl.load(sizes + matrix))
    tl.store(out + place, quotient, mask=inside)


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    updates = updates.contiguous()
    num_matrices, num_rows, num_columns = updates.shape
    a, b, c = (float(np.float32(coefficient)) for coefficient in coefficients)

    # The norms.
    sums, blocks = block_sums([*updates])
    sizes = updates.new_empty(num_matrices)
    launch(matrix_sizes_kernel, (num_matrices,), sums, sizes, blocks[0], num_warps=1)

    # Divide by them.
    x = torch.empty_like(updates)
    next_x = torch.empty_like(updates)
    size_of_matrix = num_rows * num_columns
    grid = (cdiv(size_of_matrix, NUMBERS), num_matrices)
    launch(divide_kernel, grid, updates, sizes, x, size_of_matrix, BLOCK=NUMBERS)

    # x becomes a x + (b g + c g g) x for g = x x^T.
    gram = updates.new_empty(num_matrices, num_rows, num_rows)
    polynomial = torch.empty_like(gram)
    for _ in range(num_steps):
        multiply_matrices(x, x.mT.contiguous(), gram)
        multiply_matrices(gram, gram, polynomial, scale=c, other=gram, other_scale=b)
        multiply_matrices(polynomial, x, next_x, other=x, other_scale=a)
        x, next_x = next_x, x
    return x

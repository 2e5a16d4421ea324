"""The updates of AdamW and of Muon."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ONE
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.products import whole_product
from lm.exact.cpu.reductions import square_sum
from lm.exact.cpu.registers import any_layout
from lm.exact.order import NEWTON_SCHULZ_EPS, AdamWScalars


@loop
def adamw_loop(x, grad, mean, square, beta1, beta2, decay, size, root, eps, part, parts):
    keep1 = ONE - beta1
    keep2 = ONE - beta2
    # Views of this part count from 0, so that LLVM computes with vectors.
    numbers = rows_of_part(len(x), part, parts)
    own = slice(numbers.start, numbers.stop)
    x = x[own]
    grad = grad[own]
    mean = mean[own]
    square = square[own]
    for j in range(len(x)):
        mean[j] = mean[j] * beta1 + grad[j] * keep1
        square[j] = square[j] * beta2 + grad[j] * grad[j] * keep2
        scale = np.sqrt(square[j]) / root + eps
        x[j] = x[j] * decay - mean[j] * size / scale


@loop
def orthogonalize_loop(updates, num_steps, a, b, c, part, parts):
    """Divide each matrix x by its norm; then replace it `num_steps` times by a x + (b g + c g g) x, where g = x x^T."""
    _, R, C = updates.shape
    gram = np.empty((R, R), np.float32)
    square = np.empty((R, R), np.float32)
    next_x = np.empty((R, C), np.float32)
    for n in rows_of_part(len(updates), part, parts):
        # Divide by the norm.
        x = updates[n]
        flat = x.reshape(R * C)
        size = np.float32(np.sqrt(square_sum(flat))) + NEWTON_SCHULZ_EPS
        for j in range(len(flat)):
            flat[j] /= size

        for _ in range(num_steps):
            # g and g g.
            whole_product(any_layout(x), any_layout(x.T), any_layout(gram))
            whole_product(any_layout(gram), any_layout(gram), any_layout(square))

            # b g + c g g.
            polynomial = square
            for i in range(R):
                for j in range(R):
                    polynomial[i, j] = square[i, j] * c + gram[i, j] * b

            # The next x.
            whole_product(any_layout(polynomial), any_layout(x), any_layout(next_x))
            for i in range(R):
                for j in range(C):
                    x[i, j] = next_x[i, j] + x[i, j] * a


def adamw(p: Tensor, grad: Tensor, mean: Tensor, square: Tensor, scalars: AdamWScalars) -> None:
    """Update both moments, and p to p · decay - size · mean / (sqrt(square) / root + eps); all have one shape."""
    arrays = [x.view(-1) for x in (p, grad, mean, square)]
    numbers = [np.float32(number) for number in scalars]
    run(adamw_loop, *arrays, *numbers, work=2 * p.numel())


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    result = updates.clone()
    a, b, c = (np.float32(coefficient) for coefficient in coefficients)
    run(orthogonalize_loop, result, num_steps, a, b, c, work=8 * num_steps * result.numel())
    return result

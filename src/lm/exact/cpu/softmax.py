"""Softmax of a row."""

import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.elementary import exp
from lm.exact.cpu.parts import array
from lm.exact.cpu.reductions import row_max, row_sum


@loop
def exponentials_(x):
    """Replace x (S,) by exp(x - largest); return the largest number and the sum of the exponentials."""
    largest = row_max(x)
    for j in range(len(x)):
        x[j] = exp(x[j] - largest)
    return largest, row_sum(x)


@loop
def softmax_(x):
    """Replace x (S,) by its softmax."""
    total = exponentials_(x)[1]
    for j in range(len(x)):
        x[j] /= total


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.clone()
    softmax_(array(p))
    return p.masked_fill_(x == -torch.inf, 0)

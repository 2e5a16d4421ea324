"""The size of gradients, and gradients as integers."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.parts import array, rows_of_part, run
from lm.exact.cpu.reductions import square_sum


@loop
def multiples_loop(x, unit, largest, out, part, parts):
    for j in rows_of_part(len(x), part, parts):
        number = np.rint(np.float64(x[j]) / unit)
        if number != number:  # NaN
            number = 0.0
        limited = min(max(number, -largest), largest)
        out[j] = np.int64(limited)


def square_sums(tensors: Iterable[Tensor]) -> list[float]:
    """Return the float64 sum of the squares of each tensor, of any shape."""
    sums = []
    for x in tensors:
        flat = x.reshape(-1).contiguous()
        sums.append(square_sum(array(flat)))
    return sums


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x (any shape) as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0."""
    numbers = x.contiguous().view(-1)
    result = torch.empty(x.shape, dtype=torch.int64)
    run(multiples_loop, numbers, unit, largest, result.view(-1), work=x.numel())
    return result

"""Sums of rows that ids choose."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportArgumentType=false

import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import UNROLL
from lm.exact.gpu.launch import cdiv, launch


@triton.jit
def sum_bags_kernel(rows, ids, starts, out, num_bags, num_ids, width, BLOCK: tl.constexpr):
    """out (num_bags, width) = +0 and the rows of the ids of each bag, one after the other."""
    bag = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    first = tl.load(starts + bag)
    last = tl.load(starts + bag + 1, mask=bag + 1 < num_bags, other=num_ids)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in tl.range(first, last, loop_unroll_factor=UNROLL):
        row = rows + tl.load(ids + n) * width
        total = total + tl.load(row + j, mask=inside, other=0.0)
    tl.store(out + bag * width + j, total, mask=inside)


def sum_bags(rows: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Return sums (K, C) of rows (R, C): row i adds those of ids (N,) from starts[i] to starts[i + 1], in order."""
    num_bags = len(starts)
    width = rows.shape[1]
    out = rows.new_empty(num_bags, width)
    block = min(triton.next_power_of_2(width), 128)
    grid = (num_bags, cdiv(width, block))
    launch(sum_bags_kernel, grid, rows, ids, starts, out, num_bags, len(ids), width, BLOCK=block, num_warps=1)
    return out

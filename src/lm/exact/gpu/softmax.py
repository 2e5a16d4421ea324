"""Softmax of the scores of attention, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import LANES, UNROLL
from lm.exact.gpu.elementary import exp
from lm.exact.gpu.launch import launch
from lm.exact.gpu.reductions import row_dots, row_exponentials, row_max

SCORE_ROWS = 4  # that a program turns into a softmax, each by one warp


@triton.jit
def softmax_kernel(scores, first, T, S, H, num_rows, ROWS: tl.constexpr):
    """Replace rows (B, H, T, S) of scores by their softmax over what each position sees, and by 0 elsewhere."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    t = row % T
    begin = tl.load(first + row // (T * H) * T + t, mask=is_row, other=0)
    width = tl.where(is_row, S - T + t + 1 - begin, 0)[:, None]
    longest = tl.max(tl.max(width, 1), 0)
    start = row[:, None].to(tl.int64) * S
    seen = scores + start + begin[:, None]
    largest = row_max(seen, width, longest, ROWS)
    total = row_exponentials(seen, largest, width, longest, ROWS)
    tl.debug_barrier()  # no thread writes before all have read

    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, S, LANES, loop_unroll_factor=UNROLL):
        position = j + lane
        is_seen = (position >= begin[:, None]) & (position < begin[:, None] + width)
        score = tl.load(scores + start + position, mask=is_seen, other=0.0)
        weight = tl.math.div_rn(exp(score - largest[:, None]), total[:, None])
        inside = is_row[:, None] & (position < S)
        tl.store(scores + start + position, tl.where(is_seen, weight, 0.0), mask=inside)


@triton.jit
def slopes_kernel(slopes, p, first, T, H, num_rows, ROWS: tl.constexpr):
    """Replace rows (B, H, T, T) of the gradient of p by that of the scores, and by 0 where a position sees nothing."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    t = row % T
    begin = tl.load(first + row // (T * H) * T + t, mask=is_row, other=0)
    width = tl.where(is_row, t + 1 - begin, 0)[:, None]
    longest = tl.max(tl.max(width, 1), 0)
    start = row[:, None].to(tl.int64) * T
    seen = start + begin[:, None]
    along = row_dots(slopes + seen, p + seen, width, longest, ROWS)
    tl.debug_barrier()  # no thread writes before all have read

    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, T, LANES, loop_unroll_factor=UNROLL):
        position = j + lane
        is_seen = (position >= begin[:, None]) & (position < begin[:, None] + width)
        slope = tl.load(slopes + start + position, mask=is_seen, other=0.0)
        weight = tl.load(p + start + position, mask=is_seen, other=0.0)
        inside = is_row[:, None] & (position < T)
        tl.store(slopes + start + position, tl.where(is_seen, (slope - along[:, None]) * weight, 0.0), mask=inside)


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.clone()
    first = torch.zeros(1, dtype=torch.int32, device=x.device)
    launch(softmax_kernel, (1,), p, first, 1, len(p), 1, 1, ROWS=1, num_warps=1)
    return p.masked_fill_(x == -torch.inf, 0)

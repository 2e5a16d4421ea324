"""Softmax of the scores of attention, and its gradient."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import LANES, UNROLL
from lm.exact.gpu.elementary import exp
from lm.exact.gpu.launch import cdiv, launch
from lm.exact.gpu.reductions import row_dots, row_exponentials, row_max

SCORE_ROWS = 4  # rows of scores of a program, each computed by one warp


@triton.jit
def seen_by(row, is_row, first, T, S, H):
    """Return the first position (ROWS, 1) that rows of scores (B, H, T, S) see, and how many they see (ROWS, 1).

    A row that does not exist sees none.
    """
    t = row % T
    sequence = row // (T * H)
    begin = tl.load(first + sequence * T + t, mask=is_row, other=0)
    width = tl.where(is_row, S - T + t + 1 - begin, 0)
    return begin[:, None], width[:, None]


@triton.jit
def softmax_kernel(scores, first, T, S, H, num_rows, ROWS: tl.constexpr):
    """Replace rows (B, H, T, S) of scores by their softmax over what each position sees, and by 0 elsewhere."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    begin, width = seen_by(row, is_row, first, T, S, H)
    longest = tl.max(tl.max(width, 1), 0)

    # The largest score and the sum of the exponentials.
    start = row[:, None].to(tl.int64) * S
    seen = scores + start + begin
    largest = row_max(seen, width, longest, ROWS)
    total = row_exponentials(seen, largest, width, longest, ROWS)
    tl.debug_barrier()  # no thread writes before all have read

    # The softmax.
    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, S, LANES, loop_unroll_factor=UNROLL):
        position = j + lane
        is_seen = (position >= begin) & (position < begin + width)
        score = tl.load(scores + start + position, mask=is_seen, other=0.0)
        weight = tl.math.div_rn(exp(score - largest[:, None]), total[:, None])
        result = tl.where(is_seen, weight, 0.0)
        inside = is_row[:, None] & (position < S)
        tl.store(scores + start + position, result, mask=inside)


@triton.jit
def slopes_kernel(slopes, p, first, T, H, num_rows, ROWS: tl.constexpr):
    """Replace rows (B, H, T, T) of the gradient of p by that of the scores, and by 0 where a position sees nothing."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    begin, width = seen_by(row, is_row, first, T, T, H)
    longest = tl.max(tl.max(width, 1), 0)

    # The component that the softmax removes.
    start = row[:, None].to(tl.int64) * T
    seen = start + begin
    along = row_dots(slopes + seen, p + seen, width, longest, ROWS)
    tl.debug_barrier()  # no thread writes before all have read

    # The gradient of the scores.
    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, T, LANES, loop_unroll_factor=UNROLL):
        position = j + lane
        is_seen = (position >= begin) & (position < begin + width)
        slope = tl.load(slopes + start + position, mask=is_seen, other=0.0)
        weight = tl.load(p + start + position, mask=is_seen, other=0.0)
        result = tl.where(is_seen, (slope - along[:, None]) * weight, 0.0)
        inside = is_row[:, None] & (position < T)
        tl.store(slopes + start + position, result, mask=inside)


def softmax_(scores: Tensor, first: Tensor) -> Tensor:
    """Replace scores (B, H, T, S) by their softmax over what each position sees, and by 0 elsewhere; return them."""
    B, H, T, S = scores.shape
    num_rows = B * H * T
    grid = (cdiv(num_rows, SCORE_ROWS),)
    launch(softmax_kernel, grid, scores, first, T, S, H, num_rows, ROWS=SCORE_ROWS)
    return scores


def softmax_gradient_(slopes: Tensor, p: Tensor, first: Tensor) -> Tensor:
    """Replace the gradient (B, H, T, T) of the softmax p by that of the scores; return it."""
    B, H, T, _ = slopes.shape
    num_rows = B * H * T
    grid = (cdiv(num_rows, SCORE_ROWS),)
    launch(slopes_kernel, grid, slopes, p, first, T, H, num_rows, ROWS=SCORE_ROWS)
    return slopes


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.clone()
    first = torch.zeros(1, dtype=torch.int32, device=x.device)
    T = H = num_rows = 1
    launch(softmax_kernel, (1,), p, first, T, len(p), H, num_rows, ROWS=1, num_warps=1)
    return p.masked_fill_(x == -torch.inf, 0)

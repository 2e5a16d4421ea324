"""Attention to windows of at most SHORT_WINDOW tokens, position by position.

A program computes rows (b, t, h), for windows of up to W positions.
"""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import INFINITY
from lm.exact.gpu.elementary import exp
from lm.exact.gpu.launch import ROW_NUMBERS, cdiv, launch
from lm.exact.gpu.reductions import row_dots, sum_of_lanes


@triton.jit
def key_dots(own, keys, step, D, num_seen, ROWS: tl.constexpr, W: tl.constexpr):
    """Return the sums (ROWS, W) of own * key over D numbers, for up to W keys, `step` numbers from one to the next.

    own and keys (ROWS, 1) are addresses. Sums beyond the first num_seen (ROWS, 1) are 0.
    """
    place = tl.arange(0, W)[None, :]
    dots = tl.zeros((ROWS, W), tl.float32)
    for w in range(W):
        width = tl.where(w < num_seen, D, 0)
        dot = row_dots(own, keys + w * step, width, D, ROWS)
        is_own = (place == w) & (w < num_seen)
        dots = tl.where(is_own, dot[:, None], dots)
    return dots


@triton.jit
def column_of(x, place, w):
    """Return column w (ROWS, 1) of x (ROWS, W), place (1, W) = 0, 1, …; the sum of integers is exact, NaN included."""
    bits = tl.where(place == w, x.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, 1)[:, None].to(tl.float32, bitcast=True)


@triton.jit
def add_weighted(weights, x, step, D, num_seen, column, ROWS: tl.constexpr, W: tl.constexpr):
    """Return +0 and weight * x, joined by fma, of up to W rows, `step` numbers from one to the next.

    x (ROWS, 1) are addresses, and column (1, BD) the numbers of a row of D.
    """
    place = tl.arange(0, W)[None, :]
    total = tl.zeros((ROWS, column.shape[1]), tl.float32)
    for w in range(W):
        inside = (w < num_seen) & (column < D)
        number = tl.load(x + w * step + column, mask=inside, other=0.0)
        weight = column_of(weights, place, w)
        total = tl.where(inside, tl.fma(weight, number, total), total)
    return total


@triton.jit
def own_queries(first, num_rows, T, S, H, K, D, ROWS: tl.constexpr):
    """Return the rows (b, t, h) of a program, all (ROWS, 1): their numbers, whether they exist, and what they see.

    A row sees num_seen positions, whose keys and values begin at from_k; one that does not exist sees none.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    head = row % H
    t = row // H % T
    b = row // (H * T)

    begin = tl.load(first + b * T + t, mask=is_row, other=0)
    num_seen = tl.where(is_row, S - T + t + 1 - begin, 0)
    position = b.to(tl.int64) * S + begin
    from_k = (position * K + head // (H // K)) * D
    query = row.to(tl.int64)
    return query[:, None], is_row[:, None], num_seen[:, None], from_k[:, None]


@triton.jit
def short_attention_kernel(
    q,
    k,
    v,
    first,
    p,
    out,
    num_rows,
    T,
    S,
    H,
    K,
    D,
    WINDOW,
    ROWS: tl.constexpr,
    W: tl.constexpr,
    BD: tl.constexpr,
):
    """Compute `short_attention` of rows of queries."""
    query, is_row, num_seen, from_k = own_queries(first, num_rows, T, S, H, K, D, ROWS)
    place = tl.arange(0, W)[None, :]
    is_seen = place < num_seen

    # The softmax of the scores.
    scores = key_dots(q + query * D, k + from_k, K * D, D, num_seen, ROWS, W)
    scores = tl.where(is_seen, scores, -INFINITY)
    largest = tl.max(tl.where(scores > -INFINITY, scores, -INFINITY), 1)[:, None]  # NaN does not count
    exponentials = tl.where(is_seen, exp(scores - largest), 0.0)
    total = sum_of_lanes(exponentials, ROWS, W)
    weights = tl.math.div_rn(exponentials, total[:, None])
    tl.store(p + query * WINDOW + place, weights, mask=is_seen)

    # The sum of the values.
    column = tl.arange(0, BD)[None, :]
    result = add_weighted(weights, v + from_k, K * D, D, num_seen, column, ROWS, W)
    tl.store(out + query * D + column, result, mask=is_row & (column < D))


@triton.jit
def short_slopes_kernel(
    grad,
    k,
    v,
    first,
    p,
    slopes,
    grad_q,
    num_rows,
    T,
    H,
    K,
    D,
    WINDOW,
    ROWS: tl.constexpr,
    W: tl.constexpr,
    BD: tl.constexpr,
):
    """Write the gradients of the scores, slopes (B, T, H, WINDOW), and of the queries."""
    query, is_row, num_seen, from_k = own_queries(first, num_rows, T, T, H, K, D, ROWS)
    place = tl.arange(0, W)[None, :]
    is_seen = place < num_seen

    # The gradient of the softmax, and the component of it that the softmax removes.
    weights = tl.load(p + query * WINDOW + place, mask=is_seen, other=0.0)
    slope = key_dots(grad + query * D, v + from_k, K * D, D, num_seen, ROWS, W)
    products = tl.fma(slope, weights, tl.zeros((ROWS, W), tl.float32))
    along = sum_of_lanes(products, ROWS, W)[:, None]

    # The gradient of the scores.
    slope = (slope - along) * weights
    tl.store(slopes + query * WINDOW + place, slope, mask=is_seen)

    # The gradient of the queries.
    column = tl.arange(0, BD)[None, :]
    result = add_weighted(slope, k + from_k, K * D, D, num_seen, column, ROWS, W)
    tl.store(grad_q + query * D + column, result, mask=is_row & (column < D))


@triton.jit
def short_position_sums_kernel(
    grad,
    q,
    first,
    p,
    slopes,
    grad_k,
    grad_v,
    num_rows,
    T,
    H,
    K,
    D,
    WINDOW,
    ROWS: tl.constexpr,
    BD: tl.constexpr,
):
    """Write the gradients of keys and values: rows (b, s, group) take queries, and heads of a query, in their order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    group = row % K
    s = row // K % T
    b = row // (K * T)
    column = tl.arange(0, BD)[None, :]
    is_number = column < D

    # Only the WINDOW positions from s on can see s.
    total_k = tl.zeros((ROWS, BD), tl.float32)
    total_v = tl.zeros((ROWS, BD), tl.float32)
    for w in range(WINDOW):
        t = s + w
        is_query = is_row & (t < T)
        begin = tl.load(first + b * T + t, mask=is_query, other=0)
        sees = is_query & (begin <= s)
        inside = sees[:, None] & is_number
        for h in range(H // K):
            head = group * (H // K) + h
            query = ((b.to(tl.int64) * T + t) * H + head)[:, None]

            # The slope and the weight of s, for this query and head.
            place = query * WINDOW + (s - begin)[:, None]
            slope = tl.load(slopes + place, mask=sees[:, None], other=0.0)
            weight = tl.load(p + place, mask=sees[:, None], other=0.0)

            # What they add to both gradients.
            number = tl.load(q + query * D + column, mask=inside, other=0.0)
            own = tl.load(grad + query * D + column, mask=inside, other=0.0)
            total_k = tl.where(inside, tl.fma(slope, number, total_k), total_k)
            total_v = tl.where(inside, tl.fma(weight, own, total_v), total_v)

    place = row.to(tl.int64)[:, None] * D + column
    is_own = is_row[:, None] & is_number
    tl.store(grad_k + place, total_k, mask=is_own)
    tl.store(grad_v + place, total_v, mask=is_own)


def short_constants(D: int) -> dict:
    """Return the constants of a kernel of short windows, given the width of a head."""
    BD = triton.next_power_of_2(D)
    rows_that_fit = ROW_NUMBERS // 4 // BD
    return {"ROWS": max(1, min(8, rows_that_fit)), "BD": BD}


def short_attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return the results of `attention` for a window of at most SHORT_WINDOW tokens; p (B, T, H, W) begins at first."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    kept = min(window, S)
    out = torch.empty_like(q)
    p = q.new_empty(B, T, H, kept)
    num_rows = B * T * H
    constants = short_constants(D) | {"W": triton.next_power_of_2(kept)}
    grid = (cdiv(num_rows, constants["ROWS"]),)
    launch(short_attention_kernel, grid, q, k, v, first, p, out, num_rows, T, S, H, K, D, kept, **constants)
    return out, p


def short_attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (B, T, H, D), k and v (B, T, K, D) of `short_attention`, given that of its result."""
    B, T, H, D = q.shape
    K = k.shape[2]
    window = p.shape[3]
    widths = T, H, K, D, window
    constants = short_constants(D)
    rows = constants["ROWS"]

    # The gradients of the scores and of the queries.
    slopes = torch.empty_like(p)
    grad_q = torch.empty_like(q)
    num_rows = B * T * H
    grid = (cdiv(num_rows, rows),)
    arguments = grad, k, v, first, p, slopes, grad_q, num_rows, *widths
    launch(short_slopes_kernel, grid, *arguments, **constants, W=triton.next_power_of_2(window))

    # The gradients of keys and values.
    grad_k = torch.empty_like(k)
    grad_v = torch.empty_like(v)
    num_rows = B * T * K
    grid = (cdiv(num_rows, rows),)
    arguments = grad, q, first, p, slopes, grad_k, grad_v, num_rows, *widths
    launch(short_position_sums_kernel, grid, *arguments, **constants)
    return grad_q, grad_k, grad_v

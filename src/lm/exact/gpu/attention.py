"""Attention to windows of more than SHORT_WINDOW tokens, by products of matrices.

Query head h of H reads the key/value head h // (H // K). A position t of the last T of S positions sees those from
first[b, t] up to S - T + t.
"""

import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.launch import cdiv, launch
from lm.exact.gpu.products import add_products, tile_of
from lm.exact.gpu.softmax import SCORE_ROWS, slopes_kernel, softmax_kernel
from lm.exact.gpu.tiles import FLAT_TILE, Tile

SCORES_TILE = Tile(128, 64, 16, 4)
QUERIES_TILE = Tile(64, 64, 16, 4)  # of the sums over positions that queries see
POSITIONS_TILE = Tile(64, 64, 16, 4)  # of the sums over queries that see positions


@triton.jit
def scores_kernel(
    q,
    k,
    first,
    scores,
    T,
    S,
    H,
    K,
    D,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """scores (B, H, T, S) = q k for q (B, T, H, D) and k (B, K, D, S); tiles that no position sees are not written."""
    tiles = tl.cdiv(T, BM) * tl.cdiv(S, BN)
    matrix = tl.program_id(0) // tiles
    b = matrix // H
    head = matrix % H
    top, left = tile_of(tl.program_id(0) % tiles, T, S, BM, BN)
    row = top + tl.arange(0, BM)
    column = left + tl.arange(0, BN)
    term = tl.arange(0, BK)
    is_row = row < T
    is_column = column < S

    begin = tl.min(tl.load(first + b * T + row, mask=is_row, other=S), 0)
    end = S - T + tl.minimum(top + BM, T)
    if (left < end) & (left + BN > begin):
        query = (b.to(tl.int64) * T + row) * H + head
        group = b.to(tl.int64) * K + head // (H // K)
        from_q = q + query[:, None] * D + term[None, :]
        from_k = k + (group * D + term)[:, None] * S + column[None, :]
        total = tl.zeros((BM, BN), tl.float32)
        total = add_products(total, from_q, from_k, 1, S, is_row, is_column, 0, D, D, MASKED, BM, BN, BK)
        place = (matrix.to(tl.int64) * T + row)[:, None] * S + column[None, :]
        tl.store(scores + place, total, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def query_sums_kernel(
    weights,
    x,
    first,
    out,
    T,
    S,
    H,
    K,
    D,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out (B, T, H, D) = weights (B, H, T, S) x (B, S, K, D), over the positions that a tile of queries sees."""
    tiles = tl.cdiv(T, BM) * tl.cdiv(D, BN)
    matrix = tl.program_id(0) // tiles
    b = matrix // H
    head = matrix % H
    top, left = tile_of(tl.program_id(0) % tiles, T, D, BM, BN)
    row = top + tl.arange(0, BM)
    column = left + tl.arange(0, BN)
    term = tl.arange(0, BK)
    is_row = row < T
    is_column = column < D

    begin = tl.min(tl.load(first + b * T + row, mask=is_row, other=S), 0) // BK * BK
    end = S - T + tl.minimum(top + BM, T)
    weight_row = matrix.to(tl.int64) * T + row
    position = b.to(tl.int64) * S + term
    from_weights = weights + weight_row[:, None] * S + term[None, :]
    from_x = x + (position * K + head // (H // K))[:, None] * D + column[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    total = add_products(total, from_weights, from_x, 1, K * D, is_row, is_column, begin, end, S, MASKED, BM, BN, BK)
    query = (b.to(tl.int64) * T + row) * H + head
    tl.store(out + query[:, None] * D + column[None, :], total, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def last_query(first, position, T, BLOCK: tl.constexpr):
    """Return the position after the last one of T that sees `position` or one before it, given first (T,)."""
    last = position * 0
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        begin = tl.load(first + t, mask=t < T, other=T)
        last = tl.maximum(last, tl.max(tl.where(begin <= position, t + 1, 0), 0))
    return last


@triton.jit
def position_sums_kernel(
    weights,
    x,
    first,
    out,
    T,
    H,
    K,
    D,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out (B, T, K, D) = weights (B, H, T, T) transposed times x (B, T, H, D), the heads of a group in their order."""
    tiles = tl.cdiv(T, BM) * tl.cdiv(D, BN)
    matrix = tl.program_id(0) // tiles
    b = matrix // K
    group = matrix % K
    top, left = tile_of(tl.program_id(0) % tiles, T, D, BM, BN)
    row = top + tl.arange(0, BM)
    column = left + tl.arange(0, BN)
    term = tl.arange(0, BK)
    is_row = row < T
    is_column = column < D

    # No query before a position sees it.
    begin = top // BK * BK
    end = last_query(first + b * T, tl.minimum(top + BM, T) - 1, T, 1024)
    total = tl.zeros((BM, BN), tl.float32)
    for head in range(group * (H // K), (group + 1) * (H // K)):
        query = (b.to(tl.int64) * H + head) * T + term
        from_weights = weights + query[None, :] * T + row[:, None]
        from_x = x + ((b.to(tl.int64) * T + term) * H + head)[:, None] * D + column[None, :]
        total = add_products(
            total, from_weights, from_x, T, H * D, is_row, is_column, begin, end, T, MASKED, BM, BN, BK
        )
    place = (b.to(tl.int64) * T + row) * K + group
    tl.store(out + place[:, None] * D + column[None, :], total, mask=is_row[:, None] & is_column[None, :])


def tile_constants(tile: Tile, num_rows: int, num_columns: int, num_terms: int) -> dict:
    """Return the constants of a kernel that computes (num_rows, num_columns) in tiles."""
    exceeds = num_rows % tile.BM > 0 or num_columns % tile.BN > 0 or num_terms % tile.BK > 0
    return tile._asdict() | {"MASKED": exceeds}


def scores_of(q: Tensor, k: Tensor, first: Tensor) -> Tensor:
    """Return q k^T (B, H, T, S) of what each position sees; the rest is undefined."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    tile = SCORES_TILE if T > FLAT_TILE.BM else FLAT_TILE
    scores = q.new_empty(B, H, T, S)
    turned = k.permute(0, 2, 3, 1).contiguous()  # (B, K, D, S): as `pack`
    grid = (cdiv(T, tile.BM) * cdiv(S, tile.BN) * B * H,)
    launch(scores_kernel, grid, q, turned, first, scores, T, S, H, K, D, **tile_constants(tile, T, S, D))
    return scores


def query_sums(weights: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """Return weights x (B, T, H, D) for weights (B, H, T, S) and x (B, S, K, D).

    The weights of what a position does not see are 0.
    """
    B, H, T, S = weights.shape
    K, D = x.shape[2:]
    tile = QUERIES_TILE if T > FLAT_TILE.BM else FLAT_TILE
    out = x.new_empty(B, T, H, D)
    grid = (cdiv(T, tile.BM) * cdiv(D, tile.BN) * B * H,)
    launch(query_sums_kernel, grid, weights, x, first, out, T, S, H, K, D, **tile_constants(tile, T, D, S))
    return out


def position_sums(weights: Tensor, x: Tensor, first: Tensor, num_groups: int) -> Tensor:
    """Return (B, T, K, D), the sum over the heads of each of K groups of weights (B, H, T, T)^T x (B, T, H, D)."""
    B, T, H, D = x.shape
    tile = POSITIONS_TILE
    out = x.new_empty(B, T, num_groups, D)
    grid = (cdiv(T, tile.BM) * cdiv(D, tile.BN) * B * num_groups,)
    constants = tile_constants(tile, T, D, T)
    launch(position_sums_kernel, grid, weights, x, first, out, T, H, num_groups, D, **constants)
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of q k^T times v (B, T, H, D), and the softmax p (B, H, T, S).

    q: (B, T, H, D), scaled, the last T positions; k, v: (B, S, K, D). A position sees those from first[b, t] on up to
    itself; first is (B, T) int32. p is 0 elsewhere.
    """
    p = scores_of(q, k, first)
    B, H, T, S = p.shape
    num_rows = B * H * T
    launch(softmax_kernel, (cdiv(num_rows, SCORE_ROWS),), p, first, T, S, H, num_rows, ROWS=SCORE_ROWS)
    return query_sums(p, v, first), p


def attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of `attention` to as many positions as q has."""
    slopes = scores_of(grad, v, first)
    B, H, T, _ = slopes.shape
    K = k.shape[2]
    num_rows = B * H * T
    launch(slopes_kernel, (cdiv(num_rows, SCORE_ROWS),), slopes, p, first, T, H, num_rows, ROWS=SCORE_ROWS)
    grad_q = query_sums(slopes, k, first)
    grad_k = position_sums(slopes, q, first, K)
    grad_v = position_sums(p, grad, first, K)
    return grad_q, grad_k, grad_v

"""Attention to windows of more than SHORT_WINDOW tokens, by products of matrices.

Query head h of H reads the key/value head h // (H // K). A position t of the last T of S positions sees those from
first[b, t] up to S - T + t.
"""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Callable

import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.launch import cdiv, launch
from lm.exact.gpu.products import Operand, add_products, inside, tile_of, tile_range
from lm.exact.gpu.softmax import softmax_, softmax_gradient_
from lm.exact.gpu.tiles import FLAT_TILE, Tile

SCORES_TILE = Tile(128, 64, 16, 4)
QUERIES_TILE = Tile(64, 64, 16, 4)  # of the sums over positions that queries see
POSITIONS_TILE = Tile(64, 64, 16, 4)  # of the sums over queries that see positions


@triton.jit
def own_tile(num_rows, num_columns, BM: tl.constexpr, BN: tl.constexpr):
    """Return the matrix of a program, and the first row and column of its tile."""
    tiles_of_matrix = tl.cdiv(num_rows, BM) * tl.cdiv(num_columns, BN)
    matrix = tl.program_id(0) // tiles_of_matrix
    top, left = tile_of(tl.program_id(0) % tiles_of_matrix, num_rows, num_columns, BM, BN)
    return matrix, top, left


@triton.jit
def first_seen(first, tile, S):
    """Return the first position that one of the rows of a tile sees, given first (T,)."""
    of_rows = tl.load(first + tile.row, mask=tile.is_row, other=S)
    return tl.min(of_rows, 0)


@triton.jit
def scores_kernel(
    q,
    k,
    first,
    scores,
    sizes,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """scores (B, H, T, S) = q k for q (B, T, H, D) and k (B, K, D, S); tiles that no position sees are not written."""
    T, S, H, K, D = sizes
    matrix, top, left = own_tile(T, S, BM, BN)
    b = matrix // H
    head = matrix % H
    tile = tile_range(top, left, T, S, BM, BN, BK)

    # The positions that the rows of the tile see.
    begin = first_seen(first + b * T, tile, S)
    end = S - T + tl.minimum(top + BM, T)
    if (left < end) & (left + BN > begin):
        # The addresses of the first terms.
        query = (b.to(tl.int64) * T + tile.row) * H + head
        from_q = q + query[:, None] * D + tile.term[None, :]
        group = b.to(tl.int64) * K + head // (H // K)
        from_k = k + (group * D + tile.term)[:, None] * S + tile.column[None, :]

        total = tl.zeros((BM, BN), tl.float32)
        total = add_products(total, Operand(from_q, 1), Operand(from_k, S), tile, 0, D, D, MASKED)
        score_row = matrix.to(tl.int64) * T + tile.row
        place = score_row[:, None] * S + tile.column[None, :]
        tl.store(scores + place, total, mask=inside(tile))


@triton.jit
def query_sums_kernel(
    weights,
    x,
    first,
    out,
    sizes,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out (B, T, H, D) = weights (B, H, T, S) x (B, S, K, D), over the positions that a tile of queries sees."""
    T, S, H, K, D = sizes
    matrix, top, left = own_tile(T, D, BM, BN)
    b = matrix // H
    head = matrix % H
    tile = tile_range(top, left, T, D, BM, BN, BK)

    # The positions that the rows of the tile see, from a multiple of BK on.
    begin = first_seen(first + b * T, tile, S) // BK * BK
    end = S - T + tl.minimum(top + BM, T)

    # The addresses of the first terms.
    weight_row = matrix.to(tl.int64) * T + tile.row
    from_weights = weights + weight_row[:, None] * S + tile.term[None, :]
    position = b.to(tl.int64) * S + tile.term
    x_row = position * K + head // (H // K)
    from_x = x + x_row[:, None] * D + tile.column[None, :]

    total = tl.zeros((BM, BN), tl.float32)
    total = add_products(total, Operand(from_weights, 1), Operand(from_x, K * D), tile, begin, end, S, MASKED)
    query = (b.to(tl.int64) * T + tile.row) * H + head
    place = query[:, None] * D + tile.column[None, :]
    tl.store(out + place, total, mask=inside(tile))


@triton.jit
def last_query(first, position, T, BLOCK: tl.constexpr):
    """Return the position after the last one of T that sees `position` or one before it, given first (T,)."""
    last = position * 0
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        begin = tl.load(first + t, mask=t < T, other=T)
        end_if_seen = tl.where(begin <= position, t + 1, 0)
        last = tl.maximum(last, tl.max(end_if_seen, 0))
    return last


@triton.jit
def position_sums_kernel(
    weights,
    x,
    first,
    out,
    sizes,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out (B, T, K, D) = weights (B, H, T, T) transposed times x (B, T, H, D), the heads of a group in their order."""
    T, H, K, D = sizes
    matrix, top, left = own_tile(T, D, BM, BN)
    b = matrix // K
    group = matrix % K
    tile = tile_range(top, left, T, D, BM, BN, BK)

    # The queries that see a row of the tile. No query before a position sees it.
    begin = top // BK * BK
    last_row = tl.minimum(top + BM, T) - 1
    end = last_query(first + b * T, last_row, T, 1024)

    heads_of_group = H // K
    total = tl.zeros((BM, BN), tl.float32)
    for head in range(group * heads_of_group, (group + 1) * heads_of_group):
        # The addresses of the first terms.
        weight_row = (b.to(tl.int64) * H + head) * T + tile.term
        from_weights = weights + weight_row[None, :] * T + tile.row[:, None]
        query = (b.to(tl.int64) * T + tile.term) * H + head
        from_x = x + query[:, None] * D + tile.column[None, :]

        total = add_products(total, Operand(from_weights, T), Operand(from_x, H * D), tile, begin, end, T, MASKED)
    out_row = (b.to(tl.int64) * T + tile.row) * K + group
    place = out_row[:, None] * D + tile.column[None, :]
    tl.store(out + place, total, mask=inside(tile))


def run_tiles(kernel: Callable, tile: Tile, num_matrices: int, shape: tuple[int, int, int], *arguments) -> None:
    """Run a kernel that computes matrices in tiles; `shape` is their rows, columns and terms."""
    num_rows, num_columns, num_terms = shape
    num_tiles = cdiv(num_rows, tile.BM) * cdiv(num_columns, tile.BN)
    exceeds = num_rows % tile.BM > 0 or num_columns % tile.BN > 0 or num_terms % tile.BK > 0
    launch(kernel, (num_tiles * num_matrices,), *arguments, MASKED=exceeds, **tile._asdict())


def scores_of(q: Tensor, k: Tensor, first: Tensor) -> Tensor:
    """Return q k^T (B, H, T, S) for the positions that each position sees; the rest is undefined."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    tile = SCORES_TILE if T > FLAT_TILE.BM else FLAT_TILE
    turned = k.permute(0, 2, 3, 1).contiguous()  # (B, K, D, S): as `pack`
    scores = q.new_empty(B, H, T, S)
    run_tiles(scores_kernel, tile, B * H, (T, S, D), q, turned, first, scores, (T, S, H, K, D))
    return scores


def query_sums(weights: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """Return weights x (B, T, H, D) for weights (B, H, T, S) and x (B, S, K, D).

    The weights of positions that a position does not see are 0.
    """
    B, H, T, S = weights.shape
    K, D = x.shape[2:]
    tile = QUERIES_TILE if T > FLAT_TILE.BM else FLAT_TILE
    out = x.new_empty(B, T, H, D)
    run_tiles(query_sums_kernel, tile, B * H, (T, D, S), weights, x, first, out, (T, S, H, K, D))
    return out


def position_sums(weights: Tensor, x: Tensor, first: Tensor, num_groups: int) -> Tensor:
    """Return (B, T, K, D), the sum over the heads of each of K groups of weights (B, H, T, T)^T x (B, T, H, D)."""
    B, T, H, D = x.shape
    out = x.new_empty(B, T, num_groups, D)
    sizes = (T, H, num_groups, D)
    run_tiles(position_sums_kernel, POSITIONS_TILE, B * num_groups, (T, D, T), weights, x, first, out, sizes)
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of q k^T times v (B, T, H, D), and the softmax p (B, H, T, S).

    q: (B, T, H, D), scaled, the last T positions; k, v: (B, S, K, D). A position sees those from first[b, t] on up to
    itself; first is (B, T) int32. p is 0 elsewhere.
    """
    p = softmax_(scores_of(q, k, first), first)
    return query_sums(p, v, first), p


def attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (B, T, H, D), k and v (B, T, K, D) of `attention` with S = T, given its gradient."""
    num_groups = k.shape[2]
    slopes = softmax_gradient_(scores_of(grad, v, first), p, first)
    grad_q = query_sums(slopes, k, first)
    grad_k = position_sums(slopes, q, first, num_groups)
    grad_v = position_sums(p, grad, first, num_groups)
    return grad_q, grad_k, grad_v

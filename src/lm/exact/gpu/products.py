"""Products of matrices (M, K) and (K, N)."""

# Type checkers do not know what Triton adds to kernels.
# pyright: reportGeneralTypeIssues=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.constants import TERMS, UNROLL
from lm.exact.gpu.launch import NUMBERS, cdiv, launch
from lm.exact.gpu.tiles import is_faster_by_chains, tile_for

GROUP = tl.constexpr(8)  # rows of tiles that are computed together: their operands fit into the cache


class TileRange(NamedTuple):
    """The numbers that a program computes: rows (BM,) and columns (BN,) of a matrix, by BK terms at a time."""

    row: tl.tensor
    column: tl.tensor
    term: tl.tensor  # 0, 1, … (BK,)
    is_row: tl.tensor  # (BM,): which rows the matrix has
    is_column: tl.tensor  # (BN,)


class Operand(NamedTuple):
    """The addresses of the first BK terms of an operand of a tile, (BM, BK) or (BK, BN), and the stride of terms."""

    address: tl.tensor
    stride: tl.tensor


@triton.jit
def tile_of(program, num_rows, num_columns, BM: tl.constexpr, BN: tl.constexpr):
    """Return the first row and column of a program's tile. GROUP rows of tiles are computed column by column."""
    tile_rows = tl.cdiv(num_rows, BM)
    tile_columns = tl.cdiv(num_columns, BN)
    tiles_of_group = GROUP * tile_columns
    group = program // tiles_of_group
    place = program % tiles_of_group
    height = tl.minimum(tile_rows - group * GROUP, GROUP)  # the last group may have fewer rows of tiles
    tile_row = group * GROUP + place % height
    tile_column = place // height
    return tile_row * BM, tile_column * BN


@triton.jit
def tile_range(top, left, num_rows, num_columns, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Return the range of the tile that begins at row `top` and column `left`."""
    row = top + tl.arange(0, BM)
    column = left + tl.arange(0, BN)
    term = tl.arange(0, BK)
    return TileRange(row, column, term, row < num_rows, column < num_columns)


@triton.jit
def inside(tile):
    """Return which numbers (BM, BN) of a tile the matrix has."""
    return tile.is_row[:, None] & tile.is_column[None, :]


@triton.jit
def add_products(total, a, b, tile, first, last, K, MASKED: tl.constexpr):
    """Return total (BM, BN) plus the chains of terms of both operands from `first`, a multiple of BK, to `last`.

    Unless MASKED all rows, columns and K terms of the tile exist. Beyond `last` terms must be 0.
    """
    BK: tl.constexpr = tile.term.shape[0]
    # Each round adds one chain.
    for start in tl.range(first // TERMS * TERMS, last, TERMS, num_stages=1):
        begin = tl.maximum(start, first)
        end = tl.minimum(start + TERMS, last)
        from_a = a.address + tl.cast(begin, tl.int64) * a.stride
        from_b = b.address + tl.cast(begin, tl.int64) * b.stride

        chain = tl.zeros(total.shape, tl.float32)
        for k in range(begin, end, BK):
            if MASKED:
                is_term = k + tile.term < K
                x = tl.load(from_a, mask=tile.is_row[:, None] & is_term[None, :], other=0.0)
                y = tl.load(from_b, mask=is_term[:, None] & tile.is_column[None, :], other=0.0)
            else:
                x = tl.load(from_a)
                y = tl.load(from_b)
            chain = tl.dot(x, y, chain, input_precision="ieee")
            from_a += BK * a.stride
            from_b += BK * b.stride

        total = total + chain
    return total


@triton.jit
def product_kernel(
    a,
    b,
    other,
    out,
    sizes,
    a_strides,
    b_strides,
    out_strides,
    scales,
    ADDS: tl.constexpr,
    MIXES: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_REST: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out = a @ b for each matrix; with ADDS, out += a @ b; with MIXES, out = (a @ b) scale + other other_scale."""
    M, N, K = sizes
    a_matrix, a_row, a_term = a_strides
    b_matrix, b_term, b_column = b_strides
    out_matrix, out_row = out_strides
    matrix = tl.program_id(1).to(tl.int64)
    top, left = tile_of(tl.program_id(0), M, N, BM, BN)
    tile = tile_range(top, left, M, N, BM, BN, BK)

    # The addresses of the first terms, and of the result.
    rows_of_a = a + matrix * a_matrix + tile.row[:, None].to(tl.int64) * a_row
    x = Operand(rows_of_a + tile.term[None, :].to(tl.int64) * a_term, a_term)
    rows_of_b = b + matrix * b_matrix + tile.term[:, None].to(tl.int64) * b_term
    y = Operand(rows_of_b + tile.column[None, :].to(tl.int64) * b_column, b_term)
    place = matrix * out_matrix + tile.row[:, None].to(tl.int64) * out_row + tile.column[None, :]
    is_number = inside(tile)

    # The product. The last chain may be shorter than the others.
    total = tl.zeros((BM, BN), tl.float32)
    if ADDS:
        total = tl.load(out + place, mask=is_number, other=0.0)
    whole = K // TERMS * TERMS
    total = add_products(total, x, y, tile, 0, whole, K, MASKED)
    if HAS_REST:
        total = add_products(total, x, y, tile, whole, K, K, True)

    if MIXES:
        scale, other_scale = scales
        number = tl.load(other + place, mask=is_number, other=0.0)
        total = total * scale + number * other_scale
    tl.store(out + place, total, mask=is_number)


@triton.jit
def add_chains_kernel(sums, out, num_chains, size, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """out (size,) = +0 and sums (num_chains, size), one after the other; with ADDS, out and the sums."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    total = tl.zeros((BLOCK,), tl.float32)
    if ADDS:
        total = tl.load(out + i, mask=inside, other=0.0)
    for chain in tl.range(0, num_chains, loop_unroll_factor=UNROLL):
        of_chain = sums + tl.cast(chain, tl.int64) * size
        total = total + tl.load(of_chain + i, mask=inside, other=0.0)
    tl.store(out + i, total, mask=inside)


def pack(b: Tensor) -> Tensor:
    """Return b (K, N) in the layout that `multiply` reads fast: numbers of a row are next to each other."""
    return b.contiguous()


def multiply(a: Tensor, packed: Tensor, out: Tensor, adds: bool = False) -> Tensor:
    """Write a @ b to `out` (M, N), or add it, and return `out`; a is (M, K), `packed` is b (K, N) packed."""
    if out.is_contiguous() and is_faster_by_chains(*out.shape, a.shape[1], out.device):
        return multiply_by_chains(a, packed, out, adds)
    multiply_matrices(a[None], packed[None], out[None], adds=adds)
    return out


def multiply_by_chains(a: Tensor, b: Tensor, out: Tensor, adds: bool) -> Tensor:
    """Do what `multiply` does for a multiple of TERMS and a contiguous `out`.

    All chains are computed at once, then added in their order.
    """
    num_rows, num_terms = a.shape
    num_columns = b.shape[1]
    num_chains = num_terms // order.TERMS

    # Each chain is a matrix: (num_chains, M, TERMS) and (num_chains, TERMS, N).
    chains_of_a = a.unflatten(1, (num_chains, order.TERMS)).transpose(0, 1)
    chains_of_b = b.unflatten(0, (num_chains, order.TERMS))
    sums = out.new_empty(num_chains, num_rows, num_columns)
    multiply_matrices(chains_of_a, chains_of_b, sums)

    size = out.numel()
    grid = (cdiv(size, NUMBERS),)
    launch(add_chains_kernel, grid, sums, out, num_chains, size, ADDS=adds, BLOCK=NUMBERS)
    return out


def multiply_matrices(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    adds: bool = False,
    scale: float = 1.0,
    other: Tensor | None = None,
    other_scale: float = 0.0,
) -> None:
    """Write a @ b to `out`, add it, or write (a @ b) scale + other other_scale, for matrices (n, M, K) and (n, K, N).

    Numbers of a row of `out` and of `other` are next to each other.
    """
    num_matrices, num_rows, num_terms = a.shape
    num_columns = b.shape[2]
    tile = tile_for(num_rows, num_columns, num_matrices, out.device)
    num_tiles = cdiv(num_rows, tile.BM) * cdiv(num_columns, tile.BN)
    grid = (num_tiles, num_matrices)
    exceeds = num_rows % tile.BM > 0 or num_columns % tile.BN > 0
    launch(
        product_kernel,
        grid,
        a,
        b,
        out if other is None else other,
        out,
        (num_rows, num_columns, num_terms),
        a.stride(),
        b.stride(),
        out.stride()[:2],
        (scale, other_scale),
        ADDS=adds,
        MIXES=other is not None,
        MASKED=exceeds,
        HAS_REST=num_terms % order.TERMS > 0,
        **tile._asdict(),
    )

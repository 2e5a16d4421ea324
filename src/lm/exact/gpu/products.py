"""Products of matrices (M, K) and (K, N)."""

# A checker of types sees kernels without what Triton gives them.
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.constants import TERMS, UNROLL
from lm.exact.gpu.launch import NUMBERS, cdiv, launch
from lm.exact.gpu.tiles import is_faster_by_chains, tile_for

GROUP = tl.constexpr(8)  # rows of tiles that are computed together: their operands stay in the cache


@triton.jit
def tile_of(program, num_rows, num_columns, BM: tl.constexpr, BN: tl.constexpr):
    """Return the row and the column of a program's tile. GROUP rows of tiles are computed column by column."""
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
def add_products(
    total,
    a,
    b,
    a_term,
    b_term,
    is_row,
    is_column,
    first,
    last,
    K,
    MASKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Return total (BM, BN) plus the chains of terms from `first`, a multiple of BK, to `last`.

    a (BM, BK) and b (BK, BN) are the addresses of the first BK of K terms, and a_term and b_term the strides of terms.
    Unless MASKED all rows, columns and terms exist. Beyond `last` terms must be 0.
    """
    term = tl.arange(0, BK)
    # Each round adds one chain.
    for start in tl.range(first // TERMS * TERMS, last, TERMS, num_stages=1):
        begin = tl.maximum(start, first)
        end = tl.minimum(start + TERMS, last)
        from_a = a + tl.cast(begin, tl.int64) * a_term
        from_b = b + tl.cast(begin, tl.int64) * b_term

        chain = tl.zeros((BM, BN), tl.float32)
        for k in range(begin, end, BK):
            if MASKED:
                is_term = k + term < K
                x = tl.load(from_a, mask=is_row[:, None] & is_term[None, :], other=0.0)
                y = tl.load(from_b, mask=is_term[:, None] & is_column[None, :], other=0.0)
            else:
                x = tl.load(from_a)
                y = tl.load(from_b)
            chain = tl.dot(x, y, chain, input_precision="ieee")
            from_a += BK * a_term
            from_b += BK * b_term

        total = total + chain
    return total


@triton.jit
def product_kernel(
    a,
    b,
    other,
    out,
    M,
    N,
    K,
    a_matrix,
    a_row,
    a_term,
    b_matrix,
    b_term,
    b_column,
    out_matrix,
    out_row,
    scale,
    other_scale,
    ADDS: tl.constexpr,
    MIXES: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_REST: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out = a @ b for each matrix; with ADDS, out += a @ b; with MIXES, out = (a @ b) scale + other other_scale."""
    matrix = tl.program_id(1).to(tl.int64)
    top, left = tile_of(tl.program_id(0), M, N, BM, BN)
    row = top + tl.arange(0, BM)
    column = left + tl.arange(0, BN)
    term = tl.arange(0, BK)
    is_row = row < M
    is_column = column < N

    # The addresses of the first terms, and of the result.
    from_a = a + matrix * a_matrix + row[:, None].to(tl.int64) * a_row + term[None, :].to(tl.int64) * a_term
    from_b = b + matrix * b_matrix + term[:, None].to(tl.int64) * b_term + column[None, :].to(tl.int64) * b_column
    place = matrix * out_matrix + row[:, None].to(tl.int64) * out_row + column[None, :]
    inside = is_row[:, None] & is_column[None, :]

    # The product. The last chain may be shorter than the others.
    total = tl.zeros((BM, BN), tl.float32)
    if ADDS:
        total = tl.load(out + place, mask=inside, other=0.0)
    whole = K // TERMS * TERMS
    total = add_products(total, from_a, from_b, a_term, b_term, is_row, is_column, 0, whole, K, MASKED, BM, BN, BK)
    if HAS_REST:
        total = add_products(total, from_a, from_b, a_term, b_term, is_row, is_column, whole, K, K, True, BM, BN, BK)

    if MIXES:
        number = tl.load(other + place, mask=inside, other=0.0)
        total = total * scale + number * other_scale
    tl.store(out + place, total, mask=inside)


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
    if is_faster_by_chains(*out.shape, a.shape[1], out.device):
        return multiply_by_chains(a, packed, out, adds)
    multiply_matrices(a[None], packed[None], out[None], adds=adds)
    return out


def multiply_by_chains(a: Tensor, b: Tensor, out: Tensor, adds: bool) -> Tensor:
    """Do what `multiply` does for a multiple of TERMS: compute all chains at once, then add them in their order."""
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
        num_rows,
        num_columns,
        num_terms,
        *a.stride(),
        *b.stride(),
        *out.stride()[:2],
        scale,
        other_scale,
        ADDS=adds,
        MIXES=other is not None,
        MASKED=exceeds,
        HAS_REST=num_terms % order.TERMS > 0,
        **tile._asdict(),
    )

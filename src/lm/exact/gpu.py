"""Exact numerics on a GPU: Triton kernels with the order of additions of lm.exact.order.

The functions have the names and parameters of lm.exact.cpu, and their results have its bits. A program (a block of
threads) computes some results from their first to their last term, so nothing is added by atomics or in an order that
the number of threads could change. Tiles, warps and stages decide how many results are computed at once.

Rules for kernels:

- Each operation is rounded as written. `launch` forbids the compiler to join a multiplication and an addition.
- Divide by `div_rn`, take roots by `sqrt_rn`, join by `fma`. `/`, `tl.exp` and `tl.sum` of float32 are approximations,
  or have an order that depends on the layout.
- `tl.dot(x, y, chain, input_precision="ieee")` adds the terms to the chain by fma, one after the other.
- Indices that can reach 2**31 are int64.

A result that is not a number has other bits than on a CPU: a GPU has a single NaN.

Legend as in lm.model.gemma3. N rows, and products of (M, K) and (K, N). BM, BN and BK are the sizes of a tile.
"""

# A checker of types sees kernels without what Triton gives them.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportGeneralTypeIssues=false

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order

# What kernels read of lm.exact.order.

TERMS = tl.constexpr(order.TERMS)
LANES = tl.constexpr(order.LANES)
SUM_ROWS = tl.constexpr(order.SUM_ROWS)
LOG2E = tl.constexpr(float(order.LOG2E))
LOG2E_LOW = tl.constexpr(float(order.LOG2E_LOW))
MAGIC = tl.constexpr(float(order.MAGIC))
SMALLEST_EXPONENT = tl.constexpr(float(order.SMALLEST_EXPONENT))
E0, E1, E2, E3, E4, E5, E6 = (tl.constexpr(float(coefficient)) for coefficient in order.EXP_COEFFICIENTS)
LOG_2 = tl.constexpr(order.LOG_2)
LOG_TERMS = tl.constexpr(order.LOG_TERMS)
GELU_SCALE = tl.constexpr(float(order.GELU_SCALE))
GELU_CUBIC = tl.constexpr(float(order.GELU_CUBIC))
GELU_CUBIC_SLOPE = tl.constexpr(float(order.GELU_CUBIC_SLOPE))
NEWTON_SCHULZ_EPS = tl.constexpr(float(order.NEWTON_SCHULZ_EPS))
INFINITY = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))

# What follows decides how fast the kernels are, and no bit.
UNROLL = tl.constexpr(8)  # steps of a loop whose loads are under way together
GROUP = tl.constexpr(8)  # rows of tiles that are computed together: their operands stay in the cache
NUMBERS = 1024  # that a program computes where each result stands for itself
ROW_NUMBERS = 4096  # that a program holds of rows
LOSS_NUMBERS = 2**28  # logits that the loss holds, 1 GiB
CHAIN_NUMBERS = 2**26  # sums of chains that a product holds, 256 MiB


def launch(kernel: Callable, grid: tuple[int, ...], *arguments, **constants) -> None:
    """Run a kernel on a grid of programs, without joined operations; a grid of none runs nothing."""
    if min(grid) > 0:
        kernel[grid](*arguments, enable_fp_fusion=False, **constants)


def cdiv(number: int, size: int) -> int:
    """Return how many blocks of a size hold a number of items."""
    return -(-number // size)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count


# Products.


@triton.jit
def tile_of(program, num_rows, num_columns, BM: tl.constexpr, BN: tl.constexpr):
    """Return the row and the column of a program's tile. GROUP rows of tiles are computed column by column."""
    tile_rows = tl.cdiv(num_rows, BM)
    tile_columns = tl.cdiv(num_columns, BN)
    group = program // (GROUP * tile_columns)
    height = tl.minimum(tile_rows - group * GROUP, GROUP)
    place = program % (GROUP * tile_columns)
    return (group * GROUP + place % height) * BM, place // height * BN


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

    # The last chain may be shorter than the others.
    total = tl.zeros((BM, BN), tl.float32)
    if ADDS:
        total = tl.load(out + place, mask=inside, other=0.0)
    whole = K // TERMS * TERMS
    total = add_products(total, from_a, from_b, a_term, b_term, is_row, is_column, 0, whole, K, MASKED, BM, BN, BK)
    if HAS_REST:
        total = add_products(total, from_a, from_b, a_term, b_term, is_row, is_column, whole, K, K, True, BM, BN, BK)
    if MIXES:
        total = total * scale + tl.load(other + place, mask=inside, other=0.0) * other_scale
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
        total = total + tl.load(sums + tl.cast(chain, tl.int64) * size + i, mask=inside, other=0.0)
    tl.store(out + i, total, mask=inside)


class Tile(NamedTuple):
    """Rows, columns and terms of a tile of a product, and the warps, stages and registers that compute it."""

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int = 3
    maxnreg: int | None = None  # registers of a thread: fewer let more programs run, that wait for each other's loads


# Tiles, and how fast they are computed on an H100, relative to the first, if there are enough. Large ones read less.
SPEEDS = {
    Tile(128, 128, 16, 8): 1.0,
    Tile(128, 64, 16, 4): 1.0,
    Tile(64, 64, 16, 4): 1.03,
    Tile(64, 32, 16, 2): 0.92,
}
FLAT_TILE = Tile(16, 64, 32, 2)  # of few rows
BUSY_WARPS = 8  # warps that keep a multiprocessor busy
CHAIN_TIME = 0.2  # to write and add the sums of the chains of a product, relative to its time


def tile_time(tile: Tile, num_rows: int, num_columns: int, num_matrices: int, device: torch.device) -> float:
    """Return about how long each term of a product takes: the results of the multiprocessor that has most of them."""
    num_tiles = cdiv(num_rows, tile.BM) * cdiv(num_columns, tile.BN) * num_matrices
    tiles_of_processor = max(1, cdiv(num_tiles, num_processors(device)))
    busy = min(1.0, tiles_of_processor * tile.num_warps / BUSY_WARPS)
    return tiles_of_processor * tile.BM * tile.BN / (SPEEDS[tile] * busy)


@functools.lru_cache(maxsize=1000)
def tile_for(num_rows: int, num_columns: int, num_matrices: int, device: torch.device) -> Tile:
    """Return the tile that takes least time."""
    if num_rows <= FLAT_TILE.BM:
        return FLAT_TILE
    return min(SPEEDS, key=lambda tile: tile_time(tile, num_rows, num_columns, num_matrices, device))


@functools.lru_cache(maxsize=1000)
def is_faster_by_chains(num_rows: int, num_columns: int, num_terms: int, device: torch.device) -> bool:
    """Return True if a product of few tiles is faster when all of its chains are computed at the same time."""
    num_chains = num_terms // order.TERMS
    size = num_rows * num_columns
    if num_rows <= FLAT_TILE.BM or num_chains < 2:
        return False
    if num_chains * order.TERMS < num_terms or num_chains * size > CHAIN_NUMBERS:
        return False
    tile = tile_for(num_rows, num_columns, 1, device)
    together = tile_time(tile, num_rows, num_columns, 1, device)
    tile = tile_for(num_rows, num_columns, num_chains, device)
    of_chains = tile_time(tile, num_rows, num_columns, num_chains, device) / num_chains
    return of_chains + CHAIN_TIME * size / num_processors(device) < together


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
    sums = out.new_empty(num_chains, num_rows, num_columns)
    chains_of_a = a.unflatten(1, (num_chains, order.TERMS)).transpose(0, 1)
    chains_of_b = b.unflatten(0, (num_chains, order.TERMS))
    multiply_matrices(chains_of_a, chains_of_b, sums)
    grid = (cdiv(out.numel(), NUMBERS),)
    launch(add_chains_kernel, grid, sums, out, num_chains, out.numel(), ADDS=adds, BLOCK=NUMBERS)
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
    grid = (cdiv(num_rows, tile.BM) * cdiv(num_columns, tile.BN), num_matrices)
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
        MASKED=num_rows % tile.BM > 0 or num_columns % tile.BN > 0,
        HAS_REST=num_terms % order.TERMS > 0,
        **tile._asdict(),
    )


# Numbers.


@triton.jit
def exp(x):
    """Return exp(x) of x ≤ 0, at least that of SMALLEST_EXPONENT; NaN stays NaN."""
    x = tl.where(x < SMALLEST_EXPONENT, SMALLEST_EXPONENT, x)
    magic = x * LOG2E + MAGIC
    whole = magic - MAGIC
    f = tl.fma(x, LOG2E_LOW, tl.fma(x, LOG2E, -whole))
    p = tl.fma(f, E0, E1)
    p = tl.fma(p, f, E2)
    p = tl.fma(p, f, E3)
    p = tl.fma(p, f, E4)
    p = tl.fma(p, f, E5)
    p = tl.fma(p, f, E6)
    bits = p.to(tl.int32, bitcast=True) + (magic.to(tl.int32, bitcast=True) << 23)  # p 2^whole
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # the bits of a NaN may become those of a number


@triton.jit
def log(x):
    """Return log(x), float64, of normal x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) & 255) - 126
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True).to(tl.float64)
    z = (mantissa - 1.0) / (mantissa + 1.0)  # of float64, which is rounded to nearest
    square = z * z
    total = square * 0.0
    for n in tl.static_range(LOG_TERMS, 0, -2):
        total = total * square + 1.0 / n
    result = total * z * 2.0 + exponent.to(tl.float64) * LOG_2
    return tl.where(x < INFINITY, result, NAN)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    small = exp(tl.where(x > 0.0, -x, x))
    return tl.math.div_rn(tl.where(x > 0.0, 1.0, small), 1.0 + small)


@triton.jit
def sum_of_lanes(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the sums (ROWS,) of x (ROWS, WIDTH): the second half is added to the first until one lane is left."""
    if WIDTH == 1:
        return tl.reshape(x, (ROWS,)) + 0.0  # a sum is never -0
    else:
        halves = tl.permute(tl.reshape(x, (ROWS, 2, WIDTH // 2)), (0, 2, 1))
        low, high = tl.split(halves)
        return sum_of_lanes(low + high, ROWS, WIDTH // 2)


@triton.jit
def row_squares(x, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of the squares of `width` (ROWS, 1) numbers from the addresses x (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        number = tl.load(x + j + lane, mask=j + lane < width, other=0.0)
        lanes = tl.fma(number, number, lanes)  # a square of 0 changes no lane, for none is -0
    return sum_of_lanes(lanes, ROWS, LANES)


@triton.jit
def row_dots(x, y, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of x * y of `width` (ROWS, 1) numbers from the addresses x and y (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=0.0)
        factor = tl.load(y + j + lane, mask=inside, other=0.0)
        lanes = tl.where(inside, tl.fma(number, factor, lanes), lanes)
    return sum_of_lanes(lanes, ROWS, LANES)


@triton.jit
def row_max(x, width, longest, ROWS: tl.constexpr):
    """Return the largest of `width` (ROWS, 1) numbers from the addresses x (ROWS, 1) on; NaN does not count."""
    lane = tl.arange(0, LANES)[None, :]
    largest = tl.full((ROWS, LANES), -INFINITY, tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        number = tl.load(x + j + lane, mask=j + lane < width, other=-INFINITY)
        largest = tl.where(number > largest, number, largest)
    return tl.max(largest, 1)


@triton.jit
def row_exponentials(x, largest, width, longest, ROWS: tl.constexpr):
    """Return the sums (ROWS,) of exp(number - largest) of `width` numbers from the addresses x (ROWS, 1) on."""
    lane = tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, longest, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < width
        number = tl.load(x + j + lane, mask=inside, other=0.0)
        lanes = tl.where(inside, lanes + exp(number - largest[:, None]), lanes)
    return sum_of_lanes(lanes, ROWS, LANES)


@triton.jit
def block_sums_kernel(addresses, widths, sums, num_blocks, longest, ROWS: tl.constexpr):
    """sums (num_blocks,) = the sum of the squares of each block of `widths` numbers that begins at `addresses`."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_block = block < num_blocks
    width = tl.load(widths + block, mask=is_block, other=0)
    start = tl.load(addresses + block, mask=is_block, other=0).to(tl.pointer_type(tl.float32))
    total = row_squares(start[:, None], width[:, None], longest, ROWS)
    tl.store(sums + block, total, mask=is_block)


def block_sums(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return the sums of squares of blocks of NORM_NUMBERS, tensor after tensor, and how many blocks each has.

    The tensors are contiguous and on one device.
    """
    numbers = np.array([x.numel() for x in tensors])
    starts = np.array([x.data_ptr() for x in tensors])
    blocks = -(-numbers // order.NORM_NUMBERS)
    total = int(blocks.sum())

    # The address and the length of each block.
    position = np.arange(total) - np.repeat(np.cumsum(blocks) - blocks, blocks)  # in its tensor
    addresses = np.repeat(starts, blocks) + position * (order.NORM_NUMBERS * tensors[0].element_size())
    widths = np.repeat(numbers, blocks) - position * order.NORM_NUMBERS
    table = np.stack([addresses, np.minimum(widths, order.NORM_NUMBERS)])

    sums = tensors[0].new_empty(total)
    on_device = torch.from_numpy(table).to(sums.device)
    grid = (cdiv(total, 4),)
    launch(block_sums_kernel, grid, *on_device.unbind(), sums, total, order.NORM_NUMBERS, ROWS=4)
    return sums, blocks.tolist()


def square_sums(tensors: Iterable[Tensor]) -> list[float]:
    """Return the sum of the squares of each tensor."""
    flat = [x.detach().contiguous() for x in tensors]
    if not flat:
        return []
    sums, blocks = block_sums(flat)
    parts = np.split(sums.cpu().numpy().astype(np.float64), np.cumsum(blocks)[:-1])
    return [float(np.cumsum(part)[-1]) if len(part) else 0.0 for part in parts]  # cumsum adds in order


@triton.jit
def multiples_kernel(x, out, size, PER_UNIT: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """out = x PER_UNIT rounded to an integer, half to even, at most LARGEST in size; NaN becomes 0."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(x + i, mask=i < size, other=0.0).to(tl.float64) * PER_UNIT
    number = tl.where(number > LARGEST, LARGEST, number)
    number = tl.where(number < -LARGEST, -LARGEST, number)
    number = tl.where(number == number, number, 0.0)
    # Beyond 2**52 float64 numbers are integers.
    rounded = (tl.abs(number) + 4503599627370496.0) - 4503599627370496.0
    integer = rounded.to(tl.int64)
    tl.store(out + i, tl.where(number < 0.0, -integer, integer), mask=i < size)


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0.

    `largest` is an integer of at most 2**51.
    """
    x = x.detach().contiguous()
    result = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    grid = (cdiv(x.numel(), NUMBERS),)
    constants = {"PER_UNIT": 1 / unit, "LARGEST": float(largest)}
    launch(multiples_kernel, grid, x, result, x.numel(), **constants, BLOCK=NUMBERS)
    return result


# Norms and the gate.


def rows_per_program(width: int) -> int:
    """Return how many rows a program computes, a power of two."""
    return max(1, min(32, triton.next_power_of_2(ROW_NUMBERS // max(width, 1) + 1) // 2))


@triton.jit
def rms_norm_kernel(x, weight, out, r, num_rows, width, eps, ROWS: tl.constexpr):
    """out = x r (1 + w) for rows of x, r = 1 / sqrt(mean(x²) + eps)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    start = row[:, None].to(tl.int64) * width
    own_width = tl.where(is_row, width, 0)[:, None]
    mean = tl.math.div_rn(row_squares(x + start, own_width, width, ROWS), tl.cast(width, tl.float32))
    inverse = tl.math.div_rn(1.0, tl.math.sqrt_rn(mean + eps))
    tl.store(r + row, inverse, mask=is_row)
    lane = tl.arange(0, LANES)[None, :]
    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = 1.0 + tl.load(weight + j + lane, mask=j + lane < width, other=0.0)
        tl.store(out + start + j + lane, number * inverse[:, None] * gain, mask=inside)


@triton.jit
def rms_norm_gradient_kernel(grad, x, weight, r, grad_x, num_rows, width, ROWS: tl.constexpr):
    """Write the gradient of rows of x."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    start = row[:, None].to(tl.int64) * width
    own_width = tl.where(is_row, width, 0)[:, None]
    inverse = tl.load(r + row, mask=is_row, other=0.0)
    lane = tl.arange(0, LANES)[None, :]

    # The component along x, which the norm removes.
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = 1.0 + tl.load(weight + j + lane, mask=j + lane < width, other=0.0)
        scaled = tl.load(grad + start + j + lane, mask=inside, other=0.0) * gain
        lanes = tl.where(inside, tl.fma(scaled, number, lanes), lanes)
    along = tl.math.div_rn(sum_of_lanes(lanes, ROWS, LANES) * inverse, tl.cast(width, tl.float32))

    for j in tl.range(0, width, LANES, loop_unroll_factor=UNROLL):
        inside = j + lane < own_width
        number = tl.load(x + start + j + lane, mask=inside, other=0.0)
        gain = 1.0 + tl.load(weight + j + lane, mask=j + lane < width, other=0.0)
        scaled = tl.load(grad + start + j + lane, mask=inside, other=0.0) * gain
        result = (scaled - number * inverse[:, None] * along[:, None]) * inverse[:, None]
        tl.store(grad_x + start + j + lane, result, mask=inside)


@triton.jit
def norm_weight_gradient_kernel(grad, x, r, sums, num_rows, width, BLOCK: tl.constexpr):
    """sums (blocks, width) = +0 and grad x r of the SUM_ROWS rows of each block, one after the other."""
    block = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    first = block * SUM_ROWS
    total = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(first, tl.minimum(first + SUM_ROWS, num_rows), loop_unroll_factor=UNROLL):
        unit = tl.load(x + row * width + j, mask=inside, other=0.0) * tl.load(r + row)
        total = total + tl.load(grad + row * width + j, mask=inside, other=0.0) * unit
    tl.store(sums + block * width + j, total, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x r (1 + w) (N, C) for x (N, C) and weight (C,), and r (N,) = 1 / sqrt(mean(x²) + eps)."""
    num_rows, width = x.shape
    out = torch.empty_like(x)
    r = x.new_empty(num_rows)
    rows = rows_per_program(width)
    launch(rms_norm_kernel, (cdiv(num_rows, rows),), x, weight, out, r, num_rows, width, eps, ROWS=rows)
    return out, r


def rms_norm_gradient(grad: Tensor, x: Tensor, weight: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (N, C) and of weight (C,)."""
    num_rows, width = x.shape
    grad_x = torch.empty_like(x)
    rows = rows_per_program(width)
    grid = (cdiv(num_rows, rows),)
    launch(rms_norm_gradient_kernel, grid, grad, x, weight, r, grad_x, num_rows, width, ROWS=rows)

    # The gradient of the weight: sums of blocks of rows, which are added in order.
    num_blocks = cdiv(num_rows, order.SUM_ROWS)
    sums = x.new_empty(num_blocks, width)
    grid = (num_blocks, cdiv(width, 128))
    launch(norm_weight_gradient_kernel, grid, grad, x, r, sums, num_rows, width, BLOCK=128)
    grad_weight = torch.empty_like(weight)
    grid = (cdiv(width, 32),)
    launch(add_chains_kernel, grid, sums, grad_weight, num_blocks, width, ADDS=False, BLOCK=32, num_warps=1)
    return grad_x, grad_weight


@triton.jit
def gelu_inner(x):
    """Return 2 u of gelu(x) = x / (1 + exp(-2 u))."""
    return (x * x * GELU_CUBIC + 1.0) * x * GELU_SCALE


@triton.jit
def gated_gelu_kernel(gate, up, out, size, BLOCK: tl.constexpr):
    """out = gelu(gate) up."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(gate + i, mask=inside, other=0.0)
    factor = tl.load(up + i, mask=inside, other=0.0)
    tl.store(out + i, x * sigmoid(gelu_inner(x)) * factor, mask=inside)


@triton.jit
def gated_gelu_gradient_kernel(grad, gate, up, grad_gate, grad_up, size, BLOCK: tl.constexpr):
    """Write the gradients of gate and up."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(gate + i, mask=inside, other=0.0)
    factor = tl.load(up + i, mask=inside, other=0.0)
    weight = sigmoid(gelu_inner(x))  # gelu(x) = x weight
    # The slope of gelu, divided by weight: the product is x times the slope of inner, times 1 - weight.
    slope = (x * x * GELU_CUBIC_SLOPE + 1.0) * x * GELU_SCALE * (1.0 - weight) + 1.0
    scaled = weight * tl.load(grad + i, mask=inside, other=0.0)
    tl.store(grad_gate + i, slope * factor * scaled, mask=inside)
    tl.store(grad_up + i, scaled * x, mask=inside)


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (N, F)."""
    out = torch.empty_like(gate)
    launch(gated_gelu_kernel, (cdiv(gate.numel(), NUMBERS),), gate, up, out, gate.numel(), BLOCK=NUMBERS)
    return out


def gated_gelu_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up (N, F)."""
    grad_gate = torch.empty_like(gate)
    grad_up = torch.empty_like(up)
    grid = (cdiv(gate.numel(), NUMBERS),)
    launch(gated_gelu_gradient_kernel, grid, grad, gate, up, grad_gate, grad_up, gate.numel(), BLOCK=NUMBERS)
    return grad_gate, grad_up


# Attention. Query head h of H reads the key/value head h // (H // K). A position t of the last T of S positions sees
# those from first[b, t] up to S - T + t.


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


SCORE_ROWS = 4  # that a program turns into a softmax, each by one warp
SCORES_TILE = Tile(128, 64, 16, 4)
QUERIES_TILE = Tile(64, 64, 16, 4)  # of the sums over positions that queries see
POSITIONS_TILE = Tile(64, 64, 16, 4)  # of the sums over queries that see positions


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


# Attention to short windows: position by position. A program computes rows (b, t, h), for windows of up to W positions.


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
        dots = tl.where((place == w) & (w < num_seen), dot[:, None], dots)
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
        total = tl.where(inside, tl.fma(column_of(weights, place, w), number, total), total)
    return total


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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    head = row % H
    t = row // H % T
    b = row // (H * T)
    begin = tl.load(first + b * T + t, mask=is_row, other=0)
    num_seen = tl.where(is_row, S - T + t + 1 - begin, 0)[:, None]
    query = row.to(tl.int64)[:, None]
    from_k = (((b.to(tl.int64) * S + begin) * K + head // (H // K)) * D)[:, None]

    # The softmax of the scores.
    place = tl.arange(0, W)[None, :]
    is_seen = place < num_seen
    scores = key_dots(q + query * D, k + from_k, K * D, D, num_seen, ROWS, W)
    scores = tl.where(is_seen, scores, -INFINITY)
    largest = tl.max(tl.where(scores > -INFINITY, scores, -INFINITY), 1)[:, None]  # NaN does not count
    weights = tl.where(is_seen, exp(scores - largest), 0.0)
    weights = tl.math.div_rn(weights, sum_of_lanes(weights, ROWS, W)[:, None])
    tl.store(p + query * WINDOW + place, weights, mask=is_seen)

    column = tl.arange(0, BD)[None, :]
    total = add_weighted(weights, v + from_k, K * D, D, num_seen, column, ROWS, W)
    tl.store(out + query * D + column, total, mask=is_row[:, None] & (column < D))


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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    head = row % H
    t = row // H % T
    b = row // (H * T)
    begin = tl.load(first + b * T + t, mask=is_row, other=0)
    num_seen = tl.where(is_row, t + 1 - begin, 0)[:, None]
    query = row.to(tl.int64)[:, None]
    from_k = (((b.to(tl.int64) * T + begin) * K + head // (H // K)) * D)[:, None]

    place = tl.arange(0, W)[None, :]
    is_seen = place < num_seen
    weights = tl.load(p + query * WINDOW + place, mask=is_seen, other=0.0)
    slope = key_dots(grad + query * D, v + from_k, K * D, D, num_seen, ROWS, W)
    products = tl.fma(slope, weights, tl.zeros((ROWS, W), tl.float32))
    along = sum_of_lanes(products, ROWS, W)[:, None]
    slope = (slope - along) * weights
    tl.store(slopes + query * WINDOW + place, slope, mask=is_seen)

    column = tl.arange(0, BD)[None, :]
    total = add_weighted(slope, k + from_k, K * D, D, num_seen, column, ROWS, W)
    tl.store(grad_q + query * D + column, total, mask=is_row[:, None] & (column < D))


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
    total_k = tl.zeros((ROWS, BD), tl.float32)
    total_v = tl.zeros((ROWS, BD), tl.float32)
    for w in range(WINDOW):
        t = s + w
        is_query = is_row & (t < T)
        begin = tl.load(first + b * T + t, mask=is_query, other=0)
        sees = is_query & (begin <= s)
        for h in range(H // K):
            query = ((b.to(tl.int64) * T + t) * H + group * (H // K) + h)[:, None]
            place = query * WINDOW + (s - begin)[:, None]
            slope = tl.load(slopes + place, mask=sees[:, None], other=0.0)
            weight = tl.load(p + place, mask=sees[:, None], other=0.0)
            inside = sees[:, None] & is_number
            number = tl.load(q + query * D + column, mask=inside, other=0.0)
            own = tl.load(grad + query * D + column, mask=inside, other=0.0)
            total_k = tl.where(inside, tl.fma(slope, number, total_k), total_k)
            total_v = tl.where(inside, tl.fma(weight, own, total_v), total_v)
    place = row.to(tl.int64)[:, None] * D + column
    tl.store(grad_k + place, total_k, mask=is_row[:, None] & is_number)
    tl.store(grad_v + place, total_v, mask=is_row[:, None] & is_number)


def short_constants(D: int) -> dict:
    """Return the constants of a kernel of short windows, given the width of a head."""
    BD = triton.next_power_of_2(D)
    return {"ROWS": max(1, min(8, ROW_NUMBERS // 4 // BD)), "BD": BD}


def short_attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return what `attention` returns for a window of at most SHORT_WINDOW tokens; p (B, T, H, W) begins at first."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    out = torch.empty_like(q)
    p = q.new_empty(B, T, H, min(window, S))
    num_rows = B * T * H
    constants = short_constants(D) | {"W": triton.next_power_of_2(p.shape[3])}
    grid = (cdiv(num_rows, constants["ROWS"]),)
    launch(short_attention_kernel, grid, q, k, v, first, p, out, num_rows, T, S, H, K, D, p.shape[3], **constants)
    return out, p


def short_attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of `short_attention`."""
    B, T, H, D = q.shape
    K = k.shape[2]
    window = p.shape[3]
    grad_q = torch.empty_like(q)
    grad_k = torch.empty_like(k)
    grad_v = torch.empty_like(v)
    slopes = torch.empty_like(p)
    constants = short_constants(D)
    rows = constants["ROWS"]

    num_rows = B * T * H
    widths = T, H, K, D, window
    arguments = grad, k, v, first, p, slopes, grad_q, num_rows, *widths
    launch(short_slopes_kernel, (cdiv(num_rows, rows),), *arguments, **constants, W=triton.next_power_of_2(window))

    num_rows = B * T * K
    arguments = grad, q, first, p, slopes, grad_k, grad_v, num_rows, *widths
    launch(short_position_sums_kernel, (cdiv(num_rows, rows),), *arguments, **constants)
    return grad_q, grad_k, grad_v


# Cross-entropy.


@triton.jit
def loss_kernel(logits, targets, nats, num_rows, V, row_stride, GRADIENT: tl.constexpr, ROWS: tl.constexpr):
    """Write the nats of rows of logits; with GRADIENT, replace the logits by the softmax less 1 at the target."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    start = logits + row.to(tl.int64)[:, None] * row_stride
    width = tl.where(is_row, V, 0)[:, None]
    largest = row_max(start, width, V, ROWS)
    target = tl.load(targets + row, mask=is_row, other=0)
    logit = tl.load(logits + row.to(tl.int64) * row_stride + target, mask=is_row, other=0.0)
    total = row_exponentials(start, largest, width, V, ROWS)
    value = log(total) - (logit - largest).to(tl.float64)
    tl.store(nats + row, value.to(tl.float32), mask=is_row)
    if GRADIENT:
        tl.debug_barrier()  # no thread writes before all have read
        lane = tl.arange(0, LANES)[None, :]
        for j in tl.range(0, V, LANES, loop_unroll_factor=UNROLL):
            inside = j + lane < width
            number = tl.load(start + j + lane, mask=inside, other=0.0)
            p = tl.math.div_rn(exp(number - largest[:, None]), total[:, None])
            p = tl.where(j + lane == target[:, None], p - 1.0, p)
            tl.store(start + j + lane, p, mask=inside)


LOSS_ROWS = 4  # of logits that a program computes, each by one warp


def loss_rows(num_entries: int) -> int:
    """Return how many rows of logits the loss computes at a time, a multiple of TERMS."""
    return max(1, LOSS_NUMBERS // (num_entries * order.TERMS)) * order.TERMS


def softmax_less_targets(logits: Tensor, log_factors: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (N, V) by their gradient, the softmax less 1 at targets (N,); return the nats (N,).

    `log_factors` (W,) are added to the logits of the last W entries before.
    """
    num_rows, num_entries = logits.shape
    if len(log_factors) > 0:
        logits[:, num_entries - len(log_factors) :] += log_factors
    nats = logits.new_empty(num_rows)
    arguments = logits, targets, nats, num_rows, num_entries, logits.stride(0)
    launch(loss_kernel, (cdiv(num_rows, LOSS_ROWS),), *arguments, GRADIENT=True, ROWS=LOSS_ROWS)
    return nats


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C)."""
    num_entries = len(head)
    nats = h.new_empty(len(h))
    columns = pack(head.mT)
    rows = min(loss_rows(num_entries), len(h))
    space = h.new_empty(rows, num_entries)
    for start in range(0, len(h), max(rows, 1)):
        chunk = slice(start, start + rows)
        num_rows = len(h[chunk])
        logits = multiply(h[chunk], columns, space[:num_rows])
        arguments = logits, targets[chunk], nats[chunk], num_rows, num_entries, num_entries
        launch(loss_kernel, (cdiv(num_rows, LOSS_ROWS),), *arguments, GRADIENT=False, ROWS=LOSS_ROWS)
    return nats


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.clone()
    first = torch.zeros(1, dtype=torch.int32, device=x.device)
    launch(softmax_kernel, (1,), p, first, 1, len(p), 1, 1, ROWS=1, num_warps=1)
    return p.masked_fill_(x == -torch.inf, 0)


# Gradients and optimizers.


@triton.jit
def adamw_kernel(p, grad, mean, square, size_of_p, beta1, beta2, decay, size, root, eps, BLOCK: tl.constexpr):
    """Update p and both moments."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size_of_p
    slope = tl.load(grad + i, mask=inside, other=0.0)
    first = tl.load(mean + i, mask=inside, other=0.0) * beta1 + slope * (1.0 - beta1)
    second = tl.load(square + i, mask=inside, other=0.0) * beta2 + slope * slope * (1.0 - beta2)
    tl.store(mean + i, first, mask=inside)
    tl.store(square + i, second, mask=inside)
    scale = tl.math.div_rn(tl.math.sqrt_rn(second), root) + eps
    old = tl.load(p + i, mask=inside, other=0.0)
    tl.store(p + i, old * decay - tl.math.div_rn(first * size, scale), mask=inside)


def adamw(
    p: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    beta1: float,
    beta2: float,
    decay: float,
    size: float,
    root: float,
    eps: float,
) -> None:
    """Update both moments, and p to p · decay - size · mean / (sqrt(square) / root + eps)."""
    numbers = [float(np.float32(number)) for number in (beta1, beta2, decay, size, root, eps)]
    grid = (cdiv(p.numel(), NUMBERS),)
    launch(adamw_kernel, grid, p, grad, mean, square, p.numel(), *numbers, BLOCK=NUMBERS)


@triton.jit
def matrix_sizes_kernel(sums, sizes, num_blocks):
    """sizes = the root of the sums (n, num_blocks), which are added in float64 and in order, plus NEWTON_SCHULZ_EPS."""
    matrix = tl.program_id(0)
    total = tl.cast(0.0, tl.float64)
    for block in tl.range(0, num_blocks, loop_unroll_factor=UNROLL):
        total = total + tl.load(sums + matrix * num_blocks + block).to(tl.float64)
    size = tl.sqrt(total).to(tl.float32)  # of float64, which is rounded to nearest
    tl.store(sizes + matrix, size + NEWTON_SCHULZ_EPS)


@triton.jit
def divide_kernel(x, sizes, out, size_of_matrix, BLOCK: tl.constexpr):
    """out = x / the size of its matrix."""
    matrix = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size_of_matrix
    place = matrix * size_of_matrix + i
    quotient = tl.math.div_rn(tl.load(x + place, mask=inside, other=0.0), tl.load(sizes + matrix))
    tl.store(out + place, quotient, mask=inside)


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    updates = updates.contiguous()
    num_matrices, num_rows, num_columns = updates.shape
    a, b, c = (float(np.float32(coefficient)) for coefficient in coefficients)

    # Divide by the norms.
    sums, blocks = block_sums([*updates])
    sizes = updates.new_empty(num_matrices)
    launch(matrix_sizes_kernel, (num_matrices,), sums, sizes, blocks[0], num_warps=1)
    x = torch.empty_like(updates)
    next_x = torch.empty_like(updates)
    numbers = num_rows * num_columns
    launch(divide_kernel, (cdiv(numbers, NUMBERS), num_matrices), updates, sizes, x, numbers, BLOCK=NUMBERS)

    # x becomes a x + (b g + c g g) x for g = x x^T.
    gram = updates.new_empty(num_matrices, num_rows, num_rows)
    polynomial = torch.empty_like(gram)
    for _ in range(num_steps):
        multiply_matrices(x, x.mT.contiguous(), gram)
        multiply_matrices(gram, gram, polynomial, scale=c, other=gram, other_scale=b)
        multiply_matrices(polynomial, x, next_x, other=x, other_scale=a)
        x, next_x = next_x, x
    return x


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
        total = total + tl.load(rows + tl.load(ids + n) * width + j, mask=inside, other=0.0)
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


def sum_rows_by_id(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    """Return for each id (num_ids, C) the sum of its rows (N, C), in the order of ids (N,) int64."""
    sorted_ids, row_numbers = ids.sort(stable=True)
    starts = torch.searchsorted(sorted_ids, torch.arange(num_ids, device=ids.device))
    return sum_bags(rows, row_numbers, starts)

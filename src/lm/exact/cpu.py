"""Exact numerics on a CPU: loops that numba compiles, and the threads that share them.

A loop whose last arguments are `part, parts` computes that part of its result; parts may run at the same time. The
order of additions is that of lm.exact.order. lm.exact.gpu has the same functions for a GPU.

Legend as in lm.model.gemma3. N rows, and products of (M, K) and (K, N).
"""

# A checker of types sees instructions without what numba gives them.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from lm.exact.compiled import loop
from lm.exact.order import (
    EXP_COEFFICIENTS,
    GELU_CUBIC,
    GELU_CUBIC_SLOPE,
    GELU_SCALE,
    LANES,
    LOG2E,
    LOG2E_LOW,
    LOG_2,
    LOG_TERMS,
    MAGIC,
    NEWTON_SCHULZ_EPS,
    NORM_NUMBERS,
    SMALLEST_EXPONENT,
    SUM_ROWS,
    TERMS,
)
from lm.exact.registers import (
    COLUMNS,
    add,
    add_product,
    any_layout,
    fma,
    lanes_of,
    larger,
    largest_lane,
    load_lanes,
    load_last_lanes,
    load_tile_row,
    store,
    sum_of_lanes,
    tile_row_of,
    times_power,
)
from lm.exact.threads import get_num_threads

f32 = np.float32
ZERO = f32(0)
ONE = f32(1)
E0, E1, E2, E3, E4, E5, E6 = EXP_COEFFICIENTS

# What follows decides how fast the loops are, and no bit.
ROWS = 6  # of a tile: as many as the registers hold
BAND = 48  # rows of scores that are computed together: they stay in the cache
LOGIT_ROWS = 24  # rows of logits that a thread holds in `token_nats`
LOSS_ROWS = 512  # rows of logits that the loss holds
PART_WORK = 2**18  # operations that are worth a thread: to wake one takes as long
VECTOR_WORK = 64  # multiplications and additions of a product that take as long as one simple operation


# Rows of numbers.


@loop
def row_sum(x):
    """Return the sum of x (N,)."""
    lanes = lanes_of(ZERO)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = add(lanes, load_lanes(x, start))
    if whole < len(x):
        lanes = add(lanes, load_last_lanes(x, whole, ZERO))
    return sum_of_lanes(lanes)


@loop
def row_dot(x, y):
    """Return the sum of x * y, both (N,); it never is -0, however many zeros follow the last number."""
    lanes = lanes_of(ZERO)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = add_product(lanes, load_lanes(x, start), load_lanes(y, start))
    if whole < len(x):
        lanes = add_product(lanes, load_last_lanes(x, whole, ZERO), load_last_lanes(y, whole, ZERO))
    return sum_of_lanes(lanes) + ZERO


@loop
def row_max(x):
    """Return the largest number of x (N,); NaN does not count."""
    lowest = f32(-np.inf)
    lanes = lanes_of(lowest)
    whole = len(x) // LANES * LANES
    for start in range(0, whole, LANES):
        lanes = larger(lanes, load_lanes(x, start))
    if whole < len(x):
        lanes = larger(lanes, load_last_lanes(x, whole, lowest))
    return largest_lane(lanes)


@loop
def exp(x):
    """Return exp(x) of x ≤ 0, at least that of SMALLEST_EXPONENT; NaN stays NaN."""
    x = SMALLEST_EXPONENT if x < SMALLEST_EXPONENT else x
    magic = x * LOG2E + MAGIC
    whole = magic - MAGIC
    f = fma(x, LOG2E_LOW, fma(x, LOG2E, -whole))
    p = fma(fma(fma(fma(fma(fma(E0, f, E1), f, E2), f, E3), f, E4), f, E5), f, E6)
    power = times_power(p, magic)
    return power if x == x else x  # the bits of a NaN may become those of a number


@loop
def log(x):
    """Return log(x), float64, of x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    mantissa, exponent = math.frexp(np.float64(x))
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    total = 0.0
    for n in range(LOG_TERMS, 0, -2):
        total = total * square + 1.0 / n
    return total * z * 2.0 + exponent * LOG_2


# Products.


@loop
def num_panels(num_columns):
    return (num_columns + COLUMNS - 1) // COLUMNS


@loop
def pack_panel(b, panel, packed):
    """Copy columns of b (K, N) to packed[panel] (K, COLUMNS); zeros follow the last one."""
    first = panel * COLUMNS
    width = min(COLUMNS, b.shape[1] - first)
    if b.strides[1] == 4 and width == COLUMNS:
        for k in range(len(b)):
            row = b[k, first : first + COLUMNS]
            copy = packed[panel, k]
            for j in range(COLUMNS):
                copy[j] = row[j]
        return
    if width < COLUMNS:
        packed[panel] = ZERO
    for k0 in range(0, len(b), 16):
        k1 = min(k0 + 16, len(b))
        for j in range(width):
            for k in range(k0, k1):
                packed[panel, k, j] = b[k, first + j]


@loop
def pack_here(b):
    """Return the panels of b (K, N), one of COLUMNS columns after the other."""
    packed = np.empty((num_panels(b.shape[1]), len(b), COLUMNS), np.float32)
    for panel in range(len(packed)):
        pack_panel(b, panel, packed)
    return packed


@loop
def tile(a, i, first, panel, c, column, adds):
    """Add the chain of terms of a panel (terms, COLUMNS), from term `first` of a on, to ROWS rows of c.

    The tile begins at row i and at `column`. Unless it `adds`, the chain is added to +0.
    """
    s0 = s1 = s2 = s3 = s4 = s5 = tile_row_of(ZERO)
    for k in range(len(panel)):
        row = load_tile_row(panel[k], 0)
        s0 = add_product(s0, a[i, first + k], row)
        s1 = add_product(s1, a[i + 1, first + k], row)
        s2 = add_product(s2, a[i + 2, first + k], row)
        s3 = add_product(s3, a[i + 3, first + k], row)
        s4 = add_product(s4, a[i + 4, first + k], row)
        s5 = add_product(s5, a[i + 5, first + k], row)
    store_sum(s0, c[i], column, adds)
    store_sum(s1, c[i + 1], column, adds)
    store_sum(s2, c[i + 2], column, adds)
    store_sum(s3, c[i + 3], column, adds)
    store_sum(s4, c[i + 4], column, adds)
    store_sum(s5, c[i + 5], column, adds)


@loop
def store_sum(chain, row, column, adds):
    """Add a chain to the numbers of a row from `column` on, or to +0."""
    before = load_tile_row(row, column) if adds else tile_row_of(ZERO)
    store(add(before, chain), row, column)


@loop
def edge_tile(a, i, first, panel, c, column, last_row, adds):
    """Do what `tile` does for a tile that reaches beyond the last row or column of c."""
    height = min(ROWS, last_row - i)
    width = min(COLUMNS, c.shape[1] - column)
    rows = np.zeros((ROWS, len(panel)), np.float32)
    spare = np.zeros((ROWS, COLUMNS), np.float32)
    for r in range(height):
        for k in range(len(panel)):
            rows[r, k] = a[i + r, first + k]
        if adds:
            for j in range(width):
                spare[r, j] = c[i + r, column + j]
    tile(any_layout(rows), 0, 0, panel, any_layout(spare), 0, adds)
    for r in range(height):
        for j in range(width):
            c[i + r, column + j] = spare[r, j]


@loop
def multiply_rows(a, packed, c, rows, terms, adds):
    """c[rows] = a[rows] @ b for a (M, K) and packed b, over some terms; with `adds`, c[rows] += it.

    Both ranges are (first, last). Chains are cut at multiples of TERMS.
    """
    first_row, last_row = rows
    first_term, last_term = terms
    for n in range(num_panels(c.shape[1])):
        column = n * COLUMNS
        is_whole = column + COLUMNS <= c.shape[1]
        first = first_term
        while first < last_term:
            last = min((first // TERMS + 1) * TERMS, last_term)
            panel = packed[n, first:last]
            adds_chain = adds or first > first_term
            for i in range(first_row, last_row, ROWS):
                if is_whole and i + ROWS <= last_row:
                    tile(a, i, first, panel, c, column, adds_chain)
                else:
                    edge_tile(a, i, first, panel, c, column, last_row, adds_chain)
            first = last


@loop
def rows_of_part(number, part, parts):
    """Return the range of a part of `number` rows."""
    return range(number * part // parts, number * (part + 1) // parts)


@loop
def tiles_of_part(number, part, parts):
    """Return the first row of a part of `number` rows, and the one after its last; both are multiples of ROWS."""
    tiles = rows_of_part((number + ROWS - 1) // ROWS, part, parts)
    return tiles.start * ROWS, min(number, tiles.stop * ROWS)


@loop
def pack_loop(x, is_transposed, packed, part, parts):
    b = any_layout(x.T) if is_transposed else any_layout(x)
    for panel in rows_of_part(len(packed), part, parts):
        pack_panel(b, panel, packed)


@loop
def multiply_loop(x, is_transposed, packed, c, adds, part, parts):
    a = any_layout(x.T) if is_transposed else any_layout(x)
    multiply_rows(a, packed, any_layout(c), tiles_of_part(len(a), part, parts), (0, a.shape[1]), adds)


def pack(b: Tensor) -> np.ndarray:
    """Return b (K, N) in the order in which `multiply` reads it, which serves many products."""
    packed = np.empty((num_panels(b.shape[1]), len(b), COLUMNS), np.float32)
    run(pack_loop, *stored(b), packed, work=b.numel())
    return packed


def multiply(a: Tensor, packed: np.ndarray, out: Tensor, adds: bool = False) -> Tensor:
    """Write a @ b to `out` (M, N), or add it, and return `out`; a is (M, K), `packed` is b (K, N) packed."""
    num_products = out.numel() * a.shape[1]
    run(multiply_loop, *stored(a), packed, out, adds, work=num_products // VECTOR_WORK)
    return out


def stored(x: Tensor) -> tuple[Tensor, bool]:
    """Return a contiguous matrix, and whether it is the transpose of x."""
    if x.mT.is_contiguous() and not x.is_contiguous():
        return x.mT, True
    return x.contiguous(), False


# Threads.


@functools.cache
def pool() -> ThreadPoolExecutor:
    """Return the threads that compute parts of a loop beside the calling one."""
    return ThreadPoolExecutor(os.cpu_count() or 1)


os.register_at_fork(after_in_child=pool.cache_clear)  # a child process has none of these threads


def run(loop: Callable, *arguments, work: int) -> None:
    """Call a loop in parts, at most one for each thread; arguments are tensors and numbers.

    `work` is about the number of simple operations.
    """
    arrays = [array(each) if isinstance(each, Tensor) else each for each in arguments]
    parts = max(1, min(get_num_threads(), work // PART_WORK))
    others = [pool().submit(loop, *arrays, part, parts) for part in range(1, parts)]
    loop(*arrays, 0, parts)
    for other in others:
        other.result()


def array(x: Tensor) -> np.ndarray:
    """Return the numbers of x, which is contiguous, without copying them."""
    assert x.is_contiguous()
    return x.detach().numpy()


# Norms and the gate.


@loop
def norm_row(x, weight, eps, out):
    """Write x r (1 + w) to out, all (C,); return r."""
    r = ONE / np.sqrt(row_dot(x, x) / f32(len(x)) + eps)
    for j in range(len(x)):
        out[j] = x[j] * r * (ONE + weight[j])
    return r


@loop
def norm_gradient_row(grad, x, weight, r, grad_x, grad_weight, gain):
    """Write the gradient of x to grad_x, add that of the weight to grad_weight; gain (C,) is overwritten."""
    for j in range(len(x)):
        unit = x[j] * r
        grad_weight[j] += grad[j] * unit
        gain[j] = grad[j] * (ONE + weight[j])
    along = row_dot(gain, x) * r / f32(len(x))  # the component along x, which the norm removes
    for j in range(len(x)):
        grad_x[j] = (gain[j] - x[j] * r * along) * r


@loop
def rms_norm_loop(x, weight, eps, out, r, part, parts):
    for n in rows_of_part(len(x), part, parts):
        r[n] = norm_row(x[n], weight, eps, out[n])


@loop
def rms_norm_gradient_loop(grad, x, weight, r, grad_x, block_sums, part, parts):
    """Write the gradient of the weight by every SUM_ROWS rows to block_sums (blocks, C)."""
    gain = np.empty(x.shape[1], np.float32)
    for block in rows_of_part(len(block_sums), part, parts):
        block_sums[block] = ZERO
        for n in range(block * SUM_ROWS, min(len(x), (block + 1) * SUM_ROWS)):
            norm_gradient_row(grad[n], x[n], weight, r[n], grad_x[n], block_sums[block], gain)


@loop
def add_rows(x, total):
    """total (C,) = +0 and the rows of x (N, C), added one after the other."""
    for j in range(len(total)):
        total[j] = ZERO
    for n in range(len(x)):
        for j in range(len(total)):
            total[j] += x[n, j]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x r (1 + w) (N, C) for x (N, C) and weight (C,), and r (N,) = 1 / sqrt(mean(x²) + eps)."""
    out = torch.empty_like(x)
    r = x.new_empty(len(x))
    run(rms_norm_loop, x, weight, f32(eps), out, r, work=x.numel())
    return out, r


def rms_norm_gradient(grad: Tensor, x: Tensor, weight: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (N, C) and of weight (C,)."""
    grad_x = torch.empty_like(x)
    block_sums = x.new_empty(math.ceil(len(x) / SUM_ROWS), len(weight))
    run(rms_norm_gradient_loop, grad, x, weight, r, grad_x, block_sums, work=3 * x.numel())
    grad_weight = torch.empty_like(weight)
    add_rows(array(block_sums), array(grad_weight))
    return grad_x, grad_weight


@loop
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    small = exp(-x if x > ZERO else x)
    return (ONE if x > ZERO else small) / (ONE + small)


@loop
def gated_gelu_loop(gate, up, out, part, parts):
    for n in rows_of_part(len(gate), part, parts):
        gate_row = gate[n]
        up_row = up[n]
        out_row = out[n]
        for j in range(gate.shape[1]):
            x = gate_row[j]
            inner = (x * x * GELU_CUBIC + ONE) * x * GELU_SCALE
            out_row[j] = x * sigmoid(inner) * up_row[j]


@loop
def gated_gelu_gradient_loop(grad, gate, up, grad_gate, grad_up, part, parts):
    for n in rows_of_part(len(gate), part, parts):
        grad_row = grad[n]
        gate_row = gate[n]
        up_row = up[n]
        grad_gate_row = grad_gate[n]
        grad_up_row = grad_up[n]
        for j in range(gate.shape[1]):
            x = gate_row[j]
            inner = (x * x * GELU_CUBIC + ONE) * x * GELU_SCALE
            weight = sigmoid(inner)  # gelu(x) = x weight
            # The slope of gelu, divided by weight: the product is x times the slope of inner, times 1 - weight.
            slope = (x * x * GELU_CUBIC_SLOPE + ONE) * x * GELU_SCALE * (ONE - weight) + ONE
            scaled = weight * grad_row[j]
            grad_gate_row[j] = slope * up_row[j] * scaled
            grad_up_row[j] = scaled * x


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (N, F)."""
    out = torch.empty_like(gate)
    run(gated_gelu_loop, gate, up, out, work=2 * out.numel())
    return out


def gated_gelu_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up (N, F)."""
    grad_gate = torch.empty_like(gate)
    grad_up = torch.empty_like(up)
    run(gated_gelu_gradient_loop, grad, gate, up, grad_gate, grad_up, work=3 * grad.numel())
    return grad_gate, grad_up


# Attention.


@loop
def exponentials_(x):
    """Replace x (S,) by exp(x - largest); return the largest number and the sum of the exponentials."""
    largest = row_max(x)
    for j in range(len(x)):
        x[j] = exp(x[j] - largest)
    return largest, row_sum(x)


@loop
def softmax_(x):
    """Replace x (S,) by its softmax."""
    total = exponentials_(x)[1]
    for j in range(len(x)):
        x[j] /= total


@loop
def keep_range_(x, first, last):
    """Replace all numbers of x (S,) by 0 but those from `first` to `last`."""
    x[:first] = ZERO
    x[last:] = ZERO


@loop
def attend_group(q, k, v, first, p, out):
    """Compute `attention` of the query heads of one key/value head: q (T, G, D), k, v (S, D), p (G, T, S)."""
    T, G, D = q.shape
    S = len(k)
    keys = pack_here(any_layout(k.T))
    values = pack_here(any_layout(v))
    for h in range(G):
        scores = any_layout(p[h])
        queries = any_layout(q[:, h])
        result = any_layout(out[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            seen = S - T + bottom  # positions that the last row of the band sees
            multiply_rows(queries, keys, scores[:, :seen], (top, bottom), (0, D), False)
            for t in range(top, bottom):
                end = S - T + t + 1
                softmax_(p[h, t, first[t] : end])
                keep_range_(p[h, t], first[t], end)
            multiply_rows(scores, values, result, (top, bottom), (0, seen), False)


@loop
def attention_loop(q, k, v, first, p, out, part, parts):
    B = len(q)
    K = k.shape[2]
    G = q.shape[2] // K
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        heads = slice(group * G, (group + 1) * G)
        attend_group(q[b, :, heads], k[b, :, group], v[b, :, group], first[b], p[b, heads], out[b, :, heads])


@loop
def attend_group_gradient(grad, q, k, v, first, p, grad_q, grad_k, grad_v):
    """Compute `attention_gradient` of the query heads of one key/value head."""
    T, G, D = q.shape
    slopes = np.empty((T, T), np.float32)  # the gradient of the scores
    of_scores = any_layout(slopes)
    of_k = any_layout(grad_k)
    of_v = any_layout(grad_v)
    keys = pack_here(any_layout(k))
    values = pack_here(any_layout(v.T))
    for h in range(G):
        # The gradients of the scores and of the queries.
        own = any_layout(grad[:, h])
        of_q = any_layout(grad_q[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            multiply_rows(own, values, of_scores[:, :bottom], (top, bottom), (0, D), False)
            for t in range(top, bottom):
                row = slopes[t, first[t] : t + 1]
                weights = p[h, t, first[t] : t + 1]
                along = row_dot(row, weights)
                for j in range(len(row)):
                    row[j] = (row[j] - along) * weights[j]
                keep_range_(slopes[t], first[t], t + 1)
            multiply_rows(of_scores, keys, of_q, (top, bottom), (0, bottom), False)

        # The gradients of keys and values. No row before a position sees it.
        grads = pack_here(own)
        queries = pack_here(any_layout(q[:, h]))
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            multiply_rows(any_layout(p[h].T), grads, of_v, (top, bottom), (top, T), h > 0)
            multiply_rows(of_scores.T, queries, of_k, (top, bottom), (top, T), h > 0)


@loop
def attention_gradient_loop(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    B = len(q)
    K = k.shape[2]
    G = q.shape[2] // K
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        heads = slice(group * G, (group + 1) * G)
        attend_group_gradient(
            grad[b, :, heads],
            q[b, :, heads],
            k[b, :, group],
            v[b, :, group],
            first[b],
            p[b, heads],
            grad_q[b, :, heads],
            grad_k[b, :, group],
            grad_v[b, :, group],
        )


@loop
def short_attention_loop(q, k, v, first, p, out, part, parts):
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    for n in rows_of_part(B * T, part, parts):
        b = n // T
        t = n % T
        begin = first[b, t]
        end = S - T + t + 1
        for h in range(H):
            group = h // (H // K)
            row = p[b, t, h, : end - begin]
            for s in range(begin, end):
                row[s - begin] = row_dot(q[b, t, h], k[b, s, group])
            softmax_(row)
            result = out[b, t, h]
            for j in range(D):
                result[j] = ZERO
            for s in range(begin, end):
                weight = row[s - begin]
                value = v[b, s, group]
                for j in range(D):
                    result[j] = fma(weight, value[j], result[j])


@loop
def short_attention_gradient_loop(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    B, T, H, D = q.shape
    K = k.shape[2]
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        slopes = np.empty(p.shape[3], np.float32)
        grad_k[b, :, group] = ZERO
        grad_v[b, :, group] = ZERO
        for t in range(T):
            begin = first[b, t]
            end = t + 1
            for h in range(group * (H // K), (group + 1) * (H // K)):
                weights = p[b, t, h, : end - begin]
                slope = slopes[: end - begin]
                own = grad[b, t, h]
                for s in range(begin, end):
                    slope[s - begin] = row_dot(own, v[b, s, group])
                along = row_dot(slope, weights)
                query = q[b, t, h]
                of_query = grad_q[b, t, h]
                for j in range(D):
                    of_query[j] = ZERO
                for s in range(begin, end):
                    weight = weights[s - begin]
                    x = (slope[s - begin] - along) * weight
                    key = k[b, s, group]
                    of_key = grad_k[b, s, group]
                    of_value = grad_v[b, s, group]
                    for j in range(D):
                        of_query[j] = fma(x, key[j], of_query[j])
                        of_key[j] = fma(x, query[j], of_key[j])
                        of_value[j] = fma(weight, own[j], of_value[j])


def attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of q k^T times v (B, T, H, D), and the softmax p (B, H, T, S).

    q: (B, T, H, D), scaled, the last T positions; k, v: (B, S, K, D). A position sees those from first[b, t] on up to
    itself; first is (B, T) int32. p is 0 elsewhere.
    """
    B, T, H, _ = q.shape
    out = torch.empty_like(q)
    p = q.new_empty(B, H, T, k.shape[1])
    run(attention_loop, q, k, v, first, p, out, work=8 * p.numel())
    return out, p


def attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of `attention` to as many positions as q has."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run(attention_gradient_loop, grad, q, k, v, first, p, *gradients, work=16 * p.numel())
    return gradients


def short_attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return what `attention` returns for a window of at most SHORT_WINDOW tokens; p (B, T, H, W) begins at first."""
    B, T, H, _ = q.shape
    out = torch.empty_like(q)
    p = q.new_empty(B, T, H, min(window, k.shape[1]))
    run(short_attention_loop, q, k, v, first, p, out, work=8 * p.numel())
    return out, p


def short_attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of `short_attention`."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run(short_attention_gradient_loop, grad, q, k, v, first, p, *gradients, work=16 * p.numel())
    return gradients


# Cross-entropy.


@loop
def nats_and_exponentials_(x, target):
    """Replace logits x (V,) by exp(x - largest); return their sum, and the nats of the target."""
    logit = x[target]
    largest, total = exponentials_(x)
    return total, log(total) - (logit - largest)


@loop
def softmax_less_targets_loop(logits, log_factors, targets, nats, part, parts):
    start = logits.shape[1] - len(log_factors)
    for n in rows_of_part(len(logits), part, parts):
        row = logits[n]
        tail = row[start:]
        for j in range(len(log_factors)):
            tail[j] += log_factors[j]
        total, nats[n] = nats_and_exponentials_(row, targets[n])
        for j in range(len(row)):
            row[j] /= total
        row[targets[n]] -= ONE


@loop
def token_nats_loop(h, packed, targets, nats, num_entries, part, parts):
    logits = np.empty((LOGIT_ROWS, num_entries), np.float32)
    first, last = tiles_of_part(len(h), part, parts)
    for top in range(first, last, LOGIT_ROWS):
        count = min(LOGIT_ROWS, last - top)
        some = any_layout(h[top : top + count])
        multiply_rows(some, packed, any_layout(logits), (0, count), (0, h.shape[1]), False)
        for i in range(count):
            nats[top + i] = nats_and_exponentials_(logits[i], targets[top + i])[1]


def loss_rows(num_entries: int) -> int:
    """Return how many rows of logits the loss computes at a time, a multiple of TERMS."""
    return LOSS_ROWS


def softmax_less_targets(logits: Tensor, log_factors: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (N, V) by their gradient, the softmax less 1 at targets (N,); return the nats (N,).

    `log_factors` (W,) are added to the logits of the last W entries before.
    """
    nats = logits.new_empty(len(logits))
    run(softmax_less_targets_loop, logits, log_factors, targets, nats, work=2 * logits.numel())
    return nats


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C)."""
    nats = h.new_empty(len(h))
    work = 4 * len(h) * len(head)
    run(token_nats_loop, h, pack(head.mT), targets, nats, len(head), work=work)
    return nats


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.clone()
    softmax_(array(p))
    return p.masked_fill_(x == -torch.inf, 0)


# Gradients and optimizers.


@loop
def square_sum(x):
    """Return the sum, float64, of the squares of x (N,)."""
    total = 0.0
    for start in range(0, len(x), NORM_NUMBERS):
        block = x[start : start + NORM_NUMBERS]
        total += np.float64(row_dot(block, block))
    return total


@loop
def multiples_loop(x, unit, largest, out, part, parts):
    for j in rows_of_part(len(x), part, parts):
        number = np.rint(np.float64(x[j]) / unit)
        if number != number:  # NaN
            number = 0.0
        out[j] = np.int64(min(max(number, -largest), largest))


@loop
def adamw_loop(x, grad, mean, square, beta1, beta2, decay, size, root, eps, part, parts):
    keep1 = ONE - beta1
    keep2 = ONE - beta2
    # Views of this part count from 0, so that LLVM computes with vectors.
    own = slice(len(x) * part // parts, len(x) * (part + 1) // parts)
    x = x[own]
    grad = grad[own]
    mean = mean[own]
    square = square[own]
    for j in range(len(x)):
        mean[j] = mean[j] * beta1 + grad[j] * keep1
        square[j] = square[j] * beta2 + grad[j] * grad[j] * keep2
        x[j] = x[j] * decay - mean[j] * size / (np.sqrt(square[j]) / root + eps)


@loop
def whole_product(a, b, c):
    """c (M, N) = a (M, K) @ b (K, N) of arrays of any strides."""
    multiply_rows(a, pack_here(b), c, (0, len(a)), (0, len(b)), False)


@loop
def orthogonalize_loop(updates, num_steps, a, b, c, part, parts):
    _, R, C = updates.shape
    gram = np.empty((R, R), np.float32)
    square = np.empty((R, R), np.float32)
    next_x = np.empty((R, C), np.float32)
    for n in rows_of_part(len(updates), part, parts):
        x = updates[n]
        flat = x.reshape(R * C)
        size = f32(np.sqrt(square_sum(flat))) + NEWTON_SCHULZ_EPS
        for j in range(len(flat)):
            flat[j] /= size
        for _ in range(num_steps):
            whole_product(any_layout(x), any_layout(x.T), any_layout(gram))
            whole_product(any_layout(gram), any_layout(gram), any_layout(square))
            for i in range(R):
                for j in range(R):
                    square[i, j] = square[i, j] * c + gram[i, j] * b
            whole_product(any_layout(square), any_layout(x), any_layout(next_x))
            for i in range(R):
                for j in range(C):
                    x[i, j] = next_x[i, j] + x[i, j] * a


@loop
def sum_bags_loop(rows, ids, starts, out, part, parts):
    width = rows.shape[1]
    whole = width // LANES * LANES
    for i in rows_of_part(len(starts), part, parts):
        first = starts[i]
        last = starts[i + 1] if i + 1 < len(starts) else len(ids)
        # LANES columns at a time, whose sums stay in registers.
        for column in range(0, whole, LANES):
            total = lanes_of(ZERO)
            for n in range(first, last):
                total = add(total, load_lanes(rows[ids[n]], column))
            store(total, out[i], column)
        # The columns that are left.
        for column in range(whole, width):
            number = ZERO
            for n in range(first, last):
                number += rows[ids[n], column]
            out[i, column] = number


def square_sums(tensors: Iterable[Tensor]) -> list[float]:
    """Return the sum of the squares of each tensor."""
    return [square_sum(array(x.reshape(-1).contiguous())) for x in tensors]


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0."""
    result = torch.empty(x.shape, dtype=torch.int64)
    run(multiples_loop, x.contiguous().view(-1), unit, largest, result.view(-1), work=x.numel())
    return result


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
    arrays = [x.view(-1) for x in (p, grad, mean, square)]
    numbers = [f32(number) for number in (beta1, beta2, decay, size, root, eps)]
    run(adamw_loop, *arrays, *numbers, work=2 * p.numel())


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    result = updates.clone()
    a, b, c = (f32(coefficient) for coefficient in coefficients)
    run(orthogonalize_loop, result, num_steps, a, b, c, work=8 * num_steps * result.numel())
    return result


def sum_rows_by_id(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    """Return for each id (num_ids, C) the sum of its rows (N, C), in the order of ids (N,) int64."""
    total = rows.new_zeros(num_ids, rows.shape[1])
    add_rows_by_id(array(rows), array(ids), array(total))
    return total


@loop
def add_rows_by_id(rows, ids, total):
    for n in range(len(ids)):
        row = rows[n]
        sums = total[ids[n]]
        for j in range(len(row)):
            sums[j] += row[j]


def sum_bags(rows: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Return sums (K, C) of rows (R, C): row i adds the rows of ids[starts[i] : starts[i + 1]], in their order."""
    out = rows.new_empty(len(starts), rows.shape[1])
    run(sum_bags_loop, rows, ids, starts, out, work=len(ids) * rows.shape[1])
    return out

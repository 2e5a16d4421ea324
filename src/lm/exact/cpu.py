"""Loops over float32 arrays that numba compiles: each loop defines the order of its additions, and so its bits.

Every number is made by additions, multiplications, divisions, roots and fused multiply-adds (fma), which IEEE 754
rounds everywhere alike. No loop is compiled with `fastmath`, so LLVM joins and reorders none of them. What a processor
may choose is how many *results* are computed at once: by vectors, tiles and threads.

A loop whose last arguments are `part, parts` computes that part of its result; parts may run at the same time. Arrays
are contiguous unless they come from `any_layout`. lm.exact.functions calls the loops on tensors. They are in one file
because numba compiles a loop again if its own file has changed, not if another one has.

Legend as in lm.model.gemma3. N rows, and products of (M, K) and (K, N).
"""

# A checker of types sees instructions without what numba gives them.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false
# pyright: reportAttributeAccessIssue=false

import math

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

options = {"nogil": True, "cache": True, "error_model": "numpy"}
loop = njit(**options)

FLOAT, INT = ir.FloatType(), ir.IntType(64)
TERMS = 256  # of a chain of a product; chains are added one after the other
LANES = 64  # partial sums of a row


def tile_size() -> tuple[int, int, int]:
    """Return the rows of a tile, its vectors in a row, and the numbers of a vector: what fits into the registers."""
    features = binding.get_host_cpu_features()
    if numba.config.CPU_NAME == "generic":
        return 4, 2, 4
    if features.get("avx512f"):
        return 6, 4, 16
    if features.get("avx"):
        return 6, 2, 8
    return 6, 4, 4


ROWS, VECTORS, WIDTH = tile_size()
COLUMNS = VECTORS * WIDTH  # of a tile


# Instructions that numba does not offer.


def call_fma(builder, kind, name, operands):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.{name}")
    return builder.call(function, operands)


@intrinsic
def fma(typingctx, a, b, c):
    """Return a b + c, rounded once."""
    f = types.float32
    return f(f, f, f), lambda context, builder, sig, args: call_fma(builder, FLOAT, "f32", args)


@intrinsic
def times_power(typingctx, x, magic):
    """Return x 2^e for the integer e in the last bits of `magic`, 1.5 * 2**23 + e."""

    def generate(context, builder, sig, args):
        bits, exponent = (builder.bitcast(arg, ir.IntType(32)) for arg in args)
        return builder.bitcast(builder.add(bits, builder.shl(exponent, ir.IntType(32)(23))), FLOAT)

    return types.float32(types.float32, types.float32), generate


def pointer(context, builder, kind, array, indices):
    """Return the address of an element."""
    made = context.make_array(kind)(context, builder, array)
    strides = cgutils.unpack_tuple(builder, made.strides, kind.ndim)
    offset = INT(0)
    for index, stride in zip(indices, strides, strict=True):
        offset = builder.add(offset, builder.mul(index, stride))
    start = builder.bitcast(made.data, ir.IntType(8).as_pointer())
    return builder.gep(start, [offset], source_etype=ir.IntType(8)), strides


def forward(builder, start, numbers):
    """Return the address of `numbers` float32 after `start`."""
    start = builder.bitcast(start, FLOAT.as_pointer())
    return builder.gep(start, [numbers], source_etype=FLOAT)


def load(builder, start, kind):
    return builder.load(builder.bitcast(start, kind.as_pointer()), align=4, typ=kind)


def store(builder, value, start):
    builder.store(value, builder.bitcast(start, value.type.as_pointer()), align=4)


def tile_function(module):
    """Return the LLVM function of `tile`, one for all loops of a module: (a, a_row, a_term, b, c, c_row, terms, more).

    The last indices of b and c are next to each other; strides are in numbers.
    """
    byte, vector = ir.IntType(8).as_pointer(), ir.VectorType(FLOAT, WIDTH)
    kind = ir.FunctionType(ir.VoidType(), [byte, INT, INT, byte, byte, INT, INT, ir.IntType(1)])
    function = cgutils.get_or_insert_function(module, kind, f"lm_tile_{ROWS}_{VECTORS}_{WIDTH}")
    if function.blocks:
        return function
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    a, a_row, a_term, b, c, c_row, terms, more = function.args
    builder = ir.IRBuilder(function.append_basic_block())

    # The sums of the tile begin at 0. LLVM keeps them in registers.
    places = [(i, j) for i in range(ROWS) for j in range(VECTORS)]
    sums = {place: cgutils.alloca_once(builder, vector) for place in places}
    for place in places:
        builder.store(ir.Constant(vector, [0.0] * WIDTH), sums[place])

    # For each term, add a number of each row of a, times the vectors of b.
    with cgutils.for_range(builder, terms) as steps:
        b_row = forward(builder, b, builder.mul(steps.index, INT(COLUMNS)))
        a_column = forward(builder, a, builder.mul(steps.index, a_term))
        of_b = [load(builder, forward(builder, b_row, INT(j * WIDTH)), vector) for j in range(VECTORS)]
        for i in range(ROWS):
            number = load(builder, forward(builder, a_column, builder.mul(a_row, INT(i))), FLOAT)
            of_a = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
            first = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
            of_a = builder.shuffle_vector(of_a, ir.Constant(vector, ir.Undefined), first)
            for j in range(VECTORS):
                old = builder.load(sums[i, j], typ=vector)
                new = call_fma(builder, vector, f"v{WIDTH}f32", [of_a, of_b[j], old])
                builder.store(new, sums[i, j])

    # Add what c holds, if wanted, and write the sums to c.
    targets = {}
    for i, j in places:
        numbers = builder.add(builder.mul(c_row, INT(i)), INT(j * WIDTH))
        targets[i, j] = forward(builder, c, numbers)
    with builder.if_then(more):
        for place in places:
            old = load(builder, targets[place], vector)
            builder.store(builder.fadd(old, builder.load(sums[place], typ=vector)), sums[place])
    for place in places:
        store(builder, builder.load(sums[place], typ=vector), targets[place])
    builder.ret_void()
    return function


@intrinsic
def tile(typingctx, a, ai, ak, b, panel, c, ci, cj, terms, more):
    """c[ci + i, cj + j] = the sum over k of a[ai + i, ak + k] * b[panel, ak + k, j], for i < ROWS, j < COLUMNS.

    The sum is a chain of fma from 0 on, in the order of k. With `more` it is added to what c holds.
    """

    def generate(context, builder, sig, args):
        a, ai, ak, b, panel, c, ci, cj, terms, more = args
        pa, (a_row, a_term) = pointer(context, builder, sig.args[0], a, [ai, ak])
        pb, _ = pointer(context, builder, sig.args[3], b, [panel, ak, INT(0)])
        pc, (c_row, _) = pointer(context, builder, sig.args[5], c, [ci, cj])
        a_row, a_term, c_row = (builder.sdiv(stride, INT(4)) for stride in (a_row, a_term, c_row))
        more = cgutils.as_bool_bit(builder, more)
        builder.call(tile_function(builder.module), [pa, a_row, a_term, pb, pc, c_row, terms, more])
        return context.get_dummy_value()

    i = types.intp
    return types.void(a, i, i, b, i, c, i, i, i, types.boolean), generate


@intrinsic
def any_layout(typingctx, x):
    """Return the array x as one of any strides, so that a loop is compiled once for all."""
    kind = x.copy(layout="A")
    return kind(x), lambda context, builder, sig, args: impl_ret_borrowed(context, builder, kind, args[0])


def reduction(combine):
    """Return `combine` over the numbers of one or two rows, in LANES lanes, which are then combined by halves."""

    def generate(context, builder, sig, args):
        rows = [pointer(context, builder, kind, array, [INT(0)])[0] for kind, array in zip(sig.args, args, strict=True)]
        made = context.make_array(sig.args[0])(context, builder, args[0])
        (length,) = cgutils.unpack_tuple(builder, made.shape, 1)
        lanes = ir.VectorType(FLOAT, LANES)

        # Combine LANES numbers at a time, each lane for itself.
        start = -math.inf if combine is combine_max else 0.0
        total = cgutils.alloca_once(builder, lanes)
        builder.store(ir.Constant(lanes, [start] * LANES), total)
        whole = builder.sdiv(length, INT(LANES))
        with cgutils.for_range(builder, whole) as steps:
            at = builder.mul(steps.index, INT(LANES))
            numbers = [load(builder, forward(builder, row, at), lanes) for row in rows]
            builder.store(combine(builder, lanes, builder.load(total, typ=lanes), numbers), total)

        # The numbers that are left go to the first lanes.
        done = builder.mul(whole, INT(LANES))
        with cgutils.for_range(builder, builder.sub(length, done)) as steps:
            at = builder.add(done, steps.index)
            numbers = [load(builder, forward(builder, row, at), FLOAT) for row in rows]
            lane = forward(builder, total, steps.index)
            store(builder, combine(builder, FLOAT, load(builder, lane, FLOAT), numbers), lane)

        # Combine the second half of the lanes with the first until one is left.
        x = builder.load(total, typ=lanes)
        half = LANES // 2
        while half:
            low = lanes_of(builder, x, 0, half)
            high = lanes_of(builder, x, half, half)
            x = combine_halves(builder, low, high, combine)
            half //= 2
        return builder.extract_element(x, ir.IntType(32)(0))

    return generate


def lanes_of(builder, x, first, number):
    """Return some lanes of the vector x, from `first` on."""
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), number), list(range(first, first + number)))
    return builder.shuffle_vector(x, x, chosen)


def combine_sum(builder, kind, total, numbers):
    return builder.fadd(total, numbers[0])


def combine_product(builder, kind, total, numbers):
    name = "f32" if kind is FLOAT else f"v{LANES}f32"
    return call_fma(builder, kind, name, [*numbers, total])


def combine_max(builder, kind, total, numbers):
    return builder.select(builder.fcmp_ordered(">", numbers[0], total), numbers[0], total)


def combine_halves(builder, low, high, combine):
    return combine_max(builder, None, low, [high]) if combine is combine_max else builder.fadd(low, high)


@intrinsic
def row_sum(typingctx, x):
    """Return the sum of x (N,)."""
    return types.float32(x), reduction(combine_sum)


@intrinsic
def row_dot(typingctx, x, y):
    """Return the sum of x * y, both (N,)."""
    return types.float32(x, y), reduction(combine_product)


@intrinsic
def row_max(typingctx, x):
    """Return the largest number of x (N,)."""
    return types.float32(x), reduction(combine_max)


# Exponential and logarithm.

f32 = np.float32
LOG2_OF_E = 1.4426950408889634
LOG2E = f32(LOG2_OF_E)
LOG2E_LOW = f32(LOG2_OF_E - float(LOG2E))  # what float32 cannot hold of it
MAGIC = f32(1.5 * 2**23)  # float32 numbers near it are integers
SMALLEST = f32(-41.5)  # exponents: subnormal numbers are slow
E0, E1, E2, E3, E4, E5, ONE = (
    f32(1.535336188319500e-4), f32(1.339887440266574e-3), f32(9.618437357674640e-3), f32(5.550332471162809e-2),
    f32(2.402264791363012e-1), f32(6.931472028550421e-1), f32(1),
)  # 2^f for |f| ≤ 1/2  # fmt: skip
ZERO = f32(0)
LOG_2 = 0.6931471805599453


@loop
def exp(x):
    """Return exp(x) of x ≤ 0, at least that of SMALLEST; NaN stays NaN."""
    x = SMALLEST if x < SMALLEST else x
    magic = x * LOG2E + MAGIC
    whole = magic - MAGIC
    f = fma(x, LOG2E_LOW, fma(x, LOG2E, -whole))
    p = fma(fma(fma(fma(fma(fma(E0, f, E1), f, E2), f, E3), f, E4), f, E5), f, ONE)
    return times_power(p, magic)


@loop
def log(x):
    """Return log(x), float64, of x ≥ 1: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    mantissa, exponent = math.frexp(np.float64(x))
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square, total = z * z, 0.0
    for n in range(27, 0, -2):
        total = total * square + 1.0 / n
    return total * z * 2.0 + exponent * LOG_2


# Products.


@loop
def pack_panel(b, panel, packed):
    """Copy columns of b (K, N) to packed[panel] (K, COLUMNS); zeros follow the last one."""
    first = panel * COLUMNS
    width = min(COLUMNS, b.shape[1] - first)
    if b.strides[1] == 4 and width == COLUMNS:
        for k in range(len(b)):
            row, copy = b[k, first : first + COLUMNS], packed[panel, k]
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
def num_panels(n):
    return (n + COLUMNS - 1) // COLUMNS


@loop
def empty_panels(num_terms, num_columns):
    """Return an array for the panels of b (K, N): one of COLUMNS columns after the other."""
    return np.empty((num_panels(num_columns), num_terms, COLUMNS), np.float32)


@loop
def pack(b):
    """Return the panels of b (K, N)."""
    packed = empty_panels(len(b), b.shape[1])
    for panel in range(len(packed)):
        pack_panel(b, panel, packed)
    return packed


@loop
def edge_tile(a, i, k, b, panel, c, column, last, length, more):
    """Write a tile of `multiply` that reaches beyond the last row or column of c."""
    spare = np.empty((ROWS, COLUMNS), np.float32)
    rows = np.zeros((ROWS, length), np.float32)
    height = min(ROWS, last - i)
    width = min(COLUMNS, c.shape[1] - column)
    for r in range(height):
        for n in range(length):
            rows[r, n] = a[i + r, k + n]
    tile(rows, 0, 0, b[:, k:], panel, spare, 0, 0, length, False)
    for r in range(height):
        for j in range(width):
            total = spare[r, j]
            c[i + r, column + j] = c[i + r, column + j] + total if more else total


@loop
def multiply(a, b, c, first, last, start, stop, more):
    """c[first:last] = a[first:last] @ b for a (M, K) and packed b, over the terms from start to stop."""
    for panel in range(num_panels(c.shape[1])):
        column = panel * COLUMNS
        is_whole = column + COLUMNS <= c.shape[1]
        for k in range(start, stop, TERMS):
            length = min(TERMS, stop - k)
            adds = more or k > start
            for i in range(first, last, ROWS):
                if is_whole and i + ROWS <= last:
                    tile(a, i, k, b, panel, c, i, column, length, adds)
                else:
                    edge_tile(a, i, k, b, panel, c, column, last, length, adds)


@loop
def share(number, parts, part):
    """Return where a part of `number` rows begins, a multiple of ROWS."""
    blocks = (number + ROWS - 1) // ROWS
    return min(number, blocks * part // parts * ROWS)


@loop
def part_of(number, part, parts):
    """Return the range of a part of `number` rows."""
    return range(number * part // parts, number * (part + 1) // parts)


@loop
def pack_parts(x, turned, packed, part, parts):
    """Pack a part of the panels of b, which is x or, if `turned`, its transpose."""
    b = any_layout(x.T) if turned else any_layout(x)
    for panel in part_of(len(packed), part, parts):
        pack_panel(b, panel, packed)


@loop
def product(x, turned, packed, c, more, part, parts):
    """c (M, N) = a (M, K) @ b (K, N), added to what c holds if `more`; a is x or, if `turned`, its transpose."""
    a = any_layout(x.T) if turned else any_layout(x)
    first, last = share(len(a), parts, part), share(len(a), parts, part + 1)
    multiply(a, packed, any_layout(c), first, last, np.intp(0), a.shape[1], more)


# Norms and the gate.

NORM_NUMBERS = 4096  # whose squares are added in float32; the sums of such blocks are added in float64


@loop
def square_sum(x):
    """Return the sum, float64, of the squares of x (N,)."""
    total = 0.0
    for start in range(0, len(x), NORM_NUMBERS):
        block = x[start : start + NORM_NUMBERS]
        total += np.float64(row_dot(block, block))
    return total


SUM_ROWS = 128  # rows that are added one after the other; the sums of such blocks are added in order too


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
def rms_norm(x, weight, eps, out, r, part, parts):
    """out = x r (1 + w) for x (N, C), r (N,) = 1 / sqrt(mean(x²) + eps)."""
    for n in part_of(len(x), part, parts):
        r[n] = norm_row(x[n], weight, eps, out[n])


@loop
def rms_norm_gradient(grad, x, weight, r, grad_x, sums, part, parts):
    """Write the gradient of x (N, C), and that of the weight by every SUM_ROWS rows to sums (blocks, C)."""
    gain = np.empty(x.shape[1], np.float32)
    for block in part_of(len(sums), part, parts):
        sums[block] = ZERO
        for n in range(block * SUM_ROWS, min(len(x), (block + 1) * SUM_ROWS)):
            norm_gradient_row(grad[n], x[n], weight, r[n], grad_x[n], sums[block], gain)


@loop
def add_rows(x, total):
    """total (C,) = the sum of the rows of x (N, C), one after the other."""
    for j in range(len(total)):
        total[j] = x[0, j]
    for n in range(1, len(x)):
        for j in range(len(total)):
            total[j] += x[n, j]


GELU_SCALE, GELU_CUBIC = f32(2 * math.sqrt(2 / math.pi)), f32(0.044715)
GELU_CUBIC_SLOPE = f32(3 * 0.044715)


@loop
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    small = exp(-x if x > ZERO else x)
    return (ONE if x > ZERO else small) / (ONE + small)


@loop
def gated_gelu(gate, up, out, part, parts):
    """out = gelu(gate) up, all (N, F)."""
    for n in part_of(len(gate), part, parts):
        gate_row = gate[n]
        up_row = up[n]
        out_row = out[n]
        for j in range(gate.shape[1]):
            x = gate_row[j]
            inner = (x * x * GELU_CUBIC + ONE) * x * GELU_SCALE
            out_row[j] = x * sigmoid(inner) * up_row[j]


@loop
def gated_gelu_gradient(grad, gate, up, grad_gate, grad_up, part, parts):
    """Write the gradients of gate and up (N, F)."""
    for n in part_of(len(gate), part, parts):
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
def nats_and_exponentials_(x, target):
    """Replace logits x (V,) by exp(x - largest); return their sum, and the nats of the target."""
    logit = x[target]
    largest, total = exponentials_(x)
    return total, log(total) - (logit - largest)


BAND = 48  # rows of scores that are computed together


@loop
def attention_group(q, k, v, first, p, out):
    """Compute `attention` of the query heads of one key/value head: q (T, G, D), k, v (S, D), p (G, T, S)."""
    (T, G, D), S = q.shape, len(k)
    no, zero = S < 0, np.intp(0)
    keys, values = pack(any_layout(k.T)), pack(any_layout(v))
    for h in range(G):
        scores, queries, result = any_layout(p[h]), any_layout(q[:, h]), any_layout(out[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            seen = S - T + bottom  # positions that the last row of the band sees
            multiply(queries, keys, scores[:, :seen], top, bottom, zero, D, no)
            for t in range(top, bottom):
                begin, end = first[t], S - T + t + 1
                row = p[h, t]
                softmax_(row[begin:end])
                for s in range(begin):
                    row[s] = ZERO
                for s in range(end, S):
                    row[s] = ZERO
            multiply(scores, values, result, top, bottom, zero, seen, no)


@loop
def attention(q, k, v, first, p, out, part, parts):
    """out (B, T, H, D) = softmax of q k^T (scaled before) times v, and p (B, H, T, S) the softmax.

    q: (B, T, H, D), the last T positions; k, v: (B, S, K, D). A position sees those from first[b, t] on up to itself.
    """
    B, K, G = len(q), k.shape[2], q.shape[2] // k.shape[2]
    for n in part_of(B * K, part, parts):
        b, group = n // K, n % K
        heads = slice(group * G, (group + 1) * G)
        attention_group(q[b, :, heads], k[b, :, group], v[b, :, group], first[b], p[b, heads], out[b, :, heads])


@loop
def attention_group_gradient(grad, q, k, v, first, p, grad_q, grad_k, grad_v):
    """Compute `attention_gradient` of the query heads of one key/value head."""
    T, G, D = q.shape
    no, zero = T < 0, np.intp(0)
    slopes = np.empty((T, T), np.float32)  # the gradient of the scores
    of_scores, of_k, of_v = any_layout(slopes), any_layout(grad_k), any_layout(grad_v)
    keys, values = pack(any_layout(k)), pack(any_layout(v.T))
    for h in range(G):
        own, of_q = any_layout(grad[:, h]), any_layout(grad_q[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            multiply(own, values, of_scores[:, :bottom], top, bottom, zero, D, no)
            for t in range(top, bottom):
                begin, end = first[t], t + 1
                row, weights = slopes[t, begin:end], p[h, t, begin:end]
                along = row_dot(row, weights)
                for j in range(len(row)):
                    row[j] = (row[j] - along) * weights[j]
                row = slopes[t]
                for s in range(begin):
                    row[s] = ZERO
                for s in range(end, T):
                    row[s] = ZERO
            multiply(of_scores, keys, of_q, top, bottom, zero, bottom, no)
        grads, queries = pack(own), pack(any_layout(q[:, h]))
        for top in range(0, T, BAND):  # nobody before a position sees it
            bottom = min(T, top + BAND)
            multiply(any_layout(p[h].T), grads, of_v, top, bottom, top, T, h > 0)
            multiply(of_scores.T, queries, of_k, top, bottom, top, T, h > 0)


@loop
def attention_gradient(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    """Write the gradients of q (B, T, H, D), and of k and v (B, T, K, D)."""
    B, K, G = len(q), k.shape[2], q.shape[2] // k.shape[2]
    for n in part_of(B * K, part, parts):
        b, group = n // K, n % K
        heads = slice(group * G, (group + 1) * G)
        attention_group_gradient(
            grad[b, :, heads], q[b, :, heads], k[b, :, group], v[b, :, group], first[b], p[b, heads],
            grad_q[b, :, heads], grad_k[b, :, group], grad_v[b, :, group],
        )  # fmt: skip


@loop
def short_attention(q, k, v, first, p, out, part, parts):
    """What `attention` writes, for windows of at most p.shape[3] positions; p (B, T, H, W) from first[b, t] on."""
    (B, T, H, D), (S, K) = q.shape, k.shape[1:3]
    for n in part_of(B * T, part, parts):
        b, t = n // T, n % T
        begin, end = first[b, t], S - T + t + 1
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
                weight, value = row[s - begin], v[b, s, group]
                for j in range(D):
                    result[j] = fma(weight, value[j], result[j])


@loop
def short_attention_gradient(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    """What `attention_gradient` writes."""
    (B, T, H, D), K = q.shape, k.shape[2]
    for n in part_of(B * K, part, parts):
        b, group = n // K, n % K
        slopes = np.empty(p.shape[3], np.float32)
        grad_k[b, :, group] = ZERO
        grad_v[b, :, group] = ZERO
        for t in range(T):
            begin, end = first[b, t], t + 1
            for h in range(group * (H // K), (group + 1) * (H // K)):
                weights, slope, own = p[b, t, h, : end - begin], slopes[: end - begin], grad[b, t, h]
                for s in range(begin, end):
                    slope[s - begin] = row_dot(own, v[b, s, group])
                along = row_dot(slope, weights)
                query, of_query = q[b, t, h], grad_q[b, t, h]
                for j in range(D):
                    of_query[j] = ZERO
                for s in range(begin, end):
                    weight = weights[s - begin]
                    x = (slope[s - begin] - along) * weight
                    key, of_key, of_value = k[b, s, group], grad_k[b, s, group], grad_v[b, s, group]
                    for j in range(D):
                        of_query[j] = fma(x, key[j], of_query[j])
                        of_key[j] = fma(x, query[j], of_key[j])
                        of_value[j] = fma(weight, own[j], of_value[j])


# Cross-entropy.


LOGIT_ROWS = 24  # rows of logits that a thread holds


@loop
def token_nats(h, packed, targets, out, num_entries, part, parts):
    """out (N,) = the nats of targets (N,) given h (N, C) and the packed head of V = num_entries."""
    logits = np.empty((LOGIT_ROWS, num_entries), np.float32)
    first, last = share(len(h), parts, part), share(len(h), parts, part + 1)
    for top in range(first, last, LOGIT_ROWS):
        count = min(LOGIT_ROWS, last - top)
        some = any_layout(h[top : top + count])
        multiply(some, packed, any_layout(logits), np.intp(0), count, np.intp(0), h.shape[1], count < 0)
        for i in range(count):
            out[top + i] = nats_and_exponentials_(logits[i], targets[top + i])[1]


@loop
def softmax_less_targets(logits, log_factors, targets, nats, part, parts):
    """Replace logits (N, V) by their gradient, the softmax less 1 at targets (N,); nats (N,) are the losses."""
    start = logits.shape[1] - len(log_factors)
    for n in part_of(len(logits), part, parts):
        row = logits[n]
        tail = row[start:]
        for j in range(len(log_factors)):
            tail[j] += log_factors[j]
        total, nats[n] = nats_and_exponentials_(row, targets[n])
        for j in range(len(row)):
            row[j] /= total
        row[targets[n]] -= ONE


# Gradients and optimizers.


@loop
def multiples(x, unit, largest, out, part, parts):
    """out (N,) int64 = x (N,) in multiples of `unit`, at most `largest` in size; NaN becomes 0."""
    for j in part_of(len(x), part, parts):
        number = np.rint(np.float64(x[j]) / unit)
        if number != number:  # NaN
            number = 0.0
        out[j] = np.int64(min(max(number, -largest), largest))


@loop
def adamw(x, grad, mean, square, beta1, beta2, decay, size, root, eps, part, parts):
    """Update x (N,) and both moments; numbers are float32."""
    keep1, keep2 = ONE - beta1, ONE - beta2
    # Views of this part count from 0, so that LLVM computes with vectors.
    own = slice(len(x) * part // parts, len(x) * (part + 1) // parts)
    x, grad, mean, square = x[own], grad[own], mean[own], square[own]
    for j in range(len(x)):
        mean[j] = mean[j] * beta1 + grad[j] * keep1
        square[j] = square[j] * beta2 + grad[j] * grad[j] * keep2
        x[j] = x[j] * decay - mean[j] * size / (np.sqrt(square[j]) / root + eps)


@loop
def whole_product(a, b, c):
    """c (M, N) = a (M, K) @ b (K, N) of arrays of any strides."""
    multiply(a, pack(b), c, np.intp(0), len(a), np.intp(0), len(b), len(a) < 0)


@loop
def orthogonalize(updates, steps, a, b, c, part, parts):
    """Bring the singular values of matrices (N, R, C) near 1 by Newton-Schulz iteration."""
    _, R, C = updates.shape
    gram, square, next_x = np.empty((R, R), np.float32), np.empty((R, R), np.float32), np.empty((R, C), np.float32)
    for n in part_of(len(updates), part, parts):
        x = updates[n]
        flat = x.reshape(R * C)
        size = np.sqrt(row_dot(flat, flat)) + f32(1e-7)
        for j in range(len(flat)):
            flat[j] /= size
        for _ in range(steps):
            whole_product(any_layout(x), any_layout(x.T), any_layout(gram))
            whole_product(any_layout(gram), any_layout(gram), any_layout(square))
            for i in range(R):
                for j in range(R):
                    square[i, j] = square[i, j] * c + gram[i, j] * b
            whole_product(any_layout(square), any_layout(x), any_layout(next_x))
            for i in range(R):
                for j in range(C):
                    x[i, j] = next_x[i, j] + x[i, j] * a

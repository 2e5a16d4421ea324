"""The definition of exact numerics: what decides a bit is here and nowhere else.

A number is made by additions, multiplications, divisions, square roots and fused multiply-adds (`fma`). IEEE 754 rounds
each of them to the nearest number alike on every processor, so the bits depend on the order of the operations alone.

- Python's precedence holds, and operations of one precedence go from left to right. Each rounds; only `fma` joins two.
- Numbers are float32, unless a comment says float64. Subnormal numbers are kept.
- A sum begins at +0 and takes its terms one after the other.
- Long sums are cut into chains or blocks, which begin at multiples of their length from position 0 on.
- A product and a sum of a row never are -0, so a term of weight 0 may be left out, or added, anywhere.
- Tiles, bands, threads and devices decide how many results are computed at once. They decide no bit.
- This holds as long as numbers are finite. A NaN stays NaN, but its bits, and which of its neighbours in a batch become
  NaN too, are not defined. Training ends at the first loss that is not finite.

The constants and AdamWScalars are used by lm.exact.cpu and lm.exact.gpu. `power`, `cos_pi` and `log` compute for a run
what the C library and torch compute with other bits on other systems. The other functions are used by tests alone: each
is the shortest correct way to compute, and far too slow to train. Names, arguments and shapes are those of
lm.exact.cpu, for arrays of NumPy: N rows, B sequences, T queries, S keys, H heads, K heads of keys, D numbers a head,
C numbers a row, V entries of the vocabulary. An operation on arrays computes each of their numbers by itself.
"""

import math
from typing import NamedTuple

import numpy as np

# Lengths.

TERMS = 256  # products that are added by fma in one chain; the sums of the chains are added in order
LANES = 64  # partial sums of a row: number j of the row belongs to lane j % LANES; then halves of the lanes are added
NORM_NUMBERS = 4096  # numbers whose squares are added as a row, in float32; such blocks are added in float64, in order
SUM_ROWS = 128  # rows whose gradients of a norm's weight are added in order; the sums of such blocks are added in order
SHORT_WINDOW = 16  # tokens: windows of attention up to this one are added token by token, not in chains of TERMS

# Gradients of several micro-batches are added as integers, and so are nats.

GRADIENT_UNIT = 2.0**-40  # what 1 stands for
LARGEST_GRADIENT = 2.0**50  # the largest such integer, so that a thousand of them fit into 64 bits

NATS_UNIT = 2.0**-30  # nats for which 1 stands

# Exponential and logarithm: exp(x) = 2^whole 2^f with |f| ≤ 1/2, and 2^f is a polynomial.

LOG2_OF_E = 1.4426950408889634
LOG2E = np.float32(LOG2_OF_E)
LOG2E_LOW = np.float32(LOG2_OF_E - float(LOG2E))  # what float32 cannot hold of it
MAGIC = np.float32(1.5 * 2**23)  # float32 numbers near it are integers
SMALLEST_EXPONENT = np.float32(-41.5)  # smaller ones count as this one, because subnormal numbers are slow
EXP_COEFFICIENTS = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.535336188319500e-4,
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    )
)
LOG_2 = 0.6931471805599453
LOG_TERMS = 27  # the highest power in the series of the logarithm

# The gate: gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2 / π) (x + 0.044715 x³).

GELU_SCALE = np.float32(2 * math.sqrt(2 / math.pi))
GELU_CUBIC = np.float32(0.044715)
GELU_CUBIC_SLOPE = np.float32(3 * 0.044715)

# Newton-Schulz iteration.

NEWTON_SCHULZ_EPS = np.float32(1e-7)  # is added to the norm of a matrix

# Numbers.


def fma(a, b, c):
    """Return a b + c, rounded once: computed in float64, where the product is exact."""
    product = np.float64(a) * np.float64(b)
    total = product + np.float64(c)

    # What the addition has lost, which float64 can hold (Knuth).
    share = total - product
    lost = (product - (total - share)) + (np.float64(c) - share)

    # Round to the odd one of both neighbours: then rounding to float32 is right (Boldo and Melquiond 2008).
    is_even = total.view(np.int64) % 2 == 0
    neighbour = np.nextafter(total, np.copysign(np.inf, lost))
    odd = np.where(is_even & (np.abs(lost) > 0), neighbour, total)
    return np.float32(odd)


def exp(x):
    """Return exp(x) of x ≤ 0; of SMALLEST_EXPONENT where x is smaller."""
    x = np.where(x < SMALLEST_EXPONENT, SMALLEST_EXPONENT, x)
    whole = (x * LOG2E + MAGIC) - MAGIC  # the nearest integer
    f = fma(x, LOG2E_LOW, fma(x, LOG2E, -whole))
    power = EXP_COEFFICIENTS[0]
    for coefficient in EXP_COEFFICIENTS[1:]:
        power = fma(power, f, coefficient)
    exponent = np.nan_to_num(whole).astype(np.int32)
    return np.ldexp(power, exponent)


def log(x):
    """Return log(x), float64, of x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e and 1/2 ≤ m < 1."""
    mantissa, exponent = np.frexp(np.float64(x))
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    total = 0.0
    for n in range(LOG_TERMS, 0, -2):
        total = total * square + 1.0 / n
    return total * z * 2.0 + exponent * LOG_2


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    small = exp(np.where(x > 0, -x, x))
    return np.where(x > 0, np.float32(1), small) / (1 + small)


def power(base, exponent):
    """Return a float64 base to an integer power of 0 or more."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result = result * base
        base = base * base
        exponent = exponent // 2
    return result


def cos_pi(x):
    """Return cos(π x), float64, for x from 0 to 1, as the Taylor series of sin(π (1/2 - x))."""
    angle = math.pi * (0.5 - x)
    term = angle
    total = angle
    for n in range(3, 27, 2):
        term = term * (-angle * angle / (n * (n - 1)))
        total = total + term
    return total


# Rows of numbers.


def in_lanes(x, fill):
    """Return x (N,) as rows of LANES numbers; `fill` follows the last number."""
    num_rows = math.ceil(len(x) / LANES)
    rows = np.full((num_rows, LANES), fill, np.float32)
    rows.flat[: len(x)] = x
    return rows


def row_sum(x):
    """Return the sum of x (N,)."""
    lanes = np.zeros(LANES, np.float32)
    for row in in_lanes(x, 0):
        lanes = lanes + row
    return sum_of_lanes(lanes)


def row_dot(x, y):
    """Return the sum of x * y, both (N,)."""
    lanes = np.zeros(LANES, np.float32)
    for x_row, y_row in zip(in_lanes(x, 0), in_lanes(y, 0), strict=True):
        lanes = fma(x_row, y_row, lanes)
    return sum_of_lanes(lanes)


def sum_of_lanes(lanes):
    """Return the sum of all lanes: the second half is added to the first, until one number is left."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0] + np.float32(0)  # a sum is never -0


def row_max(x):
    """Return the largest number of x (N,); NaN does not count."""
    lanes = np.full(LANES, -np.inf, np.float32)
    for row in in_lanes(x, -np.inf):
        lanes = np.where(row > lanes, row, lanes)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = np.where(lanes[half:] > lanes[:half], lanes[half:], lanes[:half])
    return lanes[0]


def exponentials(x):
    """Return the largest number of x (S,), exp(x - largest), and the sum of these."""
    largest = row_max(x)
    numbers = exp(x - largest)
    return largest, numbers, row_sum(numbers)


def softmax_row(x):
    """Return the softmax of x (S,)."""
    _, numbers, total = exponentials(x)
    return numbers / total


def softmax(x):
    """Return the softmax of x (V,); -inf becomes 0."""
    return np.where(x == -np.inf, np.float32(0), softmax_row(x))


# Products.


def product(a, b, out=None):
    """Return a @ b (M, N) of a (M, K) and b (K, N), added to what `out` (M, N) holds, or else to +0."""
    total = np.zeros((len(a), b.shape[1]), np.float32) if out is None else out
    for first in range(0, len(b), TERMS):
        chain = np.zeros_like(total)
        for k in range(first, min(first + TERMS, len(b))):
            chain = fma(a[:, k, None], b[k], chain)
        total = total + chain
    return total


# The gate and the norm.


def gelu_inner(x):
    """Return 2 u."""
    return (x * x * GELU_CUBIC + 1) * x * GELU_SCALE


def gated_gelu(gate, up):
    """Return gelu(gate) up, all (N, F)."""
    return gate * sigmoid(gelu_inner(gate)) * up


def gated_gelu_gradient(grad, gate, up):
    """Return the gradients of gate and up (N, F)."""
    weight = sigmoid(gelu_inner(gate))
    inner_slope = (gate * gate * GELU_CUBIC_SLOPE + 1) * gate * GELU_SCALE
    slope = inner_slope * (1 - weight) + 1  # of gelu, divided by weight
    scaled = weight * grad
    return slope * up * scaled, scaled * gate


def rms_norm(x, weight, eps):
    """Return x r (1 + w) (N, C) for x (N, C) and weight (C,), and r (N,) = 1 / sqrt(mean(x²) + eps)."""
    out = np.empty_like(x)
    r = np.empty(len(x), np.float32)
    for n, row in enumerate(x):
        mean_square = row_dot(row, row) / np.float32(len(row))
        r[n] = 1 / np.sqrt(mean_square + np.float32(eps))
        out[n] = row * r[n] * (1 + weight)
    return out, r


def rms_norm_gradient(grad, x, weight, r):
    """Return the gradients of x (N, C) and of weight (C,)."""
    grad_x = np.empty_like(x)
    grad_weight = np.zeros_like(weight)
    for first in range(0, len(x), SUM_ROWS):
        block_sum = np.zeros_like(weight)
        for n in range(first, min(first + SUM_ROWS, len(x))):
            unit = x[n] * r[n]
            block_sum = block_sum + grad[n] * unit
            gain = grad[n] * (1 + weight)
            along = row_dot(gain, x[n]) * r[n] / np.float32(len(weight))
            grad_x[n] = (gain - unit * along) * r[n]
        grad_weight = grad_weight + block_sum
    return grad_x, grad_weight


# Attention. Query t of T is position S - T + t, and sees the positions from first[b, t] on up to itself.


def attention(q, k, v, first):
    """Return the softmax of q k^T times v (B, T, H, D), and the softmax p (B, H, T, S).

    q: (B, T, H, D), scaled; k, v: (B, S, K, D); first: (B, T).
    """
    B, T, H, _ = q.shape
    S, K = k.shape[1:3]
    out = np.empty_like(q)
    p = np.zeros((B, H, T, S), np.float32)
    for b, h in np.ndindex(B, H):
        group = h // (H // K)
        scores = product(q[b, :, h], k[b, :, group].T)
        for t in range(T):
            seen = slice(first[b, t], S - T + t + 1)
            p[b, h, t, seen] = softmax_row(scores[t, seen])
        out[b, :, h] = product(p[b, h], v[b, :, group])
    return out, p


def score_gradient(of_weights, p, first):
    """Return the gradient of the scores (T, T), given that of their softmax p (T, T) and first (T,)."""
    of_scores = np.zeros_like(p)
    for t in range(len(p)):
        seen = slice(first[t], t + 1)
        along = row_dot(of_weights[t, seen], p[t, seen])
        of_scores[t, seen] = (of_weights[t, seen] - along) * p[t, seen]
    return of_scores


def attention_gradient(grad, q, k, v, first, p):
    """Return the gradients of q, k and v of `attention`; S is T."""
    grad_q = np.empty_like(q)
    grad_k = np.zeros_like(k)
    grad_v = np.zeros_like(v)
    H = q.shape[2]
    K = k.shape[2]
    for b, h in np.ndindex(len(q), H):
        group = h // (H // K)
        of_weights = product(grad[b, :, h], v[b, :, group].T)
        of_scores = score_gradient(of_weights, p[b, h], first[b])
        grad_q[b, :, h] = product(of_scores, k[b, :, group])
        grad_k[b, :, group] = product(of_scores.T, q[b, :, h], grad_k[b, :, group])
        grad_v[b, :, group] = product(p[b, h].T, grad[b, :, h], grad_v[b, :, group])
    return grad_q, grad_k, grad_v


def short_attention(q, k, v, first, window):
    """Return what `attention` returns for a window of at most SHORT_WINDOW; p (B, T, H, W) begins at first[b, t]."""
    B, T, H, _ = q.shape
    S, K = k.shape[1:3]
    out = np.zeros_like(q)
    p = np.zeros((B, T, H, min(window, S)), np.float32)
    for b, t, h in np.ndindex(B, T, H):
        group = h // (H // K)
        seen = range(first[b, t], S - T + t + 1)
        scores = [row_dot(q[b, t, h], k[b, s, group]) for s in seen]
        p[b, t, h, : len(seen)] = softmax_row(np.array(scores))
        for weight, s in zip(p[b, t, h], seen, strict=False):
            out[b, t, h] = fma(weight, v[b, s, group], out[b, t, h])
    return out, p


def short_attention_gradient(grad, q, k, v, first, p):
    """Return the gradients of q, k and v of `short_attention`; S is T."""
    grad_q = np.zeros_like(q)
    grad_k = np.zeros_like(k)
    grad_v = np.zeros_like(v)
    B, T, H, _ = q.shape
    for b, t, h in np.ndindex(B, T, H):
        group = h // (H // k.shape[2])
        seen = range(first[b, t], t + 1)
        weights = p[b, t, h, : len(seen)]
        of_weights = np.array([row_dot(grad[b, t, h], v[b, s, group]) for s in seen])
        of_scores = (of_weights - row_dot(of_weights, weights)) * weights
        for weight, x, s in zip(weights, of_scores, seen, strict=True):
            grad_q[b, t, h] = fma(x, k[b, s, group], grad_q[b, t, h])
            grad_k[b, s, group] = fma(x, q[b, t, h], grad_k[b, s, group])
            grad_v[b, s, group] = fma(weight, grad[b, t, h], grad_v[b, s, group])
    return grad_q, grad_k, grad_v


# Cross-entropy.


def row_nats(logits, target):
    """Return the nats of the target given a row of logits (V,), and their gradient (V,)."""
    largest, numbers, total = exponentials(logits)
    nats = np.float32(log(total) - np.float64(logits[target] - largest))
    gradient = numbers / total
    gradient[target] = gradient[target] - 1
    return nats, gradient


def softmax_less_targets(logits, log_factors, targets):
    """Return the nats (N,) of targets (N,); replace logits (N, V) by their gradient.

    `log_factors` (W,) are added to the logits of the last W entries before.
    """
    nats = np.empty(len(logits), np.float32)
    start = logits.shape[1] - len(log_factors)
    for n, row in enumerate(logits):
        row[start:] = row[start:] + log_factors
        nats[n], row[:] = row_nats(row, targets[n])
    return nats


def token_nats(h, head, targets):
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C)."""
    logits = product(h, head.T)
    return softmax_less_targets(logits, np.zeros(0, np.float32), targets)


def mean_nats(nats):
    """Return the mean of nats (N,), added as multiples of NATS_UNIT, which are integers."""
    if not np.isfinite(nats).all():
        return np.float32(np.nan)
    multiples = np.rint(np.float64(nats) / NATS_UNIT)
    total = sum(int(multiple) for multiple in multiples)
    return np.float32(float(total) * (NATS_UNIT / len(nats)))


# Gradients and optimizers.


def square_sum(x):
    """Return the sum, float64, of the squares of x (N,)."""
    total = 0.0
    for first in range(0, len(x), NORM_NUMBERS):
        block = x[first : first + NORM_NUMBERS]
        total = total + float(row_dot(block, block))
    return total


def multiples(x, unit, largest):
    """Return x as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0."""
    numbers = np.rint(np.float64(x) / unit)
    numbers = np.where(np.isnan(numbers), 0.0, numbers)
    return np.clip(numbers, -largest, largest).astype(np.int64)


class AdamWScalars(NamedTuple):
    """The numbers of an update by AdamW, which are rounded to float32."""

    beta1: float
    beta2: float
    decay: float  # 1 - learning rate · weight decay
    size: float  # learning rate / (1 - beta1^step)
    root: float  # sqrt(1 - beta2^step)
    eps: float


def adamw(p, grad, mean, square, scalars):
    """Update both moments, and p to p · decay - size · mean / (sqrt(square) / root + eps); scalars: AdamWScalars."""
    beta1, beta2, decay, size, root, eps = np.array(scalars, np.float32)
    mean[:] = mean * beta1 + grad * (1 - beta1)
    square[:] = square * beta2 + grad * grad * (1 - beta2)
    p[:] = p * decay - mean * size / (np.sqrt(square) / root + eps)


def orthogonalize(updates, coefficients, num_steps):
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    a, b, c = np.array(coefficients, np.float32)
    result = np.empty_like(updates)
    for n, x in enumerate(updates):
        size = np.float32(math.sqrt(square_sum(x.ravel()))) + NEWTON_SCHULZ_EPS
        x = x / size
        for _ in range(num_steps):
            gram = product(x, x.T)
            square = product(gram, gram)
            x = product(square * c + gram * b, x) + x * a
        result[n] = x
    return result


def sum_rows_by_id(rows, ids, num_ids):
    """Return for each id (num_ids, C) the sum of its rows (N, C), in the order of ids (N,)."""
    total = np.zeros((num_ids, rows.shape[1]), np.float32)
    for row, number in zip(rows, ids, strict=True):
        total[number] = total[number] + row
    return total


def sum_bags(rows, ids, starts):
    """Return sums (K, C) of rows (R, C): row i adds the rows of ids[starts[i] : starts[i + 1]], in their order."""
    total = np.zeros((len(starts), rows.shape[1]), np.float32)
    ends = [*starts[1:], len(ids)]
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for number in ids[start:end]:
            total[i] = total[i] + rows[number]
    return total

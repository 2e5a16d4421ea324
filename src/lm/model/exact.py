"""Float32 arithmetic with the same bits on every processor, with every library, for any number of threads.

A sum of floating-point numbers depends on the order of its terms, and libraries choose the order by the processor. Here
no order matters: the operands of a product are rounded to multiples of a power of two, at most LEVELS of them for the
largest of BLOCK numbers. So each partial sum of a block is an integer below 2²⁴ times a power of two, which float32
holds exactly (the idea is Ozaki's: Ozaki et al. 2012, doi 10.1007/s11075-011-9478-1). Blocks are added one after the
other. All else is additions, multiplications, divisions and roots in a fixed order, which IEEE 754 rounds everywhere
alike, one torch call for each, so that no compiler joins two of them.

Products have two precisions. TRAINING makes them in float32, fast: the rounding changes a product two to three times as
much as bfloat16 does, and the gradients of a trained model up to five times as much. REPORTING makes them in float64,
with partial sums below 2⁵³ and 2²¹ levels: as accurate as float32, in about twice the time. Results that are reported,
such as the losses of a validation and the text of a sample, come from it; a model in eval mode computes with it.

A row of a batch, a position of a text, and a token after a cached past get the same bits whatever stands beside them.

Everything here is for float32 tensors on a CPU (`check_weights`). lm.model.kernels has the same functions in torch's
own arithmetic; a model chooses between the two by its `numerics`. tests/lm/train/test_operations.py holds the
operations of a step to this. Legend as in lm.model.gemma3.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lm.model.attention_masks import band_mask, dense_mask, visible


class Precision(NamedTuple):
    """The rounding of operands, and the sums of their products."""

    dtype: torch.dtype
    block: int  # terms of a partial sum
    levels: tuple[int, int]  # of the grids of both operands; their product times `block` is below 2²⁴, or at most 2⁵³
    weight_levels: tuple[int, int]  # for a softmax, whose small numbers count together: none is negative
    smallest_step: float  # of a grid; no product of two steps is a subnormal number
    magic: float  # numbers of the dtype near it are integers


TRAINING = Precision(torch.float32, 128, (361, 361), (1024, 127), 2.0**-58, 1.5 * 2**23)
REPORTING = Precision(torch.float64, 2048, (2**21, 2**21), (2**21, 2**21), 2.0**-120, 1.5 * 2**52)

MAGIC = TRAINING.magic
EXP2 = (0.001326473, 0.009671513, 0.055507337, 0.240222421, 0.693146978, 1.0)  # 2^f for |f| ≤ 1/2, relative error 1e-7
SMALLEST_LOG2 = -60.0  # exponents in `exp_`
CACHED_NUMBERS = 2**18  # numbers that stay in the cache during a chain of operations
SHORT_WINDOW = 16  # tokens up to which `ShortWindowFunction` is faster than products
CROSS_ENTROPY_ROWS = 512  # rows of logits at a time; the bits of the gradients depend on it


def check_weights(weight: Tensor) -> None:
    """Raise ValueError unless a model with this weight computes in float32 on a CPU, as everything here does."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        dtype = "autocast" if torch.is_autocast_enabled("cpu") else str(weight.dtype).removeprefix("torch.")
        found = f"numerics is exact, and the model computes in {dtype} on {weight.device.type}"
        raise ValueError(f"{found}, needed: float32 on cpu, or numerics fast")


# Products.


def grid(x: Tensor, dim: int, levels: int, precision: Precision = TRAINING) -> Tensor:
    """Return x (…, R, C) rounded to a grid of `levels` for each block of numbers along `dim` (-1 or -2)."""
    if x.stride(-1) != 1 and x.stride(-2) == 1:  # reductions of a transposed view take 20 times as long
        return grid(x.mT, -3 - dim, levels, precision).mT
    length, block = x.shape[dim], precision.block
    if length > block:
        if missing := -length % block:
            x = F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
        x = x.unflatten(dim, (-1, block))
    x = round_to(x, grid_step(x, dim, levels, precision), precision)
    return x.flatten(dim - 1, dim).narrow(dim, 0, length) if length > block else x


def grid_step(x: Tensor, dim: int, levels: int, precision: Precision = TRAINING) -> Tensor:
    """Return the power of two of which the largest number along `dim` is at most `levels`, and more than half of it."""
    largest = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    step = (largest * (2 / levels)).clamp_(min=precision.smallest_step)
    return step.view(torch.int32).bitwise_and_(0x7F800000).view(torch.float32)  # without its fraction


def round_to(x: Tensor, step: Tensor, precision: Precision = TRAINING) -> Tensor:
    """Return x, in the dtype of the precision, rounded to multiples of `step`, a power of two."""
    magic = step.to(precision.dtype) * precision.magic
    return (x + magic).sub_(magic)


def product(a: Tensor, b: Tensor, precision: Precision = TRAINING, levels: tuple[int, int] | None = None) -> Tensor:
    """Return a @ b (…, M, N) of a (…, M, K) and b (…, K, N); `levels` replace those of the precision."""
    of_a, of_b = levels or precision.levels
    return add_blocks(grid(a, -1, of_a, precision), grid(b, -2, of_b, precision), precision)


def weighted_sums(p: Tensor, v: Tensor, precision: Precision = TRAINING) -> Tensor:
    """Return p @ v (N, M, D) of weights p (N, M, S) and vectors v (N, S, D).

    Each vector has a grid of its own. So a vector of weight 0, such as one of the future, does not change the result.
    """
    of_weights, of_vectors = precision.weight_levels
    step = grid_step(v, -1, of_vectors, precision)  # (N, S, 1)
    whole = round_to(v, step, precision) / step  # integers
    return add_blocks(grid(p * step.mT, -1, of_weights, precision), whole, precision)


def add_blocks(a: Tensor, b: Tensor, precision: Precision = TRAINING) -> Tensor:
    """Return a @ b (…, M, N), float32, of a (…, M, K) and b (…, K, N) on their grids."""
    block = precision.block
    total = a[..., :block] @ b[..., :block, :]
    for k in range(block, a.shape[-1], block):
        total.add_(a[..., k : k + block] @ b[..., k : k + block, :])
    return total.add_(0.0).float()  # libraries differ in the sign of a zero


# Sums, roots, exponentials.


def sum_tree(x: Tensor, dim: int) -> Tensor:
    """Return the sum along `dim`, which keeps length 1: add the second half to the first until one number is left."""
    while (length := x.shape[dim]) > 1:
        half = (length + 1) // 2
        top = x.narrow(dim, 0, length - half) + x.narrow(dim, half, length - half)
        x = top if 2 * half == length else torch.cat([top, x.narrow(dim, half - 1, 1)], dim)
    return x


def sum_padded_tree(x: Tensor) -> Tensor:
    """Return the sum along the last axis, which keeps length 1; zeros after the last number do not change its bits.

    It is the `sum_tree` of x with zeros up to a power of two: each length gives the same pairs of numbers.
    """
    length = x.shape[-1]
    size = 1 << (length.bit_length() - 1)  # the largest power of two that is not above the length
    if size < length:
        top = x[..., : length - size] + x[..., size:]
        x = torch.cat([top, x[..., length - size : size]], -1)
    return sum_tree(x, -1)


def sum_in_order(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of new tensors of one shape, one after the other."""
    return functools.reduce(Tensor.add_, terms)


def norms(x: Tensor) -> Tensor:
    """Return the norm (N,) of each x[n]."""
    return sqrt(sum_tree((x * x).flatten(1), 1))[:, 0]


def sqrt(x: Tensor) -> Tensor:
    """Return the root of x; torch's own is MKL's, which differs between vendors, but its rsqrt is 1 / root rounded."""
    return x.rsqrt().reciprocal_()


def power(base: float, exponent: int) -> float:
    """Return base to a power of 0 or more by repeated squaring; the C library's pow differs between systems."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result *= base
        base *= base
        exponent //= 2
    return result


def cos_pi(x: float) -> float:
    """Return cos(π x) for x from 0 to 1, as the Taylor series of sin(π (1/2 - x)); the C library's cos differs too."""
    angle = math.pi * (0.5 - x)
    term = total = angle
    for n in range(3, 27, 2):
        term *= -angle * angle / (n * (n - 1))
        total += term
    return total


def exp_(x: Tensor) -> Tensor:
    """Replace x ≤ 0 by exp(x), at least 2^SMALLEST_LOG2: subnormal numbers are slow."""
    x.mul_(math.log2(math.e)).clamp_(min=SMALLEST_LOG2)
    whole = x + MAGIC  # its last bits are the integer next to x
    x.sub_(whole - MAGIC)
    power = x * EXP2[0]
    for coefficient in EXP2[1:-1]:
        power.add_(coefficient).mul_(x)
    power.add_(EXP2[-1])
    exponent = whole.view(torch.int32).bitwise_left_shift_(23)
    return x.copy_(power.view(torch.int32).add_(exponent).view(torch.float32))


def log(x: Tensor) -> Tensor:
    """Return log(x) of x ≥ 1: 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e.

    Below 1 the result is less precise, and for x ≤ 0 it is a wrong finite number; no sum of exponentials of numbers of
    which the largest is 0 is below 1.
    """
    mantissa, exponent = torch.frexp(x.double())
    z = (mantissa - 1) / (mantissa + 1)
    square, total = z * z, torch.zeros_like(z)
    for n in range(27, 0, -2):
        total = total * square + 1 / n
    return (total * z * 2 + exponent.double() * math.log(2)).float()


def softmax_(x: Tensor) -> Tensor:
    """Replace x (…, S) by its softmax over the last axis; -inf becomes 0, and at the end it changes no other number."""
    for rows in x.view(-1, x.shape[-1]).split(max(1, CACHED_NUMBERS // x.shape[-1])):
        seen = rows > -torch.inf
        exp_(rows.sub_(rows.amax(-1, keepdim=True)))
        rows.mul_(seen)
        rows.div_(sum_padded_tree(rows))
    return x


def softmax_gradient_(grad: Tensor, p: Tensor) -> Tensor:
    """Replace grad (…, S), the gradient of a softmax p (…, S), by that of its input."""
    for g, own in chunks(grad, p, row=p.shape[-1]):
        g, own = g.view(-1, p.shape[-1]), own.view(-1, p.shape[-1])
        g.sub_(sum_tree(g * own, -1)).mul_(own)
    return grad


def chunks(*tensors: Tensor, row: int = 1) -> Iterator[tuple[Tensor, ...]]:
    """Yield parts of about CACHED_NUMBERS numbers of contiguous tensors of one size, whole rows of `row` numbers."""
    size = max(1, CACHED_NUMBERS // row) * row
    return zip(*(t.view(-1).split(size) for t in tensors), strict=True)


# Linear layers, the gate of the MLP, the norm.


def linear(x: Tensor, weight: Tensor, training: bool = True) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I); without gradients unless in `training`."""
    if training:
        return LinearFunction.apply(x, weight)  # pyright: ignore[reportReturnType] - apply returns what forward does
    return multiply_rows(x.detach(), weight.detach(), REPORTING)


def multiply_rows(x: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I)."""
    return product(x.reshape(-1, x.shape[-1]), weight.mT, precision).reshape(*x.shape[:-1], -1)


class LinearFunction(Function):
    """Compute x W^T and both gradients by `product`."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return (…, O) for x (…, I) and weight (O, I)."""
        ctx.save_for_backward(x, weight)
        return multiply_rows(x, weight, TRAINING)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of weight."""
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_weight = product(rows.mT, x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
        return product(rows, weight).view(x.shape), grad_weight


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up for two tensors of one shape, with the approximation by tanh (arXiv 1606.08415)."""
    return GatedGELUFunction.apply(gate, up)  # pyright: ignore[reportReturnType]


GELU_SCALE, GELU_CUBIC = math.sqrt(2 / math.pi), 0.044715


class GatedGELUFunction(Function):
    """Compute x up / (1 + exp(-2 u)), u = s (x + c x³), of the gate x."""

    @staticmethod
    def forward(ctx, gate, up):
        """Return the product (…, F) of gelu(gate) and up, both (…, F)."""
        gate, up = gate.contiguous(), up.contiguous()
        half, out = torch.empty_like(gate), torch.empty_like(up)
        for x, h, u, o in chunks(gate, half, up, out):
            inner = (x * x).mul_(GELU_CUBIC).add_(1).mul_(x).mul_(2 * GELU_SCALE)
            small = exp_(-inner.abs())
            torch.div(torch.where(inner >= 0, 1.0, small), small + 1, out=h)
            torch.mul(x, h, out=o).mul_(u)
        ctx.save_for_backward(gate, up, half)
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of gate and up."""
        gate, up, half = ctx.saved_tensors
        # half = 1 / (1 + exp(-2 u)), so that its slope is 2 half (1 - half) times that of u.
        slope = (gate * gate).mul_(6 * GELU_SCALE * GELU_CUBIC).add_(2 * GELU_SCALE).mul_(gate)
        slope.mul_(1 - half).add_(1)
        grad = half * grad
        return slope.mul_(up).mul_(grad), grad.mul_(gate)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x r (1 + w), r = 1 / sqrt(mean(x²) + eps), for x (…, D) and weight (D,)."""
    return RMSNormFunction.apply(x, weight, eps)  # pyright: ignore[reportReturnType]


class RMSNormFunction(Function):
    """Compute `rms_norm` and its gradients with sums in a fixed order."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return (…, D) for x (…, D) and weight (D,)."""
        mean_square = sum_tree(x * x, -1).div_(x.shape[-1])
        r = torch.rsqrt(mean_square + eps)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(1 + weight)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D) and of weight (D,)."""
        x, weight, r = ctx.saved_tensors
        unit = x * r
        gain = 1 + weight
        terms = grad * unit
        grad_weight = sum_tree(terms.flatten(0, -2), 0)[0]
        along = sum_tree(terms * gain, -1).div_(x.shape[-1])  # the component along x, which the norm removes
        return (grad * gain).sub_(unit.mul_(along)).mul_(r), grad_weight, None


# Attention.


def is_short(window: int, head_dim: int) -> bool:
    """Return True if `attend` computes a window of this length by `ShortWindowFunction`: always, whatever the batch."""
    return window <= SHORT_WINDOW and head_dim <= TRAINING.block


def document_mask(documents: Tensor, window: int, num_heads: int, head_dim: int) -> Tensor:
    """Return the mask of `attend` that keeps each token of documents (B, T) to its own document."""
    if is_short(window, head_dim):
        return band_mask(documents, window)
    return dense_mask(documents, window, torch.float32, num_heads)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: Tensor | None = None, training: bool = True
) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    `mask` of `document_mask` replaces the window alone. The bits of a position do not depend on T, nor on positions
    after it. Unless the window is short, they need all S positions from the first one of the text on: sums over
    positions are made in blocks that begin there. The result has no gradients unless in `training`.
    """
    if not training:
        q, k, v = q.detach(), k.detach(), v.detach()
    (B, H, T, D), (K, S) = q.shape, k.shape[1:3]
    if is_short(window, D):
        reach = T + window - 1
        if reach < S:
            k, v = k[:, :, S - reach :], v[:, :, S - reach :]
        if training:
            return ShortWindowFunction.apply(q, k, v, scale, window, mask)  # pyright: ignore[reportReturnType]
        missing = window - 1 - (k.shape[2] - T)
        queries, keys, values = pad_window(q, k, v, scale, missing)
        p = short_window_weights(queries, keys, window, missing, mask, REPORTING)
        return weigh_short_window(p, values)
    q, k, v = q.reshape(B * K, -1, D), k.reshape(B * K, S, D), v.reshape(B * K, S, D)  # q: (BK, H/K·T, D)
    if mask is None:
        bias = q.new_zeros(T, S).masked_fill_(~visible(T, S, window, q.device), -torch.inf).repeat(H // K, 1)
    else:
        bias = mask.expand(B, H, T, S).reshape(B * K, -1, S)
    if training:
        return AttentionFunction.apply(q, k, v, scale, bias).view(B, H, T, D)  # pyright: ignore
    return weighted_sums(attention_weights(q * scale, k, bias, REPORTING), v, REPORTING).view(B, H, T, D)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor, precision: Precision) -> Tensor:
    """Return softmax(q k^T + bias) (N, M, S) of q (N, M, D), k (N, S, D) and bias (M, S) or (N, M, S)."""
    return softmax_(product(q, k.mT, precision).add_(bias))


class AttentionFunction(Function):
    """Compute softmax(scale q k^T + bias) v and its gradients; the softmax (N, M, S) is kept."""

    @staticmethod
    def forward(ctx, q, k, v, scale, bias):
        """Return (N, M, D) for q (N, M, D), k, v (N, S, D) and bias (M, S) or (N, M, S)."""
        q = q * scale
        p = attention_weights(q, k, bias, TRAINING)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return weighted_sums(p, v)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v."""
        q, k, v, p = ctx.saved_tensors
        grad = grad.contiguous()
        # One copy of a whole batch is faster than views of its transposed matrices.
        grad_v = product(grad.mT.contiguous(), p).mT
        grad_scores = softmax_gradient_(product(grad, v.mT), p)
        grad_k = product(q.mT.contiguous(), grad_scores).mT
        return product(grad_scores, k).mul_(ctx.scale), grad_k, grad_v, None, None


def pad_window(q: Tensor, k: Tensor, v: Tensor, scale: float, missing: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scaled queries (B, K, H/K, T, D), and keys and values (B, K, 1, window - 1 + T, D).

    Zeros stand for the `missing` positions before the first one, which the first windows reach.
    """
    queries = q.unflatten(1, (k.shape[1], -1)) * scale
    keys, values = (F.pad(x, (0, 0, missing, 0))[:, :, None] for x in (k, v))
    return queries, keys, values


def short_window_weights(
    q: Tensor, k: Tensor, window: int, missing: int, band: Tensor | None, precision: Precision
) -> Tensor:
    """Return the weight (window, B, K, H/K, T, 1) that each position gives to those of its window.

    q and k are those of `pad_window`; `band` is that of `attend`. Products of numbers on a grid are exact as sums of a
    row too.
    """
    T = q.shape[3]
    q, k = grid(q, -1, precision.levels[0], precision), grid(k, -1, precision.levels[1], precision)
    scores = torch.stack([(q * k[..., j : j + T, :]).sum(-1, keepdim=True) for j in range(window)]).float()
    for j in range(missing):  # nothing comes before the first token
        scores[j, ..., : missing - j, :] = -torch.inf
    if band is not None:
        scores.masked_fill_(~band[:, :, None, None, :, None], -torch.inf)
    seen = scores > -torch.inf
    p = exp_(scores.sub_(scores.amax(0)))
    p.mul_(seen)
    return p.div_(sum_in_order(p.clone().unbind()))


def weigh_short_window(p: Tensor, v: Tensor) -> Tensor:
    """Return the sum (B, H, T, D) of the values v of `pad_window` with the weights p of `short_window_weights`."""
    T = p.shape[4]
    return sum_in_order(p[j] * v[..., j : j + T, :] for j in range(len(p))).flatten(1, 2)


class ShortWindowFunction(Function):
    """Compute `attend` for a window of few tokens and its gradients, without the scores outside of the window."""

    @staticmethod
    def forward(ctx, q, k, v, scale, window, band):
        """Return (B, H, T, D) for q (B, H, T, D) and k, v (B, K, S, D), T ≤ S < T + window and D at most BLOCK.

        `band` of `band_mask` (window, B, T), T = S, hides other documents; it is None if there are none.
        """
        missing = window - 1 - (k.shape[2] - q.shape[2])
        q, k, v = pad_window(q, k, v, scale, missing)
        p = short_window_weights(q, k, window, missing, band, TRAINING)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale, ctx.missing = scale, missing
        return weigh_short_window(p, v)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v."""
        q, k, v, p = ctx.saved_tensors
        grad, T = grad.reshape(q.shape), q.shape[3]
        grad_grid, v_grid = grid(grad, -1, TRAINING.levels[0]), grid(v, -1, TRAINING.levels[1])
        grad_p = torch.stack([(grad_grid * v_grid[..., j : j + T, :]).sum(-1, keepdim=True) for j in range(len(p))])
        grad_scores = p * (grad_p - sum_in_order((p * grad_p).unbind()))
        grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
        for j in range(len(p)):
            grad_k[..., j : j + T, :] += sum_tree(grad_scores[j] * q, 2)
            grad_v[..., j : j + T, :] += sum_tree(p[j] * grad, 2)
        grad_q = sum_in_order(grad_scores[j] * k[..., j : j + T, :] for j in range(len(p))).mul_(ctx.scale)
        first = ctx.missing
        return grad_q.flatten(1, 2), grad_k[:, :, 0, first:], grad_v[:, :, 0, first:], None, None, None


# Cross-entropy.


def cross_entropy(h: Tensor, head: Tensor, targets: Tensor, rows: int, log_factors: Tensor | None = None) -> Tensor:
    """Return the mean nats of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    `log_factors` (W,), if any, are added to the logits of the last W entries.
    """
    rows = min(rows, CROSS_ENTROPY_ROWS)
    return CrossEntropyFunction.apply(h, head, targets, rows, log_factors)  # pyright: ignore[reportReturnType]


class CrossEntropyFunction(Function):
    """Compute `cross_entropy`; the forward pass computes the gradients too, so that at most (rows, V) logits exist."""

    @staticmethod
    def forward(ctx, h, head, targets, rows, log_factors):
        """Return the mean nats; save both gradients, not yet divided by N."""
        loss, grad_h, grad_head = h.new_zeros(()), torch.empty_like(h), None
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            logits = product(h[chunk], head.T)  # (rows, V)
            if log_factors is not None:
                logits[:, len(head) - len(log_factors) :] += log_factors
            loss += nats_and_softmax_(logits, targets[chunk])
            # The gradient of the logits is the softmax, less 1 at the targets: beside the 1, a grid would lose the
            # small numbers, so it is subtracted afterwards.
            grad_h[chunk] = product(logits, head, levels=TRAINING.weight_levels)
            grad_h[chunk] -= head[targets[chunk]]
            grad_chunk = product(logits.T, h[chunk], levels=TRAINING.weight_levels)  # (V, C)
            grad_chunk.index_add_(0, targets[chunk], -h[chunk])
            grad_head = grad_chunk if grad_head is None else grad_head.add_(grad_chunk)
        ctx.save_for_backward(grad_h, grad_head)
        return loss / len(h)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None, None


def token_nats(h: Tensor, head: Tensor, targets: Tensor, rows: int) -> Tensor:
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C), for at most `rows` of N at a time.

    They are reported, and have no gradients.
    """
    of_h, of_head = REPORTING.levels
    columns = grid(head.detach().T, -2, of_head, REPORTING)  # once for all rows
    terms = []
    for some, target in zip(h.detach().split(rows), targets.split(rows), strict=True):
        logits = add_blocks(grid(some, -1, of_h, REPORTING), columns, REPORTING)
        terms += [exponentials_(block, target) for block, target in blocks_of_rows(logits, target)]
    return nats(terms)


def nats_and_softmax_(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of targets (N,) in all, and replace logits (N, V) by their softmax."""
    terms = []
    for block, target in blocks_of_rows(logits, targets):
        distance, total = exponentials_(block, target)
        block.div_(total)
        terms.append((distance, total))
    return sum_tree(nats(terms), 0)[0]


def blocks_of_rows(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (N, V) and targets (N, 1) of some rows at a time."""
    rows = max(1, CACHED_NUMBERS // logits.shape[1])
    return zip(logits.split(rows), targets[:, None].split(rows), strict=True)


def exponentials_(block: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Replace logits (N, V) by exp(logit - largest); return logit - largest of targets (N, 1), and the sums (N, 1)."""
    block.sub_(block.amax(-1, keepdim=True))
    distance = block.gather(1, target)
    return distance, sum_tree(exp_(block), -1)


def nats(terms: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the nats (N,) of all targets, given what `exponentials_` returned for some rows each."""
    distances, totals = (torch.cat(parts)[:, 0] for parts in zip(*terms, strict=True))
    return log(totals) - distances

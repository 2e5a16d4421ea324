"""Float32 arithmetic with the same bits on every processor, for any number of threads, in torch's terms.

A sum of floating-point numbers depends on the order of its terms, and libraries choose the order by the processor. The
loops of lm.exact.cpu, which numba compiles, define it. All else is operations that IEEE 754 rounds everywhere alike,
one torch call for each, so that no compiler joins two of them.

A row of a batch, a position of a text, and a token after a cached past get the same bits whatever stands beside them.

Everything here is for float32 tensors on a CPU (`check_weights`). lm.model.kernels has the same functions in torch's
own arithmetic; a model chooses between the two by its `numerics`. tests/lm/train/test_operations.py holds the
operations of a step to this. Legend as in lm.model.gemma3.
"""

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from lm.exact import cpu as loops
from lm.exact.threads import get_num_threads

SHORT_WINDOW = 16  # tokens up to which attention does without products
PART_WORK = 2**18  # operations that are worth a thread
VECTOR_WORK = 64  # multiplications and additions of a product that take as long as one simple operation
CROSS_ENTROPY_ROWS = 512  # rows of logits at a time; the bits of the gradients depend on it


def check_weights(weight: Tensor) -> None:
    """Raise ValueError unless a model with this weight computes in float32 on a CPU, as everything here does."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        dtype = "autocast" if torch.is_autocast_enabled("cpu") else str(weight.dtype).removeprefix("torch.")
        found = f"numerics is exact, and the model computes in {dtype} on {weight.device.type}"
        raise ValueError(f"{found}; it must compute in float32 on cpu, or numerics must be fast")


# Threads and arrays.


@functools.cache
def pool() -> ThreadPoolExecutor:
    """Return the threads that compute parts of a loop beside the calling one."""
    return ThreadPoolExecutor(os.cpu_count() or 1)


def run(loop: Callable, *arguments, work: int) -> None:
    """Call a loop of lm.exact.cpu in parts, at most one for each thread; arguments are tensors and numbers.

    `work` is about the number of simple operations. To wake a thread takes as long as PART_WORK of them.
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


# Products.


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a @ b (M, N) of a (M, K) and b (K, N), added to `out` (M, N) if it is given."""
    if out is None:
        return multiply_packed(a, pack(b), b.new_empty(len(a), b.shape[1]))
    return multiply_packed(a, pack(b), out, adds=True)


def pack(b: Tensor) -> np.ndarray:
    """Return b (K, N) in the order in which the loops read it, which serves many products."""
    packed = loops.empty_panels(*b.shape)
    run(loops.pack_parts, *stored(b), packed, work=b.numel())
    return packed


def multiply_packed(a: Tensor, packed: np.ndarray, out: Tensor, adds: bool = False) -> Tensor:
    """Write a @ b to `out` (M, N), contiguous, or add it, and return it; a is (M, K), `packed` is b (K, N) packed."""
    num_products = out.numel() * a.shape[1]
    run(loops.product, *stored(a), packed, out, adds, work=num_products // VECTOR_WORK)
    return out


def stored(x: Tensor) -> tuple[Tensor, bool]:
    """Return a contiguous matrix, and whether it is the transpose of x."""
    if x.mT.is_contiguous() and not x.is_contiguous():
        return x.mT, True
    return x.contiguous(), False


# Numbers.


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the norm of all numbers together."""
    flat = [x.reshape(-1).contiguous() for x in tensors]
    return math.sqrt(math.fsum(loops.square_sum(array(x)) for x in flat))


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0."""
    result = torch.empty(x.shape, dtype=torch.int64)
    run(loops.multiples, x.contiguous().view(-1), unit, largest, result.view(-1), work=x.numel())
    return result


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


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    p = x.detach().clone()
    loops.softmax_(p.numpy())
    return p.masked_fill_(x == -torch.inf, 0)


# Linear layers, the gate of the MLP, the norm.


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I)."""
    return LinearFunction.apply(x, weight)  # pyright: ignore[reportReturnType] - apply returns what forward does


class LinearFunction(Function):
    """Compute x W^T and both gradients."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return (…, O) for x (…, I) and weight (O, I)."""
        ctx.save_for_backward(x, weight)
        return product(rows_of(x), weight.mT).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of weight."""
        x, weight = ctx.saved_tensors
        grad = rows_of(grad)
        grad_weight = product(grad.mT, rows_of(x)) if ctx.needs_input_grad[1] else None
        return product(grad, weight).view(x.shape), grad_weight


def rows_of(x: Tensor) -> Tensor:
    """Return the rows (N, C) of x (…, C), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up for two tensors of one shape, with the approximation by tanh (arXiv 1606.08415)."""
    return GatedGELUFunction.apply(gate, up)  # pyright: ignore[reportReturnType]


class GatedGELUFunction(Function):
    """Compute x up / (1 + exp(-2 u)), u = s (x + c x³), of the gate x."""

    @staticmethod
    def forward(ctx, gate, up):
        """Return the product (…, F) of gelu(gate) and up, both (…, F)."""
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(up, memory_format=torch.contiguous_format)
        run(loops.gated_gelu, rows_of(gate), rows_of(up), rows_of(out), work=2 * out.numel())
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of gate and up."""
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (gate, up))
        gradients = rows_of(grad_gate), rows_of(grad_up)
        run(loops.gated_gelu_gradient, rows_of(grad), rows_of(gate), rows_of(up), *gradients, work=3 * grad.numel())
        return grad_gate, grad_up


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x r (1 + w), r = 1 / sqrt(mean(x²) + eps), for x (…, D) and weight (D,)."""
    return RMSNormFunction.apply(x, weight, eps)  # pyright: ignore[reportReturnType]


class RMSNormFunction(Function):
    """Compute `rms_norm` and its gradients."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return (…, D) for x (…, D) and weight (D,)."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        r = x.new_empty(x.shape[:-1].numel())
        run(loops.rms_norm, rows_of(x), weight, np.float32(eps), rows_of(out), r, work=x.numel())
        ctx.save_for_backward(x, weight, r)
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D) and of weight (D,)."""
        x, weight, r = ctx.saved_tensors
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        parts = x.new_empty(math.ceil(len(r) / loops.SUM_ROWS), len(weight))  # of the gradient of weight
        run(loops.rms_norm_gradient, rows_of(grad), rows_of(x), weight, r, rows_of(grad_x), parts, work=3 * x.numel())
        grad_weight = torch.empty_like(weight)
        loops.add_rows(array(parts), array(grad_weight))
        return grad_x, grad_weight, None


# Attention.


def is_short(window: int) -> bool:
    """Return True if `attend` computes a window of this length without products: always, whatever the batch."""
    return window <= SHORT_WINDOW


def first_seen(documents: Tensor, window: int) -> Tensor:
    """Return the first position (B, T) int32 that each token sees, of its window and of its own document (B, T)."""
    B, T = documents.shape
    position = torch.arange(T).expand(B, T)
    begins = torch.cat([torch.ones(B, 1, dtype=torch.bool), documents[:, 1:] != documents[:, :-1]], 1)
    document_begin = torch.where(begins, position, 0).cummax(1).values
    return torch.maximum(document_begin, position - (window - 1)).int()


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, first: Tensor | None = None) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    `first` of `first_seen` replaces the window alone. The bits of a position do not depend on T, nor on positions
    after it. Unless the window is short, they need all S positions from the first one of the text on: sums over
    positions are made in blocks that begin there. There are gradients if T is S.
    """
    (B, _, T, _), S = q.shape, k.shape[2]
    if first is None:
        position = torch.arange(S - T, S, dtype=torch.int32)
        first = (position - (window - 1)).clamp_(min=0).expand(B, T)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q * scale, k, v))
    out: Tensor = AttentionFunction.apply(q, k, v, first.contiguous(), window)  # pyright: ignore[reportAssignmentType]
    return out.transpose(1, 2)


class AttentionFunction(Function):
    """Compute softmax(q k^T) v over what each position sees, and its gradients; the softmax is kept."""

    @staticmethod
    def forward(ctx, q, k, v, first, window):
        """Return (B, T, H, D) for q (B, T, H, D), k, v (B, S, K, D), and the first position (B, T) that each sees."""
        (B, T, H, _), S = q.shape, k.shape[1]
        ctx.is_short = is_short(window)
        out = torch.empty_like(q)
        p = q.new_empty((B, T, H, min(window, S)) if ctx.is_short else (B, H, T, S))
        run(loops.short_attention if ctx.is_short else loops.attention, q, k, v, first, p, out, work=8 * p.numel())
        ctx.save_for_backward(q, k, v, first, p)
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v, all of equally many positions."""
        q, k, v, first, p = ctx.saved_tensors
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        loop = loops.short_attention_gradient if ctx.is_short else loops.attention_gradient
        run(loop, grad.contiguous(), q, k, v, first, p, *gradients, work=16 * p.numel())
        return *gradients, None, None


# Cross-entropy.


def cross_entropy(h: Tensor, head: Tensor, targets: Tensor, rows: int, log_factors: Tensor | None = None) -> Tensor:
    """Return the mean nats of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    `log_factors` (W,), if any, are added to the logits of the last W entries.
    """
    rows = min(rows, CROSS_ENTROPY_ROWS)
    log_factors = h.new_empty(0) if log_factors is None else log_factors
    return CrossEntropyFunction.apply(h, head, targets, rows, log_factors)  # pyright: ignore[reportReturnType]


class CrossEntropyFunction(Function):
    """Compute `cross_entropy`; the forward pass computes the gradients too, so that at most (rows, V) logits exist."""

    @staticmethod
    def forward(ctx, h, head, targets, rows, log_factors):
        """Return the mean nats; save both gradients, not yet divided by N."""
        nats = h.new_empty(len(h))
        grad_h, grad_head = torch.empty_like(h), None
        columns, packed_head = pack(head.mT), pack(head)
        space = h.new_empty(min(rows, len(h)), len(head))
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            logits = multiply_packed(h[chunk], columns, space[: len(h[chunk])])  # (rows, V)
            run(loops.softmax_less_targets, logits, log_factors, targets[chunk], nats[chunk], work=2 * logits.numel())
            multiply_packed(logits, packed_head, grad_h[chunk])
            grad_head = product(logits.mT, h[chunk], grad_head)
        ctx.save_for_backward(grad_h, grad_head)
        return h.new_tensor(math.fsum(nats.tolist()) / len(h))

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None, None


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,), without gradients, of targets (N,) given h (N, C) and the head (V, C).

    For each thread the logits of loops.LOGIT_ROWS of N exist at a time.
    """
    nats = h.new_empty(len(h))
    run(loops.token_nats, rows_of(h), pack(head.detach().mT), targets, nats, len(head), work=4 * len(h) * len(head))
    return nats


# Optimizers.


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    result = updates.contiguous().clone()
    run(loops.orthogonalize, result, num_steps, *map(np.float32, coefficients), work=8 * num_steps * result.numel())
    return result


def update_adamw(
    p: Tensor,
    grad: Tensor,
    moments: tuple[Tensor, Tensor],
    betas: tuple[float, float],
    decay: float,
    size: float,
    root: float,
    eps: float,
) -> None:
    """Update both moments, and p to p · decay - size · first / (sqrt(second) / root + eps); all are contiguous."""
    arrays = [x.view(-1) for x in (p, grad.contiguous(), *moments)]
    run(loops.adamw, *arrays, *map(np.float32, (*betas, decay, size, root, eps)), work=2 * p.numel())

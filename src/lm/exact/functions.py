"""Float32 arithmetic with the same bits on every processor and NVIDIA GPU, for any number of threads, in torch's terms.

A sum of floating-point numbers depends on the order of its terms, and libraries choose the order by the processor.
lm.exact.order defines the order here, and lm.exact.cpu and lm.exact.gpu compute in it. IEEE 754 rounds all other
operations alike everywhere; each is a separate torch call, so that no compiler joins two of them.

A row of a batch, a position of a text, and a token after a cached past get the same bits whatever stands beside them.

lm.model.kernels has the same functions in torch's own arithmetic. tests/lm/train/test_operations.py checks the
operations of a step. See lm.model.gemma3 for the legend.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import Function

from lm.core.errors import EnvironmentFailure
from lm.exact.cpu import kernels as cpu
from lm.exact.order import (
    GRADIENT_UNIT,
    LARGEST_GRADIENT,
    NATS_UNIT,
    SHORT_WINDOW,
    TERMS,
    AdamWScalars,
)


def kernels_of(x: Tensor) -> ModuleType:
    """Return the module that computes on the device of x (`kernels_on`)."""
    return kernels_on(x.device.type)


def kernels_on(device_type: str) -> ModuleType:
    """Return lm.exact.gpu.kernels for "cuda", else lm.exact.cpu.kernels.

    Both have the same functions and give the same bits. Raise EnvironmentFailure if Triton is missing, which only
    torch's CUDA builds contain.
    """
    if device_type != "cuda":
        return cpu
    try:
        from lm.exact.gpu import kernels as gpu
    except ModuleNotFoundError as error:
        problem = f"train.numerics is exact, which needs the package {error.name} on a GPU"
        raise EnvironmentFailure(f"{problem}; install it, or set device in runtime.yaml to cpu") from None
    return gpu


def check_weights(weight: Tensor) -> None:
    """Raise ValueError unless a model with this weight computes in float32 on a CPU or an NVIDIA GPU."""
    device = weight.device.type
    has_autocast = torch.is_autocast_enabled(device) if device in ("cpu", "cuda") else False
    if device not in ("cpu", "cuda") or weight.dtype != torch.float32 or has_autocast:
        dtype = "autocast" if has_autocast else str(weight.dtype).removeprefix("torch.")
        found = f"numerics is exact, and the model computes in {dtype} on {device}"
        raise ValueError(f"{found}; it must compute in float32 on cpu or cuda, or numerics must be fast")


# Products.


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a @ b (M, N) of a (M, K) and b (K, N), added to `out` (M, N) if it is given."""
    kernels = kernels_of(a)
    packed = kernels.pack(b)
    if out is not None:
        return kernels.multiply(a, packed, out, adds=True)
    new = b.new_empty(len(a), b.shape[1])
    return kernels.multiply(a, packed, new)


# Numbers.


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the norm of all numbers of the tensors together."""
    tensors = list(tensors)
    square_sums = kernels_of(tensors[0]).square_sums(tensors)
    return math.sqrt(math.fsum(square_sums))


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of x (V,); -inf becomes 0."""
    return kernels_of(x).softmax(x.detach())


# Linear layers, the gate of the MLP, the norm.


@contextlib.contextmanager
def keep_packed(weights: Iterable[Tensor]) -> Iterator[None]:
    """Pack each of the weights (O, I) once for all products of `linear` inside, instead of once for each product.

    A weight that changes meanwhile is again packed for each product.
    """
    weights = [weight for weight in weights if not weight.is_inference()]  # those do not count their changes
    for weight in weights:
        packed = kernels_of(weight).pack(weight.detach().mT)
        weight.packed = weight._version, packed  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for weight in weights:
            vars(weight).pop("packed", None)  # another call for this weight may have ended before


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I)."""
    return LinearFunction.apply(x, weight)  # pyright: ignore[reportReturnType] - apply returns what forward does


class LinearFunction(Function):
    """Compute x W^T and both gradients."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return (…, O) for x (…, I) and weight (O, I)."""
        ctx.save_for_backward(x, weight)
        rows = rows_of(x)
        kernels = kernels_of(x)
        version, packed = getattr(weight, "packed", (None, None))
        if packed is None or version != weight._version:
            packed = kernels.pack(weight.mT)
        out = kernels.multiply(rows, packed, x.new_empty(len(rows), len(weight)))
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of weight."""
        x, weight = ctx.saved_tensors
        grad = rows_of(grad)
        grad_weight = product(grad.mT, rows_of(x)) if ctx.needs_input_grad[1] else None
        grad_x = product(grad, weight)
        return grad_x.view(x.shape), grad_weight


def rows_of(x: Tensor) -> Tensor:
    """Return the rows (N, C) of x (…, C), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (…, F), with the approximation of gelu by tanh (arXiv 1606.08415)."""
    return GatedGELUFunction.apply(gate, up)  # pyright: ignore[reportReturnType]


class GatedGELUFunction(Function):
    """Compute x up / (1 + exp(-2 u)), u = s (x + c x³), of the gate x."""

    @staticmethod
    def forward(ctx, gate, up):
        """Return the product (…, F) of gelu(gate) and up, both (…, F)."""
        ctx.save_for_backward(gate, up)
        out = kernels_of(gate).gated_gelu(rows_of(gate), rows_of(up))
        return out.view(gate.shape)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of gate and up."""
        gate, up = ctx.saved_tensors
        kernels = kernels_of(gate)
        grad_gate, grad_up = kernels.gated_gelu_gradient(rows_of(grad), rows_of(gate), rows_of(up))
        return grad_gate.view(gate.shape), grad_up.view(gate.shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x r (1 + w), r = 1 / sqrt(mean(x²) + eps), for x (…, D) and weight (D,)."""
    return RMSNormFunction.apply(x, weight, eps)  # pyright: ignore[reportReturnType]


class RMSNormFunction(Function):
    """Compute `rms_norm` and its gradients."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return (…, D) for x (…, D) and weight (D,)."""
        out, r = kernels_of(x).rms_norm(rows_of(x), weight, eps)
        ctx.save_for_backward(x, weight, r)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D) and of weight (D,)."""
        x, weight, r = ctx.saved_tensors
        grad_x, grad_weight = kernels_of(x).rms_norm_gradient(rows_of(grad), rows_of(x), weight, r)
        return grad_x.view(x.shape), grad_weight, None


# Embeddings.


def embedding(ids: Tensor, table: Tensor, scale: float) -> Tensor:
    """Return the rows (…, C) of the table (V, C) for ids (…) int64, times `scale`."""
    rows: Tensor = EmbeddingFunction.apply(ids, table)  # pyright: ignore[reportAssignmentType]
    return rows * torch.tensor(scale, dtype=table.dtype)  # rounded as published


class EmbeddingFunction(Function):
    """Look rows up; the gradient of a row of the table is the sum of the gradients of its uses, in their order."""

    @staticmethod
    def forward(ctx, ids, table):
        """Return (…, C) for ids (…) and table (V, C)."""
        ctx.save_for_backward(ids)
        ctx.num_entries = len(table)
        return torch.nn.functional.embedding(ids, table)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the table (V, C)."""
        (ids,) = ctx.saved_tensors
        uses = ids.flatten()
        return None, sum_rows_by_id(rows_of(grad), uses, ctx.num_entries)


def sum_rows_by_id(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    """Return for each id (num_ids, C) the sum of its rows (N, C), in the order of ids (N,) int64."""
    sorted_ids, row_numbers = ids.sort(stable=True)
    all_ids = torch.arange(num_ids, device=ids.device)
    starts = torch.searchsorted(sorted_ids, all_ids)
    return sum_bags(rows, row_numbers, starts)


# Attention.


def is_short(window: int) -> bool:
    """Return True if `attend` computes a window of this length without products: always, whatever the batch."""
    return window <= SHORT_WINDOW


def cached_window(window: int, max_seq_len: int) -> int:
    """Return how many positions a cache keeps: sums over positions begin at the first one, unless a window is short."""
    return window if is_short(window) else max_seq_len


def mask(documents: Tensor, window: int, num_heads: int, weight: Tensor) -> Tensor:
    """Return the first position (B, T) int32 that each token sees, inside its window and its document."""
    B, T = documents.shape
    position = torch.arange(T, device=documents.device).expand(B, T)
    first_begins = torch.ones(B, 1, dtype=torch.bool, device=documents.device)
    others_begin = documents[:, 1:] != documents[:, :-1]
    begins = torch.cat([first_begins, others_begin], 1)
    document_begin = torch.where(begins, position, 0).cummax(1).values
    window_begin = position - (window - 1)
    return torch.maximum(document_begin, window_begin).int()


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, first: Tensor | None = None) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    `first` of `mask` replaces the window alone. The bits of a position do not depend on T, nor on positions after it.
    Unless the window is short, k and v must hold all positions from the first one of the text on, because sums over
    positions are made in chains that begin there. There are gradients only if T is S.
    """
    B, _, T, _ = q.shape
    S = k.shape[2]
    if first is None:
        position = torch.arange(S - T, S, dtype=torch.int32, device=q.device)
        first = (position - (window - 1)).clamp_(min=0).expand(B, T)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q * scale, k, v))
    out: Tensor = AttentionFunction.apply(q, k, v, first.contiguous(), window)  # pyright: ignore[reportAssignmentType]
    return out.transpose(1, 2)


class AttentionFunction(Function):
    """Compute softmax(q k^T) v over what each position sees, and its gradients; the softmax is kept."""

    @staticmethod
    def forward(ctx, q, k, v, first, window):
        """Return (B, T, H, D) for q (B, T, H, D), k, v (B, S, K, D), and the first position (B, T) that each sees."""
        ctx.is_short = is_short(window)
        if ctx.is_short:
            out, p = kernels_of(q).short_attention(q, k, v, first, window)
        else:
            out, p = kernels_of(q).attention(q, k, v, first)
        ctx.save_for_backward(q, k, v, first, p)
        return out

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v, all of equally many positions."""
        kernels = kernels_of(grad)
        gradient = kernels.short_attention_gradient if ctx.is_short else kernels.attention_gradient
        grad_q, grad_k, grad_v = gradient(grad.contiguous(), *ctx.saved_tensors)
        return grad_q, grad_k, grad_v, None, None


# Cross-entropy.


def cross_entropy(h: Tensor, head: Tensor, targets: Tensor, rows: int, log_factors: Tensor | None = None) -> Tensor:
    """Return the mean nats of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    The number of rows is rounded down to a multiple of TERMS, but not to 0, so that it decides no bit. `log_factors`
    (W,), if any, are added to the logits of the last W entries.
    """
    most_rows = min(rows, kernels_of(h).loss_rows(len(head)))
    whole_chains = max(1, most_rows // TERMS) * TERMS
    log_factors = h.new_empty(0) if log_factors is None else log_factors
    return CrossEntropyFunction.apply(h, head, targets, whole_chains, log_factors)  # pyright: ignore[reportReturnType]


class CrossEntropyFunction(Function):
    """Compute `cross_entropy`; the forward pass computes the gradients too, so that at most (rows, V) logits exist."""

    @staticmethod
    def forward(ctx, h, head, targets, rows, log_factors):
        """Return the mean nats; save both gradients, not yet divided by N."""
        kernels = kernels_of(h)
        # The head is an operand of two products of each chunk.
        columns = kernels.pack(head.mT)
        packed_head = kernels.pack(head)

        space = kernels.empty_logits(h, min(rows, len(h)), len(head))
        grad_h = torch.empty_like(h)
        grad_head = None
        nats = []
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            some = h[chunk]
            logits = kernels.multiply(some, columns, space[: len(some)])  # (rows, V)
            # The logits become their own gradient.
            nats.append(kernels.softmax_less_targets(logits, log_factors, targets[chunk]))
            kernels.multiply(logits, packed_head, grad_h[chunk])
            grad_head = product(logits.mT, some, grad_head)
        ctx.save_for_backward(grad_h, grad_head)
        return mean_nats(torch.cat(nats))

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / torch.full_like(grad, len(grad_h))  # a GPU multiplies by the reciprocal of a Python number
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None, None


def mean_nats(nats: Tensor) -> Tensor:
    """Return the mean of nats (N,), float32, added as integers; NaN if one of them is not finite."""
    multiples = (nats.double() * (1 / NATS_UNIT)).round().nan_to_num().long()
    mean = (multiples.sum().double() * (NATS_UNIT / len(nats))).float()
    return torch.where(nats.isfinite().all(), mean, torch.nan)


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,), without gradients, of targets (N,) given h (N, C) and the head (V, C).

    The number of logits at a time follows from the machine.
    """
    return kernels_of(h).token_nats(rows_of(h.detach()), head.detach(), targets)


# Gradients and optimizers.


def as_integers(gradient: Tensor) -> Tensor:
    """Return a gradient as multiples of GRADIENT_UNIT, int64."""
    return kernels_of(gradient).multiples(gradient, GRADIENT_UNIT, LARGEST_GRADIENT)


def sum_bags(rows: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Return sums (K, C) of rows (R, C): row i adds the rows of ids[starts[i] : starts[i + 1]], in their order."""
    return kernels_of(rows).sum_bags(rows.contiguous(), ids, starts)


def orthogonalize(updates: Tensor, coefficients: Sequence[float], num_steps: int) -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration."""
    return kernels_of(updates).orthogonalize(updates.contiguous(), coefficients, num_steps)


def update_adamw(p: Tensor, grad: Tensor, moments: tuple[Tensor, Tensor], scalars: AdamWScalars) -> None:
    """Update both moments, and p to p · decay - size · first / (sqrt(second) / root + eps); all are contiguous."""
    mean, square = moments
    kernels_of(p).adamw(p, grad.contiguous(), mean, square, scalars)

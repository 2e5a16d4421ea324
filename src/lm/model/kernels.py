"""Norm, attention and cross-entropy, which take most of a training step. Legend as in lm.model.gemma3.

Their gradients are written by hand where autograd is much slower on a CPU; tests compare them to those of plain torch.
"""

import functools
import math
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lm.model import exact
from lm.model.exact import LEVELS, WEIGHT_LEVELS, LinearFunction, is_exact, product


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `x`: that of autocast if it is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I)."""
    if is_exact(x, compute_dtype(x)):
        return LinearFunction.apply(x, weight)  # pyright: ignore[reportReturnType] - apply returns what forward does
    return F.linear(x, weight)


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up for two tensors of one shape, with the approximation by tanh (arXiv 1606.08415)."""
    if is_exact(gate, compute_dtype(gate)):
        return GatedGELUFunction.apply(gate, up)  # pyright: ignore[reportReturnType]
    return F.gelu(gate, approximate="tanh") * up


GELU_SCALE, GELU_CUBIC = (2 / math.pi) ** 0.5, 0.044715


class GatedGELUFunction(Function):
    """Compute x up / (1 + exp(-2 u)), u = s (x + c x³), of the gate x, by `exact.exp_`."""

    @staticmethod
    def forward(ctx, gate, up):
        """Return the product (…, F) of gelu(gate) and up, both (…, F)."""
        gate, up = gate.contiguous(), up.contiguous()
        half, out = torch.empty_like(gate), torch.empty_like(up)
        for x, h, u, o in exact.chunks(gate, half, up, out):
            inner = (x * x).mul_(GELU_CUBIC).add_(1).mul_(x).mul_(2 * GELU_SCALE)
            small = exact.exp_(-inner.abs())
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


class RMSNormFunction(Function):
    """Compute x r (1 + w), r = 1 / sqrt(mean(x²) + eps), in float32; the result has the compute dtype."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Normalize x (…, D) of any dtype with weight (D,); return (…, D) in the compute dtype."""
        wide = x.float()
        if is_exact(x, compute_dtype(x)):
            mean_square = exact.sum_tree(wide * wide, -1).div_(x.shape[-1])
        else:
            mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1]
        r = torch.rsqrt(mean_square + eps)
        ctx.save_for_backward(x, weight, r)
        return (wide * r).mul_(1 + weight.float()).to(compute_dtype(x))

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D), in its dtype, and of weight (D,), float32."""
        x, weight, r = ctx.saved_tensors
        grad, unit, gain = grad.float(), x.float() * r, 1 + weight.float()
        terms = grad * unit
        # `along` is the component along x, which the norm removes.
        if is_exact(x, compute_dtype(x)):
            grad_weight = exact.sum_tree(terms.flatten(0, -2), 0)[0]
            along = exact.sum_tree(terms * gain, -1).div_(x.shape[-1])
        else:
            grad_weight = terms.flatten(0, -2).sum(0)
            along = terms.mul_(gain).mean(-1, keepdim=True)
        return (grad * gain).sub_(unit.mul_(along)).mul_(r).to(x.dtype), grad_weight, None


def visible(T: int, S: int, window: int, device) -> Tensor:
    """Return the mask (T, S) bool: each of the last T of S positions sees itself and the window - 1 before it."""
    position = torch.arange(S, device=device)
    distance = position[S - T :, None] - position
    return (distance >= 0) & (distance < window)


def takes_products(q: Tensor, S: int) -> bool:
    """Return True if attention to S tokens is computed by plain products and a softmax: on a CPU.

    In float32 they are exact. In bfloat16 the backward pass of torch's fused kernel takes 2 to 5 times as
    long as these (torch 2.13).
    """
    dtype = compute_dtype(q)
    trains = torch.is_grad_enabled() and q.device.type == "cpu" and dtype == torch.bfloat16
    return is_exact(q, dtype) or (trains and S <= 512)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: Tensor | None = None) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    `mask` of lm.model.attention_masks replaces `window`: scores to add, (B, 1 or H, T, S).
    """
    (B, H, T, D), (K, S) = q.shape, k.shape[1:3]
    if takes_products(q, S):
        is_short = mask is None and T == S and window <= SHORT_WINDOW and D <= exact.BLOCK
        if is_short and is_exact(q, compute_dtype(q)):
            return ShortWindowFunction.apply(q, k, v, scale, window)  # pyright: ignore[reportReturnType]
        q, k, v = q.reshape(B * K, -1, D), k.reshape(B * K, S, D), v.reshape(B * K, S, D)  # q: (BK, H/K·T, D)
        if mask is None:
            bias = q.new_zeros(T, S).masked_fill_(~visible(T, S, window, q.device), -torch.inf).repeat(H // K, 1)
        else:
            bias = mask.expand(B, H, T, S).reshape(B * K, -1, S)
        return attend_by_products(q, k, v, scale, bias).view(B, H, T, D)
    if mask is None and window >= S and T in (1, S):
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, enable_gqa=H > K)
    if q.device.type != "cpu":  # the fused kernels of CUDA accept no mask if H > K
        K, k, v = H, k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    mask = visible(T, S, window, q.device) if mask is None else mask
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=H > K)


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor) -> Tensor:
    """Return softmax(scale q k^T + bias) v (N, M, D) for q (N, M, D), k, v (N, S, D) and bias (M, S) or (N, M, S)."""
    if not is_exact(q, q.dtype):
        return torch.baddbmm(bias, q, k.mT, alpha=scale).softmax(-1) @ v
    return AttentionFunction.apply(q, k, v, scale, bias)  # pyright: ignore[reportReturnType]


class AttentionFunction(Function):
    """Compute `attend_by_products` and its gradients exactly; the softmax (N, M, S) is kept."""

    @staticmethod
    def forward(ctx, q, k, v, scale, bias):
        """Return (N, M, D) for q (N, M, D), k, v (N, S, D) and bias (M, S) or (N, M, S)."""
        q = q * scale
        p = exact.softmax_(product(q, k.mT).add_(bias))
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return exact.weighted_sums(p, v)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v."""
        q, k, v, p = ctx.saved_tensors
        grad = grad.contiguous()
        # One copy of a whole batch is faster than views of its transposed matrices.
        grad_v = product(grad.mT.contiguous(), p).mT
        grad_scores = exact.softmax_gradient_(product(grad, v.mT), p)
        grad_k = product(q.mT.contiguous(), grad_scores).mT
        return product(grad_scores, k).mul_(ctx.scale), grad_k, grad_v, None, None


SHORT_WINDOW = 16  # tokens up to which `ShortWindowFunction` is faster than products


class ShortWindowFunction(Function):
    """Compute `attend` for a window of few tokens and its gradients, without the scores outside of the window.

    Products of numbers on a grid are exact as sums of a row too.
    """

    @staticmethod
    def forward(ctx, q, k, v, scale, window):
        """Return (B, H, T, D) for q (B, H, T, D) and k, v (B, K, T, D), D at most exact.BLOCK."""
        q = q.unflatten(1, (k.shape[1], -1)) * scale  # (B, K, H/K, T, D)
        k, v = (F.pad(x, (0, 0, window - 1, 0))[:, :, None] for x in (k, v))  # (B, K, 1, window - 1 + T, D)
        T, q_grid, k_grid = q.shape[3], exact.grid(q, -1, LEVELS[0]), exact.grid(k, -1, LEVELS[1])
        scores = torch.stack([(q_grid * k_grid[..., j : j + T, :]).sum(-1, keepdim=True) for j in range(window)])
        for j in range(window - 1):  # nothing comes before the first token
            scores[j, ..., : window - 1 - j, :] = -torch.inf
        visible, p = scores > -torch.inf, exact.exp_(scores.sub_(scores.amax(0)))  # (window, B, K, H/K, T, 1)
        p.mul_(visible)
        p.div_(sum_in_order(p.clone().unbind()))
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return sum_in_order(p[j] * v[..., j : j + T, :] for j in range(window)).flatten(1, 2)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of q, k and v."""
        q, k, v, p = ctx.saved_tensors
        grad, T = grad.reshape(q.shape), q.shape[3]
        grad_grid, v_grid = exact.grid(grad, -1, LEVELS[0]), exact.grid(v, -1, LEVELS[1])
        grad_p = torch.stack([(grad_grid * v_grid[..., j : j + T, :]).sum(-1, keepdim=True) for j in range(len(p))])
        grad_scores = p * (grad_p - sum_in_order((p * grad_p).unbind()))
        grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
        for j in range(len(p)):
            grad_k[..., j : j + T, :] += exact.sum_tree(grad_scores[j] * q, 2)
            grad_v[..., j : j + T, :] += exact.sum_tree(p[j] * grad, 2)
        grad_q = sum_in_order(grad_scores[j] * k[..., j : j + T, :] for j in range(len(p))).mul_(ctx.scale)
        first = len(p) - 1
        return grad_q.flatten(1, 2), grad_k[:, :, 0, first:], grad_v[:, :, 0, first:], None, None


def sum_in_order(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of new tensors of one shape, one after the other."""
    return functools.reduce(Tensor.add_, terms)


SOFTMAX_NUMBERS = 2**19  # logits at a time on a CPU: their softmax stays in the cache
EXACT_ROWS = 512  # rows of logits at a time, on which the bits of exact numerics depend


def cross_entropy(
    h: Tensor, head: Tensor, targets: Tensor, rows: int, jitter: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Return the mean nats, float32, of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    `jitter` (K,) and `weights` (V,) estimate them from about K entries of the vocabulary: `sample_entries`.
    """
    if jitter is None or weights is None or len(jitter) >= len(head):
        return CrossEntropyFunction.apply(h, head, targets, rows, None)  # pyright: ignore[reportReturnType]
    entries, targets, log_factors = sample_entries(targets, weights, jitter)
    sampled = head.index_select(0, entries)  # threads add the gradient of head[entries] in any order
    return CrossEntropyFunction.apply(h, sampled, targets, rows, log_factors)  # pyright: ignore[reportReturnType]


def sample_entries(targets: Tensor, weights: Tensor, jitter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Choose entries of the vocabulary for a softmax: all that are targets, and a sample of the others.

    targets: (N,) int64. weights: (V,) int64, positive. jitter: (K,) float64, uniform in [0, 1), on the CPU. Return the
    entries (S,) int64, the targets first; the positions of the targets among them (N,); and for each entry after the
    targets the logarithm of how many entries it stands for, float32. S is K, or more if more than half of K are
    targets. The other entries are laid on a line in the order of their ids, each as long as its weight. The line is cut
    into equal strata, and a point of each chooses the entry on which it falls. So the *sum* of exp(logit) over all
    entries is estimated without bias (importance sampling: Bengio and Senécal 2003; with the targets of a batch: Jean
    et al. 2015, arXiv 1412.2007). Its logarithm, the loss, is too low on average, and the gradient of entries that are
    seldom drawn too small; weights in proportion to the frequencies make both errors small (docs/experiments.md).
    """
    present, positions = targets.unique(return_inverse=True)
    absent_weights = weights.index_fill(0, present, 0)
    ends = absent_weights.cumsum(0)  # integers: the same on every device
    num_drawn = min(max(len(jitter) - len(present), len(jitter) // 2), len(weights) - len(present))
    length = int(ends[-1])
    stratum = length / max(1, num_drawn)
    points = ((torch.arange(num_drawn) + jitter[:num_drawn]) * stratum).long()  # on the CPU: GPUs may lack float64
    points.clamp_(max=max(0, length - 1))  # a jitter next to 1 is rounded up to it
    drawn = torch.searchsorted(ends, points.to(ends.device), right=True)
    log_factors = (stratum / weights[drawn].cpu().double()).log().float()
    return torch.cat([present, drawn]), positions, log_factors.to(ends.device)


class CrossEntropyFunction(Function):
    """Compute the mean nats of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    `log_factors` (W,), if any, are added to the logits of the last W entries.

    The forward pass computes the gradients too, so that at most (rows, V) logits are in memory.
    """

    @staticmethod
    def forward(ctx, h, head, targets, rows, log_factors):
        """Return the mean nats, float32; save both gradients, not yet divided by N."""
        loss, grad_h, grad_head = h.new_zeros(()), torch.empty_like(h), None
        dtype = compute_dtype(h)
        narrow_h, narrow_head = h.to(dtype), head.to(dtype)
        if is_exact(h, dtype):
            rows = min(rows, EXACT_ROWS)
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            logits = product(narrow_h[chunk], narrow_head.T)  # (rows, V)
            if log_factors is not None:
                # In the dtype of the logits: float32 would widen all of them for a while.
                logits[:, len(narrow_head) - len(log_factors) :] += log_factors.to(dtype)
            loss += nats_and_gradient_(logits, targets[chunk])
            grad_h[chunk] = product(logits, narrow_head, WEIGHT_LEVELS)
            grad_chunk = product(logits.T, narrow_h[chunk], WEIGHT_LEVELS)  # (V, C)
            if is_exact(h, dtype):  # the 1 at the targets, beside which a grid would lose the small numbers
                grad_h[chunk] -= narrow_head[targets[chunk]]
                grad_chunk.index_add_(0, targets[chunk], -narrow_h[chunk])
            grad_head = grad_chunk.float() if grad_head is None else grad_head.add_(grad_chunk)
        ctx.save_for_backward(grad_h, grad_head)
        return loss / len(h)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None, None


def token_nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,) of targets (N,) given logits (N, V) float32, which are no longer needed."""
    blocks = softmax_blocks(logits, targets)
    if is_exact(logits, logits.dtype):
        return exact_nats(exact_terms_(block, target) for block, target in blocks)
    return torch.cat([F.cross_entropy(block, target[:, 0], reduction="none") for block, target in blocks])


def nats_and_gradient_(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of targets (N,) in all, and replace logits (N, V) by their gradient.

    It is the softmax, less 1 at the target; exact numerics leave out the 1.
    """
    blocks = softmax_blocks(logits, targets)
    if is_exact(logits, logits.dtype):
        terms = []
        for block, target in blocks:
            terms.append(exact_terms_(block, target))
            block.div_(terms[-1][1])
        return exact.sum_tree(exact_nats(terms), 0)[0]
    nats = logits.new_zeros((), dtype=torch.float32)
    for block, target in blocks:
        p = block.log_softmax(-1, dtype=torch.float32)
        nats -= p.gather(1, target).sum()
        block.copy_(p.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=p.dtype)))
    return nats


def softmax_blocks(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (N, V) and targets (N, 1) of some rows at a time."""
    at_once = exact.CACHED_NUMBERS if is_exact(logits, logits.dtype) else SOFTMAX_NUMBERS
    rows = max(1, at_once // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return zip(logits.split(rows), targets[:, None].split(rows), strict=True)


def exact_terms_(block: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Replace logits (N, V) by exp(logit - largest); return logit - largest of targets (N, 1), and the sums (N, 1)."""
    block.sub_(block.amax(-1, keepdim=True))
    distance = block.gather(1, target)
    return distance, exact.sum_tree(exact.exp_(block), -1)


def exact_nats(terms: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the nats (N,) of all targets, given what `exact_terms_` returned for some rows each."""
    distances, totals = (torch.cat(parts)[:, 0] for parts in zip(*terms, strict=True))
    return exact.log(totals) - distances

"""The computations of lm.model that autograd alone does slowly: norm, attention, cross-entropy.

Gradients are written by hand where that halves the time of a training step on a CPU; the tests hold
them to those of plain torch. Legend as in lm.model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of `x`: autocast's, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class RMSNormFunction(Function):
    """x r (1 + w), r = 1 / sqrt(mean(x²) + eps), in float32; returned in the compute dtype.

    Differentiating its six operations one by one would take twice as long.
    """

    @staticmethod
    def forward(ctx, x, weight, eps):
        """x (…, D) of any format, weight (D,) → (…, D) in the compute dtype."""
        wide = x.float()
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1]
        r = torch.rsqrt(mean_square + eps)
        ctx.save_for_backward(x, weight, r)
        return (wide * r).mul_(1 + weight.float()).to(compute_dtype(x))

    @staticmethod
    def backward(ctx, grad):
        """The gradient (…, D) of the result → those of x (…, D), in its format, and of weight (D,) float32."""
        x, weight, r = ctx.saved_tensors
        grad, unit, gain = grad.float(), x.float() * r, 1 + weight.float()
        product = grad * unit
        grad_weight = product.flatten(0, -2).sum(0)
        along = product.mul_(gain).mean(-1, keepdim=True)  # the part of the gradient that only rescales x
        return (grad * gain).addcmul_(unit, along, value=-1).mul_(r).to(x.dtype), grad_weight, None


def visible(T: int, S: int, window: int, device) -> Tensor:
    """(T, S) bool: the last T of S positions see themselves and the window - 1 positions before."""
    position = torch.arange(S, device=device)
    distance = position[S - T :, None] - position
    return (distance >= 0) & (distance < window)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Causal attention of q (B, H, T, D), the last T positions, to k and v (B, K, S, D) → (B, H, T, D)."""
    (B, H, T, D), (K, S) = q.shape, k.shape[1:3]
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad and S <= 512:
        # In torch 2.13 the fused kernel's backward takes 2 to 5 times as long as this.
        q, k, v = q.reshape(B * K, -1, D), k.reshape(B * K, S, D), v.reshape(B * K, S, D)  # q: (BK, H/K·T, D)
        bias = q.new_zeros(T, S).masked_fill_(~visible(T, S, window, q.device), -torch.inf).repeat(H // K, 1)
        return (torch.baddbmm(bias, q, k.mT, alpha=scale).softmax(-1) @ v).view(B, H, T, D)
    if window >= S and T in (1, S):
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, enable_gqa=H > K)
    if q.device.type == "cuda":  # whose fused kernels take no mask while H > K
        K, k, v = H, k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    mask = visible(T, S, window, q.device)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=H > K)


SOFTMAX_ROWS = 32  # of logits at a time on a CPU: their softmax stays in its cache


class CrossEntropyFunction(Function):
    """Mean nats of targets (N,) after h (N, C) under the head (V, C), `rows` of N at a time.

    The gradients are made on the way, so that at most (rows, V) logits exist at any moment.
    """

    @staticmethod
    def forward(ctx, h, head, targets, rows):
        """The mean nats, float32, and on the way both gradients, not yet divided by N."""
        loss, grad_h, grad_head = h.new_zeros(()), torch.empty_like(h), None
        dtype = compute_dtype(h)
        narrow_h, narrow_head = h.to(dtype), head.to(dtype)
        block_rows = SOFTMAX_ROWS if h.device.type == "cpu" else rows
        for start in range(0, len(h), rows):
            part = slice(start, start + rows)
            logits = narrow_h[part] @ narrow_head.T  # (rows, V)
            for block, target in zip(logits.split(block_rows), targets[part, None].split(block_rows), strict=True):
                log_p = F.log_softmax(block, -1, dtype=torch.float32)
                loss -= log_p.gather(1, target).sum()
                # The gradient of the logits is p, less 1 at the target; 1 / N and the outer gradient come last.
                block.copy_(log_p.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=log_p.dtype)))
            grad_h[part] = logits @ narrow_head
            grad_part = logits.T @ narrow_h[part]  # (V, C)
            grad_head = grad_part.float() if grad_head is None else grad_head.add_(grad_part)
        ctx.save_for_backward(grad_h, grad_head)
        return loss / len(h)

    @staticmethod
    def backward(ctx, grad):
        """The gradient () of the mean → those of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None

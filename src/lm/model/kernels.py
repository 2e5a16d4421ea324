"""Norm, attention and cross-entropy, which take most of a training step. Legend as in lm.model.gemma3.

Their gradients are written by hand where autograd is much slower on a CPU; tests compare them to those of plain torch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention.flex_attention import BlockMask, flex_attention


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `x`: that of autocast if it is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class RMSNormFunction(Function):
    """Compute x r (1 + w), r = 1 / sqrt(mean(x²) + eps), in float32; the result has the compute dtype."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Normalize x (…, D) of any dtype with weight (D,); return (…, D) in the compute dtype."""
        wide = x.float()
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1]
        r = torch.rsqrt(mean_square + eps)
        ctx.save_for_backward(x, weight, r)
        return (wide * r).mul_(1 + weight.float()).to(compute_dtype(x))

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D), in its dtype, and of weight (D,), float32."""
        x, weight, r = ctx.saved_tensors
        grad, unit, gain = grad.float(), x.float() * r, 1 + weight.float()
        product = grad * unit
        grad_weight = product.flatten(0, -2).sum(0)
        along = product.mul_(gain).mean(-1, keepdim=True)  # the component along x, which the norm removes
        return (grad * gain).addcmul_(unit, along, value=-1).mul_(r).to(x.dtype), grad_weight, None


def visible(T: int, S: int, window: int, device) -> Tensor:
    """Return the mask (T, S) bool: each of the last T of S positions sees itself and the window - 1 before it."""
    position = torch.arange(S, device=device)
    distance = position[S - T :, None] - position
    return (distance >= 0) & (distance < window)


def takes_products(dtype: torch.dtype, S: int, device: torch.device) -> bool:
    """Return True if training attends by plain products and a softmax over S tokens.

    In torch 2.13 the backward pass of the fused kernel takes 2 to 5 times as long as these.
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and S <= 512


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: Tensor | BlockMask | None = None
) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    `mask` of lm.model.document_masks replaces `window`: scores to add, (B, 1 or H, T, S), or blocks.
    """
    (B, H, T, D), (K, S) = q.shape, k.shape[1:3]
    if isinstance(mask, BlockMask):
        return flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=H > K)  # pyright: ignore[reportReturnType] - a tensor without return_aux
    if q.requires_grad and takes_products(q.dtype, S, q.device):
        q, k, v = q.reshape(B * K, -1, D), k.reshape(B * K, S, D), v.reshape(B * K, S, D)  # q: (BK, H/K·T, D)
        if mask is None:
            bias = q.new_zeros(T, S).masked_fill_(~visible(T, S, window, q.device), -torch.inf).repeat(H // K, 1)
        else:
            bias = mask.expand(B, H, T, S).reshape(B * K, -1, S)
        return (torch.baddbmm(bias, q, k.mT, alpha=scale).softmax(-1) @ v).view(B, H, T, D)
    if mask is None and window >= S and T in (1, S):
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, enable_gqa=H > K)
    if q.device.type == "cuda":  # its fused kernels accept no mask if H > K
        K, k, v = H, k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    mask = visible(T, S, window, q.device) if mask is None else mask
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=H > K)


SOFTMAX_ROWS = 32  # rows of logits at a time on a CPU: their softmax stays in the cache


class CrossEntropyFunction(Function):
    """Compute the mean nats of targets (N,) given h (N, C) and the head (V, C), `rows` of N at a time.

    The forward pass computes the gradients too, so that at most (rows, V) logits are in memory.
    """

    @staticmethod
    def forward(ctx, h, head, targets, rows):
        """Return the mean nats, float32; save both gradients, not yet divided by N."""
        loss, grad_h, grad_head = h.new_zeros(()), torch.empty_like(h), None
        dtype = compute_dtype(h)
        narrow_h, narrow_head = h.to(dtype), head.to(dtype)
        block_rows = SOFTMAX_ROWS if h.device.type == "cpu" else rows
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            logits = narrow_h[chunk] @ narrow_head.T  # (rows, V)
            for block, target in zip(logits.split(block_rows), targets[chunk, None].split(block_rows), strict=True):
                log_p = F.log_softmax(block, -1, dtype=torch.float32)
                loss -= log_p.gather(1, target).sum()
                # The gradient of the logits is p, less 1 at the target; 1 / N and the outer gradient come last.
                block.copy_(log_p.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=log_p.dtype)))
            grad_h[chunk] = logits @ narrow_head
            grad_chunk = logits.T @ narrow_h[chunk]  # (V, C)
            grad_head = grad_chunk.float() if grad_head is None else grad_head.add_(grad_chunk)
        ctx.save_for_backward(grad_h, grad_head)
        return loss / len(h)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None

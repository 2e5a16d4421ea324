"""The functions of a model in torch's own arithmetic, in float32 or under autocast, on any device.

Gradients are written by hand where autograd is much slower on a CPU; tests compare them to those of plain torch.
lm.exact.functions has the same functions in exact numerics. See lm.model.gemma3 for the legend.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lm.model.machine import free_bytes, is_gpu, shared_bytes

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

PRODUCTS_UP_TO = 512  # tokens; see `takes_products`
FLEX_FROM = 128  # tokens, a block of FlexAttention; for fewer, torch would choose its kernel for generation
# Wider heads need more shared memory than most GPUs have (github.com/pytorch/pytorch, #198224); an H100 has 227 KiB.
FLEX_HEAD_DIM = 128
FLEX_SHARED_BYTES = 200 * 1024
# Compiled for an H100, the backward pass for heads of 256 spills 1,688 bytes of each thread from registers to memory,
# and with these 8 warps instead of 4 it spills 312 (not measured).
WIDE_HEAD_OPTIONS: Any = {"bwd_num_warps": 8}
SOFTMAX_NUMBERS = 2**19  # logits at a time on a CPU: their softmax fits into the cache
# The loss may fill this fraction of the GPU memory that is free in the first step, before the optimizers have moments.
LOGITS_FRACTION = 1 / 8
MOST_GPU_LOGITS = 2_000_000_000  # with the padding of the head below 2**31: indices of 32 bits are faster
# The head is padded to a multiple of this many entries on a GPU. With GPT-2's 50,257 entries, products are reported to
# take 3.5 times as long on an H100 (github.com/m87-labs/kestrel, #143); not measured here.
GPU_HEAD_MULTIPLE = 64


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `x`: that of autocast if it is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def check_weights(weight: Tensor) -> None:
    """Accept every dtype and device, unlike lm.exact.functions."""


def embedding(ids: Tensor, table: Tensor, scale: float) -> Tensor:
    """Return the rows (…, C) of the table (V, C) for ids (…) int64, times `scale`, in the compute dtype."""
    # The head's gradient is dense: a sparse one of the input is added to it in place. A GPU is fast without.
    rows = F.embedding(ids, table, sparse=ids.device.type == "cpu")
    scaled = rows * torch.tensor(scale, dtype=rows.dtype)  # rounded as published
    return scaled.to(compute_dtype(scaled))  # the sums of the blocks too: half the traffic on a GPU


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T (…, O) for x (…, I) and weight (O, I)."""
    return F.linear(x, weight)


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (…, F), with the approximation of gelu by tanh (arXiv 1606.08415)."""
    return F.gelu(gate, approximate="tanh") * up


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x r (1 + w), r = 1 / sqrt(mean(x²) + eps), for x (…, D) and weight (D,), in the compute dtype."""
    return RMSNormFunction.apply(x, weight, eps)  # pyright: ignore[reportReturnType] - apply returns what forward does


class RMSNormFunction(Function):
    """Compute `rms_norm` and its gradients in float32."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Normalize x (…, D) of any dtype with weight (D,); return (…, D) in the compute dtype."""
        wide = x.float()
        sum_of_squares = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square()
        mean_square = sum_of_squares / x.shape[-1]
        r = torch.rsqrt(mean_square + eps)
        ctx.save_for_backward(x, weight, r)
        return (wide * r).mul_(1 + weight.float()).to(compute_dtype(x))

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x (…, D), in its dtype, and of weight (D,), float32."""
        x, weight, r = ctx.saved_tensors
        grad = grad.float()
        unit = x.float() * r
        gain = 1 + weight.float()
        terms = grad * unit
        grad_weight = terms.flatten(0, -2).sum(0)
        along = terms.mul_(gain).mean(-1, keepdim=True)  # the component along x, which the norm removes
        grad_x = (grad * gain).sub_(unit.mul_(along)).mul_(r)
        return grad_x.to(x.dtype), grad_weight, None


# Attention masks.
#
# In a token file one eot_id follows each document. As a target it ends its document. As an input it begins the next
# one: the first token of a document is predicted from this eot_id alone, as `generate` predicts it. Positions need no
# restart, because RoPE depends on their difference only.


def document_numbers(ids: Tensor, start_id: int) -> Tensor:
    """Return the number (B, T) int64 of each token's document in its row; `start_id` is the first token of one."""
    return (ids == start_id).cumsum(-1)


def dense_mask(documents: Tensor, window: int, dtype: torch.dtype, num_heads: int = 1) -> Tensor:
    """Return the mask to add to the scores, (B, num_heads, T, T): 0 where a token sees another, -inf elsewhere.

    A token sees itself and, of the window - 1 tokens before it, those with the same number in `documents` (B, T).
    """
    B, T = documents.shape
    is_same_document = documents[:, :, None] == documents[:, None, :]
    is_seen = is_same_document & visible(T, T, window, documents.device)
    mask = torch.zeros(B, 1, T, T, dtype=dtype, device=documents.device)
    mask.masked_fill_(~is_seen[:, None], -torch.inf)
    return mask.repeat(1, num_heads, 1, 1) if num_heads > 1 else mask


def block_mask(documents: Tensor, window: int) -> "BlockMask":
    """Return the mask of documents (B, T) for FlexAttention, which skips blocks of 128 tokens that see no other."""
    from torch.nn.attention.flex_attention import BlockMask

    T = documents.shape[1]
    device = documents.device
    document_begin = torch.searchsorted(documents, documents)  # the first position with the same number
    position = torch.arange(T, device=device)
    first_seen = torch.maximum(document_begin, position - (window - 1))

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first_seen[row, query] <= key) & (key <= query)

    # A later query never sees further back. So a block of queries sees keys of every block from the first that its
    # first query sees to its own, and every key of an earlier block that its last query sees from its first key on.
    num_blocks = -(-T // FLEX_FROM)
    key_block = torch.arange(num_blocks, device=device)  # (N,)
    own_block = key_block[:, None]  # (N, 1), of the queries
    first_query = own_block * FLEX_FROM
    last_query = first_query + (FLEX_FROM - 1)
    seen_by_first = first_seen[:, first_query]  # (B, N, 1)
    seen_by_last = first_seen[:, last_query.clamp(max=T - 1)]
    is_earlier = key_block < own_block  # (N, N)
    is_full = is_earlier & (last_query < T) & (seen_by_last <= key_block * FLEX_FROM)  # (B, N, N)
    is_seen = (seen_by_first // FLEX_FROM <= key_block) & (key_block <= own_block)
    is_masked = is_seen & ~is_full
    return BlockMask(
        (T, T),
        *block_lists(is_masked),
        *block_lists(is_full),
        *block_lists(is_masked.mT),
        *block_lists(is_full.mT),
        (FLEX_FROM, FLEX_FROM),
        sees,
    )


def block_lists(is_listed: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks each row of (B, N, N) bool lists, (B, 1, N) int32, and which, first in (B, 1, N, N)."""
    counts = is_listed.sum(-1, dtype=torch.int32)
    listed_first = is_listed.int().argsort(dim=-1, descending=True, stable=True).int()
    return counts[:, None], listed_first[:, None]


def visible(T: int, S: int, window: int, device) -> Tensor:
    """Return the mask (T, S) bool: each of the last T of S positions sees itself and the window - 1 before it."""
    position = torch.arange(S, device=device)
    distance = position[S - T :, None] - position
    return (distance >= 0) & (distance < window)


# Attention.


def takes_products(q: Tensor, S: int) -> bool:
    """Return True if attention of q to S tokens takes plain products and a softmax, to train in bfloat16 on a CPU.

    The backward pass of torch's fused kernel takes 2 to 5 times as long there (torch 2.13).
    """
    trains_on_cpu = torch.is_grad_enabled() and q.device.type == "cpu"
    return trains_on_cpu and compute_dtype(q) == torch.bfloat16 and S <= PRODUCTS_UP_TO


def takes_flex_attention(weight: Tensor, head_dim: int, T: int) -> bool:
    """Return True if compiled blocks attend to T tokens by FlexAttention: if its kernels for a GPU accept the heads."""
    if not is_gpu(weight.device) or compute_dtype(weight) != torch.bfloat16 or T < FLEX_FROM:
        return False
    is_power_of_2 = head_dim & (head_dim - 1) == 0
    if head_dim > FLEX_HEAD_DIM:
        return is_power_of_2 and shared_bytes(weight.device) >= FLEX_SHARED_BYTES
    return is_power_of_2 and head_dim >= 16


def cached_window(window: int, max_seq_len: int) -> int:
    """Return how many positions a cache keeps: those that a window of this length sees."""
    return window


def mask(documents: Tensor, window: int, num_heads: int, weight: Tensor) -> Tensor:
    """Return the mask of `attend` that keeps each token of documents (B, T) to its own document.

    weight: any weight of the model; it gives the dtype and the device.
    """
    heads = num_heads if takes_products(weight, documents.shape[1]) else 1
    return dense_mask(documents, window, compute_dtype(weight), heads)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: "Tensor | BlockMask | None" = None
) -> Tensor:
    """Return the causal attention (B, H, T, D) of q (B, H, T, D), the last T positions, to k and v (B, K, S, D).

    A mask replaces `window`: scores to add, (B, 1 or H, T, S), of the function `mask`, or in a compiled block the
    blocks to see, of `block_mask`.
    """
    _, H, T, _ = q.shape
    K, S = k.shape[1:3]
    if not isinstance(mask, Tensor | None):
        from torch.nn.attention.flex_attention import flex_attention

        options = WIDE_HEAD_OPTIONS if q.shape[-1] > FLEX_HEAD_DIM else None
        out = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=H > K, kernel_options=options)
        assert isinstance(out, Tensor)  # with other arguments it returns a tuple
        return out
    if takes_products(q, S):
        return attend_by_products(q, k, v, scale, window, mask)

    is_plain = mask is None and window >= S and T in (1, S)
    if q.device.type != "cpu" and not (is_plain and q.dtype != torch.float32):
        # With H > K, the fused kernels of CUDA accept neither a mask nor float32.
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
        K = H
    if is_plain:
        return F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, scale=scale, enable_gqa=H > K)
    mask = visible(T, S, window, q.device) if mask is None else mask
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=H > K)


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, mask: Tensor | None) -> Tensor:
    """Return the result of `attend`, (B, H, T, D), by two products and a softmax."""
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # The query heads of one key head are rows of one product.
    q = q.reshape(B * K, -1, D)  # (BK, H/K·T, D)
    k = k.reshape(B * K, S, D)
    v = v.reshape(B * K, S, D)
    if mask is None:
        is_hidden = ~visible(T, S, window, q.device)
        bias = q.new_zeros(T, S).masked_fill_(is_hidden, -torch.inf)
        bias = bias.repeat(H // K, 1)  # (H/K·T, S)
    else:
        bias = mask.expand(B, H, T, S).reshape(B * K, -1, S)
    scores = torch.baddbmm(bias, q, k.mT, alpha=scale)
    return (scores.softmax(-1) @ v).view(B, H, T, D)


def nats_and_gradient_(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of targets (N,) in all, and replace logits (N, V) by their gradient."""
    nats = logits.new_zeros((), dtype=torch.float32)
    for block, target in blocks_of_rows(logits, targets):
        log_p = block.log_softmax(-1, dtype=torch.float32)
        nats -= log_p.gather(1, target).sum()
        # The gradient is the probabilities, less 1 at the target.
        gradient = log_p.exp_()
        minus_one = -torch.ones_like(target, dtype=gradient.dtype)
        gradient.scatter_add_(1, target, minus_one)
        block.copy_(gradient)
    return nats


def fused_nats_and_gradient_(logits: Tensor, targets: Tensor) -> Tensor:
    """Do what `nats_and_gradient_` does, in operations that a compiler fuses.

    They become a pass that reads the logits, and one that replaces them by their gradient: nothing as large is
    allocated. Without a compiler they take more memory than `nats_and_gradient_`.
    """
    wide = logits.float()
    log_sums = wide.logsumexp(-1, keepdim=True)
    nats = (log_sums - wide.gather(1, targets[:, None])).sum()
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    logits.copy_((wide - log_sums).exp() - is_target.float())
    return nats


def most_logits(device: torch.device, dtype: torch.dtype, is_compiled: bool) -> int:
    """Return how many logits of this dtype fit into LOGITS_FRACTION of a GPU's free memory; at most MOST_GPU_LOGITS.

    If the softmax is not compiled, it adds a float32 number to each.
    """
    bytes_per_logit = dtype.itemsize
    if not is_compiled:
        bytes_per_logit += torch.float32.itemsize
    return min(MOST_GPU_LOGITS, int(LOGITS_FRACTION * free_bytes(device)) // bytes_per_logit)


def add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return the product of a (R, K) and b (K, C), float32, added in place to a total (R, C) if there is one.

    On a GPU the product in bfloat16 itself adds to the total, without rounding its terms to bfloat16 first.
    """
    if a.device.type == "cpu" or a.dtype == torch.float32:
        product = a @ b
        return product.float() if total is None else total.add_(product)
    if total is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)  # for a float32 total, torch 2.10 or later


def blocks_of_rows(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (N, V) and targets (N, 1) of some rows at a time."""
    rows = len(logits)
    if logits.device.type == "cpu":
        rows = max(1, SOFTMAX_NUMBERS // logits.shape[1])
    return zip(logits.split(rows), targets[:, None].split(rows), strict=True)


def cross_entropy(
    h: Tensor,
    head: Tensor,
    targets: Tensor,
    rows: int,
    log_factors: Tensor | None = None,
    softmax_less_targets: Callable[[Tensor, Tensor], Tensor] = nats_and_gradient_,
) -> Tensor:
    """Return the mean nats, float32, of targets (N,) given h (N, C) and the head (V, C), at most `rows` of N at a time.

    `log_factors` (W,), if any, are added to the logits of the last W entries. `softmax_less_targets` is
    `nats_and_gradient_`, or `fused_nats_and_gradient_` compiled.
    """
    return CrossEntropyFunction.apply(h, head, targets, rows, log_factors, softmax_less_targets)  # pyright: ignore[reportReturnType]


class CrossEntropyFunction(Function):
    """Compute `cross_entropy`; the forward pass computes the gradients too, so that at most (rows, V) logits exist."""

    @staticmethod
    def forward(ctx, h, head, targets, rows, log_factors, softmax_less_targets):
        """Return the mean nats, float32; save both gradients, not yet divided by N."""
        dtype = compute_dtype(h)
        num_entries = len(head)
        narrow_h = h.to(dtype)
        narrow_head = padded_head(head, dtype)
        loss = h.new_zeros(())
        grad_h = torch.empty_like(h)
        grad_head = None
        for start in range(0, len(h), rows):
            chunk = slice(start, start + rows)
            logits = narrow_h[chunk] @ narrow_head.T  # (rows, V), and the padding
            logits[:, num_entries:] = -torch.inf
            if log_factors is not None:
                # In the dtype of the logits: float32 would widen all of them for a while.
                logits[:, num_entries - len(log_factors) : num_entries] += log_factors.to(logits.dtype)
            loss += softmax_less_targets(logits, targets[chunk])
            grad_h[chunk] = logits @ narrow_head
            grad_head = add_product(grad_head, logits.T, narrow_h[chunk])  # (V, C), and the padding
        assert grad_head is not None  # there is at least one row
        ctx.save_for_backward(grad_h, grad_head[:num_entries])
        return loss / len(h)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of h (N, C) and head (V, C)."""
        grad_h, grad_head = ctx.saved_tensors
        scale = grad / len(grad_h)
        return grad_h.mul_(scale), grad_head.mul_(scale), None, None, None, None


def padded_head(head: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the head (V, C) in this dtype; on a GPU with zeros below, to a multiple of GPU_HEAD_MULTIPLE entries."""
    narrow = head.to(dtype)
    if head.device.type == "cpu":
        return narrow
    num_missing = -len(head) % GPU_HEAD_MULTIPLE
    return F.pad(narrow, (0, 0, 0, num_missing))

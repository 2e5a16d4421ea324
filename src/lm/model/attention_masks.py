"""Attention masks: within a document, and within a sliding window. Legend as in lm.model.gemma3.

In a token file one eot_id follows each document. As a target it ends its document. As an input it begins the next one:
the first token of a document is predicted from this eot_id alone, as `generate` predicts it. Positions need no
restart, because RoPE depends on their difference only.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from lm.model.accelerator import has_block_masks


def document_numbers(ids: Tensor, start_id: int) -> Tensor:
    """Return the number (B, T) int64 of each token's document in its row; `start_id` is the first token of one."""
    return (ids == start_id).cumsum(-1)


def dense_mask(documents: Tensor, window: int, dtype: torch.dtype, num_heads: int = 1) -> Tensor:
    """Return what is added to the scores, (B, num_heads, T, T): 0 where a token sees another, -inf elsewhere.

    A token sees itself and those of the window - 1 before it that `documents` (B, T) gives the same number.
    """
    B, T = documents.shape
    position = torch.arange(T, device=documents.device)
    distance = position[:, None] - position
    seen = (documents[:, :, None] == documents[:, None, :]) & (distance >= 0) & (distance < window)
    mask = torch.zeros(B, 1, T, T, dtype=dtype, device=documents.device).masked_fill_(~seen[:, None], -torch.inf)
    return mask.repeat(1, num_heads, 1, 1) if num_heads > 1 else mask


def mask_rule(documents: Tensor, window: int) -> Callable[..., Tensor]:
    """Return the rule of `dense_mask` as a mask_mod of FlexAttention."""

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (documents[b, q] == documents[b, kv]) & (q >= kv) & (q - kv < window)

    return mask_mod


def document_blocks(documents: Tensor, window: int) -> BlockMask:
    """Return the mask of documents (B, T) as FlexAttention's blocks, of which it skips the empty ones."""
    B, T = documents.shape
    return _create(documents.device)(mask_rule(documents, window), B, None, T, T, device=documents.device)


@functools.lru_cache(maxsize=8)  # a training has one length, a model few windows
def sliding_blocks(num_tokens: int, window: int, device: torch.device) -> BlockMask:
    """Return the causal mask of a sliding window for num_tokens positions, shared by all rows and heads, in blocks."""

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q >= kv) & (q - kv < window)

    with torch.inference_mode(False):  # training keeps the blocks for its backward pass, also those of a validation
        return _create(device)(mask_mod, None, None, num_tokens, num_tokens, device=device)


def _create(device: torch.device) -> Callable[..., BlockMask]:
    """Return torch's create_block_mask; compiled for a GPU, where it then does not store (B, T, T) numbers first."""
    return torch.compile(create_block_mask) if has_block_masks(device) else create_block_mask

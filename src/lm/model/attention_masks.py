"""Attention masks: within a document, and within a sliding window. Legend as in lm.model.gemma3.

In a token file one eot_id follows each document. As a target it ends its document. As an input it begins the next one:
the first token of a document is predicted from this eot_id alone, as `generate` predicts it. Positions need no
restart, because RoPE depends on their difference only.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # importing it imports torch's compiler, which takes seconds
    from torch.nn.attention.flex_attention import BlockMask


def document_numbers(ids: Tensor, start_id: int) -> Tensor:
    """Return the number (B, T) int64 of each token's document in its row; `start_id` is the first token of one."""
    return (ids == start_id).cumsum(-1)


def dense_mask(documents: Tensor, window: int, dtype: torch.dtype, num_heads: int = 1) -> Tensor:
    """Return what is added to the scores, (B, num_heads, T, T): 0 where a token sees another, -inf elsewhere.

    A token sees itself and those of the window - 1 before it that `documents` (B, T) gives the same number.
    """
    B, T = documents.shape
    seen = (documents[:, :, None] == documents[:, None, :]) & visible(T, T, window, documents.device)
    mask = torch.zeros(B, 1, T, T, dtype=dtype, device=documents.device).masked_fill_(~seen[:, None], -torch.inf)
    return mask.repeat(1, num_heads, 1, 1) if num_heads > 1 else mask


def block_mask(documents: Tensor, window: int) -> "BlockMask":
    """Return the mask of `dense_mask` for FlexAttention, which skips blocks of 128 tokens that see none of another."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, T = documents.shape
    document_begin = torch.searchsorted(documents, documents)  # the first position with the same number
    position = torch.arange(T, device=documents.device)
    first_seen = torch.maximum(document_begin, position - (window - 1))

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first_seen[row, query] <= key) & (key <= query)

    return create_block_mask(sees, B, None, T, T, device=documents.device)


def visible(T: int, S: int, window: int, device) -> Tensor:
    """Return the mask (T, S) bool: each of the last T of S positions sees itself and the window - 1 before it."""
    position = torch.arange(S, device=device)
    distance = position[S - T :, None] - position
    return (distance >= 0) & (distance < window)

"""Losses of a token file: each token scored once with real left context, the first one after end-of-text.

Legend: N tokens, W windows, B of them at a time, T tokens of a window. Nats are natural-logarithm units. A model with a
`document_start_id` predicts a token from those of its own document that the window holds.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from tqdm import tqdm

from lm.model.machine import copy_to
from lm.tokens.tokenfile import TokenFile
from lm.tokens.windows import read_windows


def windows_to_score(num_tokens: int, seq_len: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield (start, first_scored): windows of T = seq_len inputs that move by `stride`.

    A window predicts tokens start … start + T - 1 of the N and scores those from first_scored on. After the first
    window every token has at least T - stride tokens to its left. The last window is moved back to end on the last one.
    """
    start = first_scored = 0
    while first_scored < num_tokens:
        start = max(0, min(start, num_tokens - seq_len))
        yield start, first_scored
        first_scored = min(start + seq_len, num_tokens)
        start = first_scored - (seq_len - stride)


def score_tokens(
    model,
    tokens: TokenFile,
    seq_len: int,
    stride: int,
    batch_size: int,
    dtype: torch.dtype,
    between_batches=lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's loss (N,) float32 in nats and its position (N,) int32 in the window that scored it.

    For a model that keeps to its document, positions are those in the part of the document that the window holds.
    `between_batches` is called after each batch.
    """
    return score_strides(model, tokens, seq_len, [stride], batch_size, dtype, between_batches)[0]


def score_strides(
    model,
    tokens: TokenFile,
    seq_len: int,
    strides: list[int],
    batch_size: int,
    dtype: torch.dtype,
    between_batches=lambda: None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what `score_tokens` returns, for each stride; a window that several strides need is scored once."""
    num_tokens = len(tokens.ids)
    start_id = getattr(model, "document_start_id", None)
    seq_len = min(seq_len, num_tokens)
    scored = [(np.full(num_tokens, np.nan, np.float32), np.zeros(num_tokens, np.int32)) for _ in strides]
    needed: dict[int, list[tuple[int, int]]] = defaultdict(list)  # start of a window: number of the stride, first token
    for number, stride in enumerate(strides):
        for start, first in windows_to_score(num_tokens, seq_len, min(stride, seq_len)):
            needed[start].append((number, first))
    skipped = {start: min(first for _, first in needed[start]) - start for start in needed}  # tokens not to score
    starts = sorted(needed, key=lambda start: (skipped[start], start))
    with tqdm(total=len(starts) * seq_len, unit="tok", unit_scale=True, desc="score", disable=None, leave=False) as bar:
        for begin in range(0, len(starts), batch_size):
            batch = starts[begin : begin + batch_size]
            skip = skipped[batch[0]]  # the least of the batch
            rows = score_windows(model, tokens, np.array(batch), seq_len, dtype, skip)
            for start, row in zip(batch, rows, strict=True):
                seen = positions_in_window(tokens.ids[start : start + seq_len], start_id)
                for number, first in needed[start]:
                    losses, positions = scored[number]
                    losses[first : start + seq_len] = row[first - start - skip :]
                    positions[first : start + seq_len] = seen[first - start :]
            bar.update(len(batch) * seq_len)
            between_batches()
    return scored


def positions_in_window(ids: np.ndarray, start_id: int | None) -> np.ndarray:
    """Return the position (T,) of each of ids (T,) in the window; it is 0 again after `start_id`."""
    position = np.arange(len(ids))
    begins = np.where(ids[:-1] == start_id, position[1:], 0)
    return position - np.maximum.accumulate(np.concatenate([[0], begins]))


def inputs_and_targets(
    tokens: TokenFile, starts: np.ndarray, seq_len: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets (B, T) int64 of the windows whose T = seq_len targets begin at `starts` (B,)."""
    windows = np.full((len(starts), seq_len + 1), tokens.eot_id, np.int64)
    windows[starts == 0, 1:] = tokens.ids[:seq_len]
    if starts.any():
        windows[starts > 0] = read_windows(tokens.ids, starts[starts > 0] - 1, seq_len + 1)
    copied = copy_to(torch.from_numpy(windows), device)
    return copied[:, :-1], copied[:, 1:]


def score_windows(
    model, tokens: TokenFile, starts: np.ndarray, seq_len: int, dtype: torch.dtype, skip: int = 0
) -> np.ndarray:
    """Return the losses (B, T - skip) float32 in nats of the windows of T = seq_len tokens that begin at `starts` (B,).

    The first `skip` tokens of each window are context only.
    """
    return window_losses(model, tokens, starts, seq_len, dtype, skip).cpu().numpy()


@torch.no_grad()  # not inference_mode: FSDP2 would keep its buffers from here, and a training step could not write them
def window_losses(
    model, tokens: TokenFile, starts: np.ndarray, seq_len: int, dtype: torch.dtype, skip: int = 0
) -> torch.Tensor:
    """Return what `score_windows` returns on the device of the model, so that Python does not wait for a GPU."""
    x, y = inputs_and_targets(tokens, starts, seq_len, model.device)
    model.eval()
    with torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
        losses = model.token_losses(x, y[:, skip:])
    model.train()
    return losses.float()

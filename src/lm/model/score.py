"""Losses of a token file: each token is scored once with real left context, the first one after end-of-text.

A model gives its hidden states and its head; this module computes the losses.

Legend: N tokens, W windows, B of them at a time, T tokens of a window. Nats are natural-logarithm units. A model with a
`document_start_id` predicts a token from those of its own document that the window holds.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lm.exact import functions as exact
from lm.model import kernels
from lm.model.machine import copy_to
from lm.tokens.tokenfile import TokenFile
from lm.tokens.windows import read_windows


def windows_to_score(num_tokens: int, seq_len: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield (start, first_scored): windows of T = seq_len inputs that move by `stride`.

    A window predicts tokens start … start + T - 1 of the N and scores those from first_scored on. After the first
    window every token has at least T - stride tokens to its left. The last window is moved back to end on the last one.
    """
    start = 0
    first_scored = 0
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
    wanted: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's loss (N,) float32 in nats and its position (N,) int32 in the window that scored it.

    For a model that keeps to its document, positions are those in the part of the document that the window holds. With
    `wanted` (N,) bool, a window that scores no wanted token is left out: its losses are NaN. `between_batches` is
    called after each batch.
    """
    num_tokens = len(tokens.ids)
    start_id = getattr(model, "document_start_id", None)
    seq_len = min(seq_len, num_tokens)

    # Choose the windows.
    windows = []
    for start, first in windows_to_score(num_tokens, seq_len, min(stride, seq_len)):
        if wanted is None or wanted[first : start + seq_len].any():
            windows.append((start, first))

    # Sort them by the tokens at their beginning that are context only, so that a batch can skip about as many.
    windows.sort(key=lambda window: window[1] - window[0])

    # Score them.
    losses = np.full(num_tokens, np.nan, np.float32)
    positions = np.zeros(num_tokens, np.int32)
    with tqdm(
        total=len(windows) * seq_len, unit="tok", unit_scale=True, desc="score", disable=None, leave=False
    ) as bar:
        for begin in range(0, len(windows), batch_size):
            batch = windows[begin : begin + batch_size]
            first_start, first_scored = batch[0]
            skip = first_scored - first_start  # the least of the batch
            starts = np.array([start for start, _ in batch])
            rows = window_losses(model, tokens, starts, seq_len, dtype, skip).cpu().numpy()
            for (start, first), row in zip(batch, rows, strict=True):
                end = start + seq_len
                losses[first:end] = row[first - start - skip :]
                positions[first:end] = positions_in_window(tokens.ids[start:end], start_id)[first - start :]
            bar.update(len(batch) * seq_len)
            between_batches()
    return losses, positions


def positions_in_window(ids: np.ndarray, start_id: int | None) -> np.ndarray:
    """Return the position (T,) of each of ids (T,) in the window; it is 0 again after `start_id`."""
    position = np.arange(len(ids))
    begins = np.where(ids[:-1] == start_id, position[1:], 0)
    latest_begin = np.maximum.accumulate(np.concatenate([[0], begins]))
    return position - latest_begin


def inputs_and_targets(
    tokens: TokenFile, starts: np.ndarray, seq_len: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets (B, T) int64 of the windows whose T = seq_len targets begin at `starts` (B,)."""
    # A window begins with the token before its first target: end-of-text before the first token of all.
    windows = np.full((len(starts), seq_len + 1), tokens.eot_id, np.int64)
    windows[starts == 0, 1:] = tokens.ids[:seq_len]
    has_token_before = starts > 0
    if has_token_before.any():
        windows[has_token_before] = read_windows(tokens.ids, starts[has_token_before] - 1, seq_len + 1)
    copied = copy_to(torch.from_numpy(windows), device)
    return copied[:, :-1], copied[:, 1:]


@contextlib.contextmanager
def scoring(model, dtype: torch.dtype) -> Iterator[None]:
    """Compute as for scores: in eval mode and in `dtype`, without gradients."""
    model.eval()
    with torch.no_grad(), torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
        yield
    model.train()


def window_losses(
    model, tokens: TokenFile, starts: np.ndarray, seq_len: int, dtype: torch.dtype, skip: int = 0
) -> Tensor:
    """Return the losses (B, T - skip) float32 in nats of the windows of T = seq_len tokens that begin at `starts` (B,).

    The first `skip` tokens of each window are context only. The losses are on the device of the model, so that Python
    does not wait for a GPU.
    """
    x, y = inputs_and_targets(tokens, starts, seq_len, model.device)
    with scoring(model, dtype):
        return token_losses(model, x, y[:, skip:]).float()


def token_losses(model, ids: Tensor, targets: Tensor, rows: int = 512) -> Tensor:
    """Return the nats (B, S) float32, without gradients, of targets (B, S) that follow the last S of ids (B, T).

    In fast numerics the logits of at most `rows` tokens exist at a time.
    """
    num_unscored = ids.shape[1] - targets.shape[1]
    h = model.hidden(ids)[:, num_unscored:].flatten(0, 1)
    head = model.embed_tokens.weight
    if model.numerics == "exact":
        nats = exact.token_nats(h, head, targets.flatten())
    else:
        nats = token_nats(h, head, targets.flatten(), rows)
    return nats.view(targets.shape)


def token_nats(h: Tensor, head: Tensor, targets: Tensor, rows: int) -> Tensor:
    """Return the nats (N,), without gradients, of targets (N,) given h (N, C) and the head (V, C).

    The logits of at most `rows` of N exist at a time.
    """
    # Round the head once: autocast would do it for each chunk of rows.
    narrow_head = kernels.padded_head(head.detach(), kernels.compute_dtype(h))
    terms = []
    for some, target in zip(h.detach().split(rows), targets.split(rows), strict=True):
        logits = F.linear(some, narrow_head)[:, : len(head)].float()
        for block, entries in kernels.blocks_of_rows(logits, target):
            terms.append(F.cross_entropy(block, entries[:, 0], reduction="none"))
    return torch.cat(terms)

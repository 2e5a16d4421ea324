"""Losses of a stream of tokens: each scored once with real left context, summed up by document.

Legend: N tokens, T window, nats are natural-logarithm units; bits per byte divide the nats of all
tokens, the end-of-text ones included, by ln 2 and by the UTF-8 bytes of the text.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from tqdm import tqdm

from lm.tokens.windows import gather


def windows_to_score(num_tokens: int, seq_len: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield (start, first_scored): windows of T = seq_len inputs that move by `stride`.

    Positions count in the stream with one end-of-text id put before it, so that the first token too
    is predicted from something. A window predicts tokens start … start + T - 1 of the N and scores
    those from first_scored on: after the first window every token has at least T - stride real tokens
    to its left. The last window is moved back to end on the last token.
    """
    start = first_scored = 0
    while first_scored < num_tokens:
        start = max(0, min(start, num_tokens - seq_len))
        yield start, first_scored
        first_scored = min(start + seq_len, num_tokens)
        start = first_scored - (seq_len - stride)


@torch.inference_mode()
def score_tokens(
    model, ids: np.ndarray, eot_id: int, seq_len: int, stride: int, batch_size: int, device: torch.device,
    dtype: torch.dtype, description: str = "score", part: int = 0, parts: int = 1,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return each token's loss (N,) float32 in nats and its position (N,) int32 in the window that scored it.

    Of several parts, each of every `parts`-th batch of windows, one scores its own; the losses of the others'
    tokens are NaN. Batches are made up as for one part, and every part computes as many, as ranks that share the
    weights must: past the last it is the last again.
    """
    stream = np.concatenate([np.array([eot_id], dtype=ids.dtype), ids])
    seq_len = min(seq_len, len(ids))
    plan = np.array(list(windows_to_score(len(ids), seq_len, min(stride, seq_len))))
    losses, positions = np.full(len(ids), np.nan, np.float32), np.zeros(len(ids), np.int32)
    model.eval()
    batches = range(0, len(plan), batch_size)
    with tqdm(
        total=len(ids) // parts, unit="tok", unit_scale=True, desc=description, disable=part > 0 or None, leave=False
    ) as bar:
        for turn in range(part, part + len(batches), parts):
            i = batches[min(turn, len(batches) - 1)]
            starts, first_scored = plan[i : i + batch_size].T
            x, y = (torch.from_numpy(part).to(device) for part in gather(stream, starts, seq_len))
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                window_losses = model.token_losses(x, y).float().cpu().numpy()
            for row, start, first in zip(window_losses, starts, first_scored, strict=True):
                losses[first : start + seq_len] = row[first - start :]
                positions[first : start + seq_len] = np.arange(first - start, seq_len)
                bar.update(int(start + seq_len - first))
    model.train()
    return losses, positions


def sum_by_span(values: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Sum `values` (N,) over each half-open span of `spans` (D, 2); float64 (D,)."""
    cumulative = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return cumulative[spans[:, 1]] - cumulative[spans[:, 0]]


def summarize(nats: np.ndarray, num_tokens: np.ndarray, utf8_bytes: np.ndarray) -> dict:
    """Loss figures over documents, each given by its nats, tokens and bytes (D,).

    The standard errors are those of a ratio of sums over documents taken as the sampling unit
    (linearized ratio estimator: Cochran, Sampling Techniques, 6.4); one document has none.
    """
    loss, _ = _ratio(nats, num_tokens)
    bits_per_byte, bits_per_byte_se = _ratio(nats / math.log(2), utf8_bytes)
    return {
        "documents": len(nats),
        "tokens": int(num_tokens.sum()),
        "utf8_bytes": int(utf8_bytes.sum()),
        "nats_per_token": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": bits_per_byte,
        "bits_per_byte_se": bits_per_byte_se,
    }


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> tuple[float, float | None]:
    """Σ numerator / Σ denominator and its standard error over the units."""
    ratio = float(numerator.sum() / denominator.sum())
    count = len(numerator)
    if count < 2:
        return ratio, None
    residuals = numerator - ratio * denominator
    return ratio, float(math.sqrt(count / (count - 1) * np.square(residuals).sum()) / denominator.sum())


def loss_by_position(losses: np.ndarray, positions: np.ndarray) -> list[tuple[int, float, int]]:
    """Mean nats by position in the window in octaves (1, 2, 3-4, 5-8, …): (last position, loss, tokens)."""
    octave = np.ceil(np.log2(positions + 1)).astype(int)
    counts = np.bincount(octave)
    sums = np.bincount(octave, weights=losses)
    last = int(positions.max()) + 1
    return [(min(2**i, last), float(sums[i] / counts[i]), int(counts[i])) for i in range(len(counts)) if counts[i]]

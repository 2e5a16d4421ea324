"""Compare how sure a model is with how often it is right: its most likely next token, over a sample of windows."""

import numpy as np
import torch

from lm.model.gemma3 import Gemma3Model
from lm.model.kernels import linear
from lm.model.score import inputs_and_targets
from lm.tokens.tokenfile import TokenFile

SAMPLE_TOKENS = 65_536
BATCH_TOKENS = 512
NUM_BINS = 15  # of equal width (Guo et al. 2017)


def calibrate(model: Gemma3Model, tokens: TokenFile, seq_len: int) -> dict:
    """Return `summarize_calibration` of at most SAMPLE_TOKENS tokens, in windows spread evenly over the file."""
    num_windows = len(tokens.ids) // seq_len
    count = min(num_windows, max(1, SAMPLE_TOKENS // seq_len))
    starts = (2 * np.arange(count) + 1) * num_windows // (2 * count) * seq_len
    batches = np.array_split(starts, -(-count * seq_len // BATCH_TOKENS))
    predicted = [predict(model, tokens, batch, seq_len) for batch in batches if len(batch)]
    return summarize_calibration(*map(np.concatenate, zip(*predicted, strict=True)))


@torch.inference_mode()
def predict(model: Gemma3Model, tokens: TokenFile, starts: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability float32 of the most likely token, and if it is the right one: (B·T,) twice.

    The windows of T = seq_len tokens begin at `starts` (B,).
    """
    x, y = inputs_and_targets(tokens, starts, seq_len, model.device)
    parts = []
    for h, targets in zip(
        model.hidden(x).flatten(0, 1).split(BATCH_TOKENS), y.flatten().split(BATCH_TOKENS), strict=True
    ):
        probability, token = linear(h, model.embed_tokens.weight).float().softmax(-1).max(-1)
        parts.append((probability, token == targets))
    probabilities, is_right = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return probabilities, is_right


def summarize_calibration(probabilities: np.ndarray, is_right: np.ndarray) -> dict:
    """Return accuracy, mean probability, expected calibration error and bins of predictions (M,).

    ECE = Σ over bins of M_b / M · |accuracy_b - mean probability_b| (Naeini et al. 2015). Bins have equal width, so
    that two models have the same bins; those without a prediction are left out.
    """
    number = np.minimum((probabilities.astype(np.float64) * NUM_BINS).astype(int), NUM_BINS - 1)
    weights = (np.ones(len(number)), probabilities, is_right)
    counts, sums, right = (np.bincount(number, each, NUM_BINS) for each in weights)
    bins = [
        {"from": i / NUM_BINS, "to": (i + 1) / NUM_BINS, "tokens": int(counts[i]),
         "probability": float(sums[i] / counts[i]), "accuracy": float(right[i] / counts[i])}
        for i in np.flatnonzero(counts).tolist()
    ]  # fmt: skip
    return {
        "tokens": len(probabilities),
        "accuracy": float(right.sum() / counts.sum()),
        "mean_probability": float(sums.sum() / counts.sum()),
        "expected_calibration_error": float(np.abs(right - sums).sum() / counts.sum()),
        "bins": bins,
    }

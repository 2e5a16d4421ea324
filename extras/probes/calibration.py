"""Compare how sure a model is with how often it is right: its most likely next token, over a sample of windows."""

import numpy as np
import torch

from lm.model.gemma3 import Gemma3Model
from lm.model.kernels import SOFTMAX_ROWS, linear
from lm.model.score import inputs_and_targets
from lm.tokens.tokenfile import TokenFile

SAMPLE_TOKENS = 65_536
BATCH_TOKENS = 2048
NUM_BINS = 15  # of equal width (Guo et al. 2017)


def calibrate(model: Gemma3Model, tokens: TokenFile, seq_len: int) -> dict:
    """Return `summarize_calibration` of at most SAMPLE_TOKENS tokens, in windows spread evenly over the file."""
    starts, per_batch = spread_windows(len(tokens.ids), seq_len), max(1, BATCH_TOKENS // seq_len)
    batches = [starts[first : first + per_batch] for first in range(0, len(starts), per_batch)]
    predicted = [predict(model, tokens, batch, seq_len) for batch in batches]
    return summarize_calibration(*map(np.concatenate, zip(*predicted, strict=True)))


def spread_windows(num_tokens: int, seq_len: int, num_sampled: int = SAMPLE_TOKENS) -> np.ndarray:
    """Return where windows side by side begin, at even distances, of `num_sampled` tokens in all: (W,) int64."""
    num_windows = num_tokens // seq_len
    count = min(num_windows, max(1, num_sampled // seq_len))
    return (2 * np.arange(count) + 1) * num_windows // (2 * count) * seq_len


@torch.inference_mode()
def predict(model: Gemma3Model, tokens: TokenFile, starts: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability float32 of the most likely token, and if it is the right one: (B·T,) twice.

    The windows of T = seq_len tokens begin at `starts` (B,). A token that is as likely as the right one is right.
    """
    x, y = inputs_and_targets(tokens, starts, seq_len, model.device)
    probabilities, is_right = [], []
    for h, targets in zip(model.hidden(x).flatten(0, 1).split(512), y.reshape(-1, 1).split(512), strict=True):
        logits = linear(h, model.embed_tokens.weight).float()  # (512, V)
        is_right.append(logits.gather(1, targets)[:, 0] == logits.amax(1))
        probabilities += [rows.softmax(1).amax(1) for rows in logits.split(SOFTMAX_ROWS)]
    return torch.cat(probabilities).cpu().numpy(), torch.cat(is_right).cpu().numpy()


def summarize_calibration(probabilities: np.ndarray, is_right: np.ndarray) -> dict:
    """Return accuracy, mean probability, expected calibration error and bins of predictions (M,).

    ECE = Σ over bins of M_b / M · |accuracy_b - mean probability_b| (Naeini et al. 2015). Bins have equal width, so
    that two models have the same bins; those without a prediction are left out.
    """
    number = np.minimum((probabilities.astype(np.float64) * NUM_BINS).astype(int), NUM_BINS - 1)
    counts, sums, right = (
        np.bincount(number, weights, NUM_BINS) for weights in (np.ones(len(number)), probabilities, is_right)
    )
    bins = [
        {
            "from": i / NUM_BINS,
            "to": (i + 1) / NUM_BINS,
            "tokens": int(counts[i]),
            "probability": float(sums[i] / counts[i]),
            "accuracy": float(right[i] / counts[i]),
        }
        for i in np.flatnonzero(counts).tolist()
    ]
    return {
        "tokens": len(probabilities),
        "accuracy": float(right.sum() / counts.sum()),
        "mean_probability": float(sums.sum() / counts.sum()),
        "expected_calibration_error": float(np.abs(right - sums).sum() / counts.sum()),
        "bins": bins,
    }

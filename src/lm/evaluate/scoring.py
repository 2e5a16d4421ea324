"""Load a model as it was trained, and score every token of a text with it; the caller divides by the text's bytes."""

from pathlib import Path

import numpy as np
import torch

from lm.core.errors import DataError, IntegrityError
from lm.core.files import read_json
from lm.exact.threads import ThreadTuner
from lm.model.causality import check_causality, check_logits
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import read_device
from lm.model.score import score_tokens, window_losses
from lm.model.weights import RECORD, load_trained, recorded_numerics
from lm.tokens.tokenfile import TokenFile

# Tokens scored at a time; in fast numerics the number affects the last bits. Small batches leave a GPU idle. This many
# tokens take up to about 4 GiB on a GPU with 128 M parameters.
CPU_BATCH_TOKENS = 8192
GPU_BATCH_TOKENS = 32_768

# Non-overlapping windows. Each has one first token; this many give the mean loss of first tokens to about 0.2 nats.
NON_OVERLAPPING_WINDOWS = 256


def load_as_trained(models: Path) -> tuple[Gemma3Model, dict]:
    """Return the best model of a folder and its record.

    It computes in the numerics of its training, on the device of runtime.yaml.
    """
    numerics = recorded_numerics(read_json(models / RECORD))
    return load_trained(models, read_device(), numerics)


def score(
    model: Gemma3Model,
    validation: TokenFile,
    seq_len: int,
    stride: int,
    cores: ThreadTuner,
    wanted: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return every token's nats (N,) and its position (N,) in the window that scored it; windows move by `stride`.

    With `wanted` (N,) bool, only windows that score a wanted token are computed, and other tokens may be NaN. Raise
    IntegrityError if a prediction of the model depends on a later token or on other windows, or is not what is scored,
    and DataError for losses that are not finite.
    """
    batch_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else GPU_BATCH_TOKENS
    batch_size = max(1, batch_tokens // seq_len)
    check_logits(model, validation, seq_len, torch.float32)
    check_causality(model, validation, seq_len, batch_size, torch.float32)
    first_batch = losses_of_first_batch(model, validation, seq_len, batch_size)
    losses, positions = score_tokens(model, validation, seq_len, stride, batch_size, torch.float32, cores.adapt, wanted)
    check_forgets(model, validation, first_batch, losses_of_first_batch(model, validation, seq_len, batch_size))
    own = losses if wanted is None else losses[wanted]
    if not np.isfinite(own).all():
        count = np.count_nonzero(~np.isfinite(own))
        raise DataError(f"{validation.path}: {count} of {len(own)} losses are not finite")
    return losses, positions


def losses_of_first_batch(model: Gemma3Model, validation: TokenFile, seq_len: int, batch_size: int) -> np.ndarray:
    """Return the nats (B, T) of the first windows of a text."""
    seq_len = min(seq_len, len(validation.ids))
    starts = np.arange(0, len(validation.ids) - seq_len + 1, seq_len)[:batch_size]
    return window_losses(model, validation, starts, seq_len, torch.float32).cpu().numpy()


def check_forgets(model: Gemma3Model, validation: TokenFile, before: np.ndarray, after: np.ndarray) -> None:
    """Raise IntegrityError if losses differ after the whole text was scored; fast numerics may round differently."""
    bound = 0.0 if model.numerics == "exact" else np.finfo(np.float32).eps ** 0.5
    differs = np.abs(after - before) > bound * np.maximum(1, np.abs(before))
    if differs.any():
        row, column = np.argwhere(differs)[0]
        token = row * before.shape[1] + column
        found = f"the loss of token {token} is {before[row, column]:.6g} before the text is scored"
        later = f"{after[row, column]:.6g} after it: the model remembers what it read, so its losses mean nothing"
        raise IntegrityError(f"{validation.path}: {found}, and {later}; correct the code of src/lm/model")

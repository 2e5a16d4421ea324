"""Score the requests of lm-eval's tasks with lm.model, and compare the log-likelihoods."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from lm.core.errors import IntegrityError
from lm.model.gemma3 import Gemma3Model
from lm.model.score import score_tokens, score_windows
from lm.model.weights import RECORD, WEIGHTS, save_tensors
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile
from tools.common import paths
from tools.common.hugging_face import read_exported_record, read_pretrained

MAX_DIFFERENCE = 1e-4  # nats per token
BATCH_TOKENS = 4096


def tokens_of(tokenizer: Tokenizer, text: str) -> TokenFile:
    """Return the ids of a text, without an end-of-text id, as a token file has them."""
    ids = np.array(tokenizer.encode(text))
    return TokenFile(Path(), ids, {"tokenizer": {"eot_id": tokenizer.eot_id}})


def score_text(model: Gemma3Model, tokenizer: Tokenizer, seq_len: int, text: str) -> np.ndarray:
    """Return the loss (N,) float32 in nats of each token of a text, in non-overlapping windows."""
    tokens = tokens_of(tokenizer, text)
    batch_size = max(1, BATCH_TOKENS // seq_len)
    losses, _ = score_tokens(model, tokens, seq_len, seq_len, batch_size, torch.float32)
    return losses


def score_continuation(
    model: Gemma3Model, tokenizer: Tokenizer, seq_len: int, context: str, continuation: str
) -> np.ndarray:
    """Return the loss (n,) float32 in nats of each token of a continuation, all in the last window of the text.

    As in lm-eval, the context ends before its trailing white space and has as many tokens as by itself.
    """
    tokens = tokens_of(tokenizer, context + continuation)
    num_tokens = len(tokens.ids)
    num_continuation = num_tokens - len(tokenizer.encode(context.rstrip()))
    window_tokens = min(seq_len, num_tokens)
    starts = np.array([num_tokens - window_tokens])
    (losses,) = score_windows(model, tokens, starts, window_tokens, torch.float32)
    return losses[-num_continuation:]


def largest_difference(model: Gemma3Model, tokenizer: Tokenizer, seq_len: int, samples: list[dict]) -> float | None:
    """Return the largest difference in nats per token over the requests of a task; None if it only generates text."""
    differences = []
    for sample in samples:
        for texts, responses in zip(sample["arguments"], sample["resps"], strict=True):
            if isinstance(texts[-1], dict):  # the settings of a generation
                continue
            if len(texts) == 1:
                losses = score_text(model, tokenizer, seq_len, *texts)
                log_likelihood = responses[0]
            else:
                losses = score_continuation(model, tokenizer, seq_len, *texts)
                log_likelihood, _ = responses[0]  # and whether greedy sampling gives the continuation
            difference = log_likelihood + losses.sum(dtype=np.float64)
            differences.append(abs(difference) / len(losses))
    return float(max(differences)) if differences else None


def read_checked(export: Path) -> Gemma3Model:
    """Return the model of an exported folder. Raise IntegrityError if it is not the one that its record names."""
    model = read_pretrained(export)
    with tempfile.TemporaryDirectory() as folder:
        sha256 = save_tensors(Path(folder, WEIGHTS), dict(model.state_dict()))
    read_exported_record(export / RECORD, model, sha256)
    return model


def check_agreement(
    export: Path, model: Gemma3Model, seq_len: int, samples: dict[str, list[dict]]
) -> dict[str, float | None]:
    """Return `largest_difference` of each task by its name. Raise IntegrityError if one exceeds MAX_DIFFERENCE."""
    tokenizer = load_tokenizer(export / paths.TOKENIZER.name)
    differences = {name: largest_difference(model, tokenizer, seq_len, samples[name]) for name in samples}
    for name, difference in differences.items():
        if difference is not None and not difference <= MAX_DIFFERENCE:
            found = f"lm-eval and lm.model differ by {difference:.2g} nats per token"
            needed = f"it must be at most {MAX_DIFFERENCE}"
            advice = "install requirements.txt and requirements/lm-eval.txt, and export the model again"
            raise IntegrityError(f"{export}: {name}: {found}; {needed}; {advice}")
    return differences

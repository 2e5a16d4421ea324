"""Check that a reader of an exported model computes the loss that this project's code computes.

An export has weights and a shape. What a reader computes from them is its own code: transformers' Gemma 3. If the code
in src/lm/model was changed, the same weights are another model there.
"""

import contextlib
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.core.errors import IntegrityError
from lm.model.config import ModelConfig
from lm.model.gemma3 import Gemma3Model
from lm.model.score import token_losses
from tools.common.hugging_face import hugging_face_config, to_hugging_face

SCORED_TOKENS = 64
SEED = 0  # of the ids of the window
SAFETY = 4  # a seventh of the bound, at most, was seen of models whose code is not changed


class Agreement(NamedTuple):
    """The losses of one window under two implementations, in nats per token."""

    ours: float  # mean
    theirs: float  # mean
    largest_difference: float  # of one token
    allowed: float  # of one token: what rounding explains

    @property
    def is_close(self) -> bool:
        """Return True if rounding explains the difference; a loss that is not a number is never close."""
        return self.largest_difference <= self.allowed

    def __str__(self) -> str:
        losses = f"{self.theirs:.4f} nats per token of a test window, this code {self.ours:.4f}"
        return f"transformers computes {losses} (one token differs by {self.largest_difference:.1e})"


def draw_window(config: ModelConfig, eot_id: int) -> Tensor:
    """Return the ids (1, T + 1) int64 of one document: end-of-text, then ids drawn from all others.

    It is longer than the window of the sliding layers by SCORED_TOKENS, if the model takes as many.
    """
    length = min(config.max_seq_len, config.sliding_window + SCORED_TOKENS)
    generator = torch.Generator().manual_seed(SEED)
    others = torch.randint(config.vocab_size - 1, (1, length), generator=generator)
    others += others >= eot_id
    return torch.cat([torch.tensor([[eot_id]]), others], dim=1)


def compare_losses(model: Gemma3Model, theirs, eot_id: int) -> Agreement:
    """Return the losses of the last SCORED_TOKENS of a window under `model` and under a Gemma3ForCausalLM.

    Both are in float32 on the CPU; `model` computes in the numerics of its training.
    """
    ids = draw_window(model.config, eot_id)
    inputs = ids[:, :-1]
    targets = ids[:, 1:][:, -SCORED_TOKENS:]
    with torch.no_grad():
        our_nats = token_losses(model, inputs, targets)[0].double()
        logits = theirs(inputs, logits_to_keep=targets.shape[1]).logits[0]
        their_nats = F.cross_entropy(logits.double(), targets[0], reduction="none")
    difference = (our_nats - their_nats).abs().max().item()
    ours = our_nats.mean().item()
    return Agreement(ours, their_nats.mean().item(), difference, rounding_bound(model.config, ours))


def rounding_bound(config: ModelConfig, nats: float) -> float:
    """Return the difference of a token's loss that rounding to float32 can explain.

    The rounding errors of a sum grow with the square root of its terms, which are about `n_layer` times `d_model`.
    """
    rounding = torch.finfo(torch.float32).eps
    num_terms = config.n_layer * config.d_model
    return SAFETY * rounding * math.sqrt(num_terms) * max(1.0, nats)


def check_reader(path: Path, model: Gemma3Model, theirs, eot_id: int) -> None:
    """Raise IntegrityError if `theirs`, read from what is to become `path`, computes other losses than `model`."""
    agreement = compare_losses(model, theirs, eot_id)
    if not agreement.is_close:
        why = "the code in src/lm/model is not the Gemma 3 that readers have, and nothing was written"
        remedy = "undo the change of that code (`git diff src/lm/model` shows it) and train again, or do not export"
        raise IntegrityError(f"{path}: {agreement}: {why}; {remedy}")


def build_with_transformers(model: Gemma3Model):
    """Return a Gemma3ForCausalLM of the shape and the weights of a model."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(model.config)))
    # The head is the embedding, so that its name is missing.
    theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    return theirs.eval()


def open_with_transformers(folder: Path, **options):
    """Return the Gemma3ForCausalLM of a folder in float32, without a word; code and pickled weights are not read."""
    from transformers import Gemma3ForCausalLM

    with _silent():
        model = Gemma3ForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, **options
        )
    return model.eval()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Let transformers print neither progress nor warnings; an error still has its exception."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)

"""Check that losses are valid: predictions ignore later tokens, and the losses scored are those of the logits.

See lm.model.score for the legend.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lm.core.errors import IntegrityError
from lm.model.config import ModelConfig
from lm.model.machine import copy_to
from lm.model.score import inputs_and_targets, scoring, token_losses
from lm.tokens.tokenfile import TokenFile

NUM_LOGITS = 32  # positions whose logits are compared
SEED = 0  # of the tokens that replace later ones
SAFETY = 4  # in fast numerics, equal shapes have given equal bits wherever this was tried


def check_causality(model, tokens: TokenFile, seq_len: int, batch_size: int, dtype: torch.dtype) -> None:
    """Raise IntegrityError if the hidden state of a position changes when a later token of its window does.

    The window is computed as the text has it, and with other tokens after several positions, in batches (B, T) of the
    shape, dtype and numerics of the scoring. The hidden states must have equal bits in exact numerics; in fast, they
    may differ by `rounding_bound`.
    """
    # Take the first window of the text, and begin a document in its middle: a model may keep to its document.
    seq_len = min(seq_len, len(tokens.ids))
    first_window, _ = inputs_and_targets(tokens, np.zeros(1, np.int64), seq_len, torch.device("cpu"))
    window = first_window[0]
    window[seq_len // 2] = tokens.eot_id
    same = window.expand(batch_size, -1)

    # Compare each batch of changed windows with the window itself.
    bound = 0.0 if model.numerics == "exact" else rounding_bound(model.config, dtype)
    expected = hidden_states(model, same, dtype)
    largest = expected.abs().amax(-1)  # (B, T)
    cuts = cut_positions(seq_len, model.config.sliding_window)
    for begin in range(0, len(cuts), batch_size):
        last_kept = np.resize(cuts[begin : begin + batch_size], batch_size)  # repeats some to fill the batch
        is_kept = torch.arange(seq_len) <= torch.from_numpy(last_kept)[:, None]
        changed = torch.where(is_kept, same, other_ids(same, model.config.vocab_size))
        difference = (hidden_states(model, changed, dtype) - expected).abs().amax(-1)
        knows_later_tokens = (difference > bound * largest).cpu() & is_kept
        if knows_later_tokens.any():
            positions, rows = knows_later_tokens.T.nonzero(as_tuple=True)
            position = int(positions[0])
            found = f"its prediction at position {position} of a window of {seq_len} tokens (from 0)"
            later = f"changes with the tokens after position {last_kept[rows[0]]}, so its losses mean nothing"
            remedy = "correct the code of src/lm/model (`git diff src/lm/model`), and train again"
            raise IntegrityError(f"{tokens.path}: the model sees the future of this text: {found} {later}; {remedy}")


def check_logits(model, tokens: TokenFile, seq_len: int, dtype: torch.dtype) -> None:
    """Raise IntegrityError if the losses that are scored are not those of the logits that the model returns.

    `token_losses` multiplies the hidden states by the head's matrix, a part at a time. So a change of the method `head`
    alone would not be scored.
    """
    num_positions = min(NUM_LOGITS, seq_len, len(tokens.ids))
    ids, targets = inputs_and_targets(tokens, np.zeros(1, np.int64), num_positions, model.device)
    with scoring(model, dtype):
        scored = token_losses(model, ids, targets)[0].double()
        logits = model(ids)[0].double()
    returned = F.cross_entropy(logits, targets[0], reduction="none")
    most = torch.finfo(dtype).eps ** 0.5 * returned.abs().clamp(min=1)
    differs = (scored - returned).abs() > most
    if differs.any():
        first = int(differs.nonzero()[0])
        found = f"the loss of token {first} is {scored[first]:.6g}, by the logits of the model {returned[first]:.6g}"
        raise IntegrityError(
            f"{tokens.path}: {found}; let token_losses in src/lm/model/score.py compute as the head does"
        )


def cut_positions(seq_len: int, sliding_window: int) -> np.ndarray:
    """Return the positions (n,) of a window up to which predictions must not change if all later tokens do, ascending.

    They are the ends of the first blocks of each power of two, of the sliding window, of the document in the middle,
    and of all tokens but the last.
    """
    powers_of_two = 2 ** np.arange(seq_len.bit_length())
    middle = seq_len // 2
    others = [sliding_window - 1, sliding_window, middle - 1, middle, seq_len - 2]
    cuts = np.unique(np.concatenate([powers_of_two - 1, others]))
    return cuts[(cuts >= 0) & (cuts < seq_len - 1)]


def other_ids(ids: Tensor, vocab_size: int) -> Tensor:
    """Return ids (B, T), each different from the one in `ids` (B, T)."""
    generator = torch.Generator().manual_seed(SEED)
    distance = torch.randint(1, vocab_size, ids.shape, generator=generator)
    return (ids + distance) % vocab_size


def hidden_states(model, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the hidden states (B, T, C) float32 from which ids (B, T) are scored."""
    with scoring(model, dtype):
        return model.hidden(copy_to(ids.contiguous(), model.device)).float()


def rounding_bound(config: ModelConfig, dtype: torch.dtype) -> float:
    """Return the difference of a hidden state that rounding explains, as a fraction of its largest number.

    A layer rounds sums of `d_model` terms in float32, and their results in `dtype`. Rounding errors grow with the
    square root of their number.
    """
    of_sums = torch.finfo(torch.float32).eps * math.sqrt(config.n_layer * config.d_model)
    of_results = torch.finfo(dtype).eps * math.sqrt(config.n_layer)
    return SAFETY * (of_sums + of_results)

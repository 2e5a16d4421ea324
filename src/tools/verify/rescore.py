"""Score random validation documents, and the windows that selected the best weights, again."""

import sys

import numpy as np
import torch

from lm.core.files import read_json, read_parquet
from lm.core.messages import say
from lm.evaluate.documents import mark_spread_windows, source_of_documents, sum_by_document
from lm.evaluate.scoring import load_as_trained, score
from lm.exact.threads import ThreadTuner
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import TokenFile, open_tokens
from lm.train.config import read_params
from lm.train.state import TrainingState
from lm.train.step import validation_loss
from tools.record.paths import AUDIT, DOCUMENT_LOSSES, EVALUATION_DETAILS, MODEL, MODELS, TOKENIZER, VALIDATION
from tools.verify.records import read_losses, wrong

RESCORED_TOKENS = 32_768  # a few seconds for the default model; the last document may go beyond
FAST_TOLERANCE = 1e-3  # largest relative difference of a loss in fast numerics between machines
LOSSES = ("nats", "model_selection_nats")


def rescore(seed: int) -> list[str]:
    """Compare recorded losses with those of the weights in data/models; return what this has shown.

    These are the losses of documents that `seed` draws, together RESCORED_TOKENS, and the validation loss of the best
    weights. They must have the same bits in exact numerics, and differ by FAST_TOLERANCE at most in fast numerics.
    Raise IntegrityError with the document or figure that differs.
    """
    recorded = read_losses()
    validation = open_tokens(VALIDATION)
    model, record = load_as_trained(MODELS)
    tolerance = 0.0 if model.numerics == "exact" else FAST_TOLERANCE
    compare_validation_loss(model, validation, record["best"]["val_loss"], tolerance)

    # Score the documents that the seed draws.
    details = read_json(EVALUATION_DETAILS)
    seq_len = details["window_tokens"]
    spans = validation.spans
    drawn = draw_documents(spans[:, 1] - spans[:, 0], seed)
    wanted = np.zeros(len(validation.ids), bool)
    for begin, end in spans[drawn]:
        wanted[begin:end] = True
    some = f"{len(drawn)} of {len(spans)} documents (--seed {seed})"
    say(f"rescore: {some}", file=sys.stderr)
    cores = ThreadTuner(model.numerics, adapts=model.numerics == "exact")
    losses, _ = score(model, validation, seq_len, details["stride_tokens"], cores, wanted)

    # Make the table of losses again, with losses for the drawn documents alone.
    audit = read_parquet(AUDIT / "contamination.parquet")
    selected = mark_spread_windows(validation, record["eval_tokens"], seq_len)
    token_bytes = load_tokenizer(TOKENIZER).bytes_of(validation.ids)
    again = sum_by_document(losses, selected, token_bytes, spans, audit["utf8_bytes"].to_numpy())
    again["contaminated_fraction"] = audit["contaminated_fraction"].to_numpy()
    again |= source_of_documents(validation)

    compare_tables(recorded, again, drawn, tolerance)
    how = f" within {FAST_TOLERANCE:g}" if tolerance else ""
    return [f"The weights in {MODELS} have the recorded validation loss, and losses of {some}{how}."]


def compare_validation_loss(model: Gemma3Model, validation: TokenFile, recorded: float, tolerance: float) -> None:
    """Raise IntegrityError if the loss that selected the best weights in training is not that of model.json."""
    params = read_params().train
    loss = validation_loss(TrainingState(model, []), validation, params, torch.float32)
    if not abs(loss - recorded) <= tolerance * loss:
        raise wrong(MODEL, f"best.val_loss is {recorded}; the weights beside it have {loss}", "train")


def draw_documents(num_tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the numbers of random documents that have about RESCORED_TOKENS together, given the tokens (D,) of all.

    The last drawn document may go beyond. If all documents have fewer tokens, all are drawn.
    """
    order = np.random.default_rng(seed).permutation(len(num_tokens))
    num_before = np.cumsum(num_tokens[order]) - num_tokens[order]
    return order[num_before < RESCORED_TOKENS]


def compare_tables(
    recorded: dict[str, np.ndarray], again: dict[str, np.ndarray], drawn: np.ndarray, tolerance: float
) -> None:
    """Raise IntegrityError with the first document that differs; losses are compared for the drawn documents only.

    tolerance: the largest relative difference of losses.
    """
    for name, values in again.items():
        if name not in recorded or len(recorded[name]) != len(values):
            found = f"has another number of documents than {VALIDATION}, or no column {name}"
            raise wrong(DOCUMENT_LOSSES, found, "eval")
        rows = drawn if name in LOSSES else np.arange(len(values))
        if name in LOSSES:
            is_other = ~(np.abs(recorded[name][rows] - values[rows]) <= tolerance * values[rows])
        else:
            is_other = recorded[name] != values
        if is_other.any():
            document = rows[is_other].min()
            here = f"{recorded[name][document]}; it must be {values[document]}, by the weights, tokens and audit"
            raise wrong(DOCUMENT_LOSSES, f"document {document} has {name} {here}", "eval")

"""Score a random part of the validation documents again, and compare the losses with the recorded evaluation."""

import numpy as np

from lm.core.errors import IntegrityError
from lm.core.files import read_parquet
from lm.core.params import read_section
from lm.evaluate.config import EvalParams
from lm.evaluate.documents import mark_spread_windows, source_of_documents, sum_by_document
from lm.evaluate.scoring import load_as_trained, score
from lm.exact.threads import ThreadTuner
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from tools.common.figures import AGAIN, fault_of_details, fault_of_metrics, read_losses
from tools.common.paths import (
    AUDIT,
    DOCUMENT_LOSSES,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    MODELS,
    PARAMS,
    TOKENIZER,
    VALIDATION,
)

RESCORED_TOKENS = 32_768  # a few seconds for the default model; the last document may go beyond
FAST_TOLERANCE = 1e-3  # by how much a loss in fast numerics may differ elsewhere, as a fraction of it
LOSSES = ("nats", "model_selection_nats")


def rescore(seed: int) -> None:
    """Compare the evaluation of the workspace with its weights, and the metrics with the evaluation.

    `seed` draws the documents, until they have RESCORED_TOKENS. Their losses must have the same bits in exact numerics,
    and differ by FAST_TOLERANCE at most in fast ones. Raise IntegrityError with the document or figure that differs.
    """
    if not DOCUMENT_LOSSES.exists():
        print(f"rescore: {DOCUMENT_LOSSES} is missing, so there is nothing to compare")
        return
    recorded = read_losses()

    # Score the documents that the seed draws.
    validation = open_tokens(VALIDATION)
    model, record = load_as_trained(MODELS)
    seq_len = record["seq_len"]
    stride = read_section(PARAMS, "eval", EvalParams).stride_tokens(seq_len)
    spans = validation.spans
    drawn = draw_documents(spans[:, 1] - spans[:, 0], seed)
    wanted = np.zeros(len(validation.ids), bool)
    for begin, end in spans[drawn]:
        wanted[begin:end] = True
    print(f"rescore: {len(drawn)} of {len(spans)} documents (--seed {seed})", flush=True)
    cores = ThreadTuner(model.numerics, adapts=model.numerics == "exact")
    losses, _ = score(model, validation, seq_len, stride, cores, wanted)

    # Make the table of losses again, with losses for the drawn documents alone.
    audit = read_parquet(AUDIT / "contamination.parquet")
    selected = mark_spread_windows(validation, record["eval_tokens"], seq_len)
    token_bytes = load_tokenizer(TOKENIZER).bytes_of(validation.ids)
    again = sum_by_document(losses, selected, token_bytes, spans, audit["utf8_bytes"].to_numpy())
    again["contaminated_fraction"] = audit["contaminated_fraction"].to_numpy()
    again |= source_of_documents(validation)

    # Compare the table, and what follows from it.
    tolerance = 0.0 if model.numerics == "exact" else FAST_TOLERANCE
    compare_tables(recorded, again, drawn, tolerance)
    windows = {"window_tokens": seq_len, "stride_tokens": stride}
    fault = fault_of_details(recorded, windows)
    if fault:
        raise IntegrityError(f"{EVALUATION_DETAILS}: {fault}; {AGAIN}")
    fault = fault_of_metrics()
    if fault:
        raise IntegrityError(f"{EVAL_METRICS}: {fault}; {AGAIN}")
    how = "have the recorded bits" if model.numerics == "exact" else f"are the recorded ones within {FAST_TOLERANCE:g}"
    print(f"the losses of these documents {how}; {EVALUATION_DETAILS} and {EVAL_METRICS} follow from {DOCUMENT_LOSSES}")


def draw_documents(num_tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the numbers of random documents, given the tokens (D,) of all: as many as have RESCORED_TOKENS together.

    A last document completes them. If all have fewer, all are drawn.
    """
    order = np.random.default_rng(seed).permutation(len(num_tokens))
    num_before = np.cumsum(num_tokens[order]) - num_tokens[order]
    return order[num_before < RESCORED_TOKENS]


def compare_tables(
    recorded: dict[str, np.ndarray], again: dict[str, np.ndarray], drawn: np.ndarray, tolerance: float
) -> None:
    """Raise IntegrityError with the first document of which a column differs: of those drawn, if it has losses.

    Losses may differ by `tolerance`, as a fraction.
    """
    for name, values in again.items():
        if name not in recorded or len(recorded[name]) != len(values):
            found = f"has another number of documents than {VALIDATION}, or no column {name}"
            raise IntegrityError(f"{DOCUMENT_LOSSES}: {found}; {AGAIN}")
        rows = drawn if name in LOSSES else np.arange(len(values))
        if name in LOSSES:
            is_other = ~(np.abs(recorded[name][rows] - values[rows]) <= tolerance * values[rows])
        else:
            is_other = recorded[name] != values
        if is_other.any():
            document = rows[is_other].min()
            here = f"{recorded[name][document]}; it must be {values[document]}, by the weights, tokens and audit"
            raise IntegrityError(f"{DOCUMENT_LOSSES}: document {document} has {name} {here}; {AGAIN}")

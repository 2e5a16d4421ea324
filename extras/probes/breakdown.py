"""Break the loss down by training count of the token and by length of the document."""

import numpy as np

from lm.evaluate.documents import summarize_documents

DECADES = 10 ** np.arange(16)


def loss_by_frequency(losses: np.ndarray, ids: np.ndarray, train_counts: np.ndarray) -> list[dict]:
    """Return a row for each decade of the training count of a token: 0, 1-9, 10-99, …

    `losses` (N,) in nats are of ids (N,), `train_counts` (V,) as `lm.tokens.tokenfile.count_ids`. A row has the ids of
    the decade, their number of tokens in N, the mean loss of these, and their fraction of the total loss.
    """
    decade_of = np.searchsorted(DECADES, train_counts, side="right")  # (V,)
    decades = decade_of[ids]
    num_tokens, nats = np.bincount(decades), np.bincount(decades, losses)
    return [
        {"count_from": int(DECADES[i - 1]) if i else 0, "count_to": int(DECADES[i] - 1),
         "entries": int(np.count_nonzero(decade_of == i)), "tokens": int(num_tokens[i]),
         "nats_per_token": float(nats[i] / num_tokens[i]), "loss_fraction": float(nats[i] / nats.sum())}
        for i in np.flatnonzero(num_tokens)
    ]  # fmt: skip


def loss_by_length(documents: dict[str, np.ndarray]) -> list[dict]:
    """Return a row for each octave of a document's tokens: 1, 2-3, 4-7, …; documents without text are left out.

    `documents` has the columns of `sum_by_document`. A row has the figures of `summarize_documents`, and the tokens.
    """
    kept = documents["utf8_bytes"] > 0
    tokens, nats, utf8_bytes = (documents[name][kept] for name in ("tokens", "nats", "utf8_bytes"))
    octave = np.frexp(tokens)[1] - 1  # of n: floor(log2 n), exactly
    rows = []
    for i in np.unique(octave).tolist():
        own = octave == i
        bounds = {"tokens_from": 2**i, "tokens_to": 2 ** (i + 1) - 1, "tokens": int(tokens[own].sum())}
        rows.append(bounds | summarize_documents(nats[own], utf8_bytes[own]))
    return rows

"""Sum the losses by document, and summarize them: the whole file, its sections, the sources of a mixture.

Legend: N tokens, D documents. Bits per byte divide the nats of all tokens, end-of-text tokens included, by ln 2 and by
the UTF-8 bytes of the text.
"""

import math

import numpy as np

from lm.core.errors import IntegrityError
from lm.evaluate.intervals import ratio_interval
from lm.tokens.ngrams import CLEAN_BELOW
from lm.tokens.tokenfile import TokenFile, sidecar_path
from lm.tokens.windows import model_selection_starts


def mark_model_selection(validation: TokenFile, eval_tokens: int, seq_len: int) -> np.ndarray:
    """Return (N,) bool: the tokens that selected the best model; none where `eval_tokens` is 0, as for an import."""
    selected = np.zeros(len(validation.ids), bool)
    if eval_tokens:
        starts = model_selection_starts(len(selected), eval_tokens, seq_len)
        selected[starts[:, None] + np.arange(seq_len)] = True
    return selected


def sum_by_document(
    losses: np.ndarray, selected: np.ndarray, token_bytes: np.ndarray, spans: np.ndarray, utf8_bytes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return columns (D,): each document's tokens, bytes and nats, and bytes and nats of its model-selection tokens.

    `utf8_bytes` (D,) are those of the texts. A tokenizer may change a text first: the model-selection tokens have the
    same fraction of both.
    """
    bytes_per_token_byte = utf8_bytes / np.maximum(sum_by_span(token_bytes, spans), 1)
    selected_bytes = np.rint(sum_by_span(token_bytes * selected, spans) * bytes_per_token_byte)
    return {
        "document": np.arange(len(spans)),
        "tokens": spans[:, 1] - spans[:, 0],
        "utf8_bytes": utf8_bytes,
        "nats": sum_by_span(losses, spans),
        "model_selection_nats": sum_by_span(losses * selected, spans),
        "model_selection_bytes": selected_bytes.astype(np.int64),
    }


def source_of_documents(validation: TokenFile) -> dict[str, np.ndarray]:
    """Return the column `source` (D,), the source of the mixture that holds each document; {} for a plain source.

    Raise IntegrityError if the sidecar counts other documents than the stream holds.
    """
    if "sources" not in validation.meta:
        return {}
    counts = {name: source["documents"] for name, source in validation.meta["sources"].items()}
    if sum(counts.values()) != len(validation.spans):
        counted = f"`sources` counts {sum(counts.values())} documents, the file holds {len(validation.spans)}"
        raise IntegrityError(f"{sidecar_path(validation.path)}: {counted}; run `dvc repro -f tokenize_val`")
    return {"source": np.repeat(np.array(list(counts), object), list(counts.values()))}


def summarize_documents(nats: np.ndarray, utf8_bytes: np.ndarray) -> dict:
    """Return bits per byte of documents (D,) with text, its standard error, and the number of these documents."""
    kept = utf8_bytes > 0
    summary = summarize(nats[kept], utf8_bytes[kept], utf8_bytes[kept])
    return {key: summary[key] for key in ("documents", "bits_per_byte", "bits_per_byte_se")}


def summarize_sources(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return {"sources": name → results} of the sources with text, in the stream's order; {} for a plain source."""
    nats = documents["nats"]
    utf8_bytes = documents["utf8_bytes"]
    sources = documents.get("source")
    if sources is None:
        return {}
    rows = {name: sources == name for name in dict.fromkeys(sources[utf8_bytes > 0])}
    return {"sources": {name: summarize_documents(nats[own], utf8_bytes[own]) for name, own in rows.items()}}


def summarize_sections(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return bits per byte of the tokens that selected the model, of all others, and of the clean documents."""
    nats = documents["nats"]
    utf8_bytes = documents["utf8_bytes"]
    model_selection_nats = documents["model_selection_nats"]
    model_selection_bytes = documents["model_selection_bytes"]
    clean = documents["contaminated_fraction"] < CLEAN_BELOW
    sections = {
        "model_selection": (model_selection_nats, model_selection_bytes),
        "held_out": (nats - model_selection_nats, utf8_bytes - model_selection_bytes),
        "clean": (nats[clean], utf8_bytes[clean]),
    }
    # Some sections may be empty. Leave them out.
    return {name: summarize_documents(*sums) for name, sums in sections.items() if sums[1].any()}


def make_details(documents: dict[str, np.ndarray], non_overlapping: np.ndarray) -> dict:
    """Return the results of the whole file and of its sections."""
    details = summarize_file(documents)
    nats_non_overlapping = float(non_overlapping.sum(dtype="float64"))
    details["bits_per_byte_non_overlapping"] = nats_non_overlapping / math.log(2) / details["utf8_bytes"]
    return details | summarize_sections(documents) | summarize_sources(documents)


def summarize_file(documents: dict[str, np.ndarray]) -> dict:
    """Return the results of all documents, with the 95 % interval of bits per byte over documents."""
    summary = summarize(documents["nats"], documents["tokens"], documents["utf8_bytes"])
    estimate = ratio_interval(documents["nats"] / math.log(2), documents["utf8_bytes"], np.random.default_rng(1))
    return summary | {"bits_per_byte_interval": [estimate.low, estimate.high]}


def sum_by_span(values: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return the sums (D,) float64 of `values` (N,) over the documents, given their spans (D, 2) in tokens.

    The spans are those of `TokenFile`: each begins where the one before ends and holds a token at least. For a moment
    it takes 8 bytes for each value.
    """
    # From each start to the next one; the last sum would go on to the end of the values.
    starts = spans[:, 0]
    end = spans[-1, 1]
    return np.add.reduceat(values[:end], starts, dtype=np.float64)


def summarize(nats: np.ndarray, num_tokens: np.ndarray, utf8_bytes: np.ndarray) -> dict:
    """Return loss figures over documents, given the nats, tokens and bytes of each (D,).

    The standard error over documents is that of a linearized ratio (Cochran, Sampling Techniques, 6.4), None for one.
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
    """Return Σ numerator / Σ denominator and its standard error over the units."""
    ratio = float(numerator.sum() / denominator.sum())
    count = len(numerator)
    if count < 2:
        return ratio, None
    residuals = numerator - ratio * denominator
    return ratio, float(math.sqrt(count / (count - 1) * np.square(residuals).sum()) / denominator.sum())


def loss_by_position(losses: np.ndarray, positions: np.ndarray) -> list[tuple[int, float, int]]:
    """Return (last position, mean nats, tokens) for octaves of the position in the window: 1, 2, 3-4, 5-8, …"""
    octaves = np.ceil(np.log2(positions + 1)).astype(np.int64)
    counts = np.bincount(octaves)
    sums = np.bincount(octaves, weights=losses)
    last = int(positions.max()) + 1
    return [(min(2**i, last), float(sums[i] / counts[i]), int(counts[i])) for i in np.flatnonzero(counts).tolist()]

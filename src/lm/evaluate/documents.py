"""Sum the losses by document, and summarize them: the whole file, its sections, the sources of a mixture.

Legend: N tokens, D documents. Bits per byte divide the nats of all tokens, end-of-text tokens included, by ln 2 and by
the UTF-8 bytes of the text.
"""

import math

import numpy as np

from evidence.intervals import ratio_interval
from lm.core.errors import IntegrityError
from lm.tokens.ngrams import CLEAN_BELOW
from lm.tokens.tokenfile import TokenFile, sidecar_path
from lm.tokens.windows import model_selection_starts


def mark_spread_windows(validation: TokenFile, num_tokens: int, seq_len: int) -> np.ndarray:
    """Return (N,) bool: the tokens of windows that are spread evenly over the file and have about `num_tokens`.

    With num_tokens = train.eval_tokens, these are the model-selection tokens. An imported model has 0, so none.
    """
    marked = np.zeros(len(validation.ids), bool)
    if num_tokens:
        starts = model_selection_starts(len(marked), num_tokens, seq_len)
        positions = starts[:, None] + np.arange(seq_len)
        marked[positions] = True
    return marked


def sum_by_document(
    losses: np.ndarray, selected: np.ndarray, token_bytes: np.ndarray, spans: np.ndarray, utf8_bytes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return columns (D,): each document's tokens, bytes and nats, and bytes and nats of its model-selection tokens.

    utf8_bytes: bytes of each text, (D,). A tokenizer may change a text, so the bytes of its tokens are scaled to those
    of the text.
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
    sources = validation.meta["sources"]
    names = np.array(list(sources), object)
    counts = [source["documents"] for source in sources.values()]
    if sum(counts) != len(validation.spans):
        difference = f"`sources` counts {sum(counts)} documents, the file holds {len(validation.spans)}"
        raise IntegrityError(f"{sidecar_path(validation.path)}: {difference}; run `dvc repro -f tokenize_val`")
    return {"source": np.repeat(names, counts)}


def summarize_documents(nats: np.ndarray, utf8_bytes: np.ndarray) -> dict:
    """Return bits per byte of documents (D,) with text, its standard error, and the number of these documents."""
    kept = utf8_bytes > 0
    summary = summarize(nats[kept], utf8_bytes[kept], utf8_bytes[kept])
    return {key: summary[key] for key in ("documents", "bits_per_byte", "bits_per_byte_se")}


def summarize_sources(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return {"sources": name → results} of the sources with text, in the stream's order; {} for a plain source."""
    if "source" not in documents:
        return {}
    nats = documents["nats"]
    utf8_bytes = documents["utf8_bytes"]
    source_of_document = documents["source"]
    names = dict.fromkeys(source_of_document[utf8_bytes > 0])  # each once, in order
    summaries = {}
    for name in names:
        is_own = source_of_document == name
        summaries[name] = summarize_documents(nats[is_own], utf8_bytes[is_own])
    return {"sources": summaries}


def summarize_sections(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return bits per byte of the tokens that selected the model, of all others, and of the clean documents."""
    nats = documents["nats"]
    utf8_bytes = documents["utf8_bytes"]
    model_selection_nats = documents["model_selection_nats"]
    model_selection_bytes = documents["model_selection_bytes"]
    clean = documents["contaminated_fraction"] < CLEAN_BELOW
    if "seen_by_start" in documents:
        clean &= ~documents["seen_by_start"]
    sections = {
        "model_selection": (model_selection_nats, model_selection_bytes),
        "held_out": (nats - model_selection_nats, utf8_bytes - model_selection_bytes),
        "clean": (nats[clean], utf8_bytes[clean]),
    }
    summaries = {}
    for name, (section_nats, section_bytes) in sections.items():
        if section_bytes.any():  # leave out empty sections
            summaries[name] = summarize_documents(section_nats, section_bytes)
    return summaries


def make_details(documents: dict[str, np.ndarray], overlapping: np.ndarray, non_overlapping: np.ndarray) -> dict:
    """Return the results of the whole file and of its sections.

    overlapping, non_overlapping: nats (M,) of the tokens that were scored in both kinds of windows.
    """
    both = {
        "tokens": len(non_overlapping),
        "nats_per_token": float(non_overlapping.mean(dtype="float64")),
        "nats_per_token_overlapping": float(overlapping.mean(dtype="float64")),
    }
    details = summarize_file(documents) | {"non_overlapping": both}
    return details | summarize_sections(documents) | summarize_sources(documents)


def metrics_of(details: dict) -> dict[str, float]:
    """Return the headline metrics; the other results are details."""
    clean = {"clean_bpb": details["clean"]["bits_per_byte"]} if "clean" in details else {}
    return {"bits_per_byte": details["bits_per_byte"], "bpb_se": details["bits_per_byte_se"], **clean}


def describe_seen(details: dict) -> str:
    """Return how many documents the start was trained on: "seen by the start: 2 of 5 documents"; "" if unknown."""
    if "seen_by_start" not in details:
        return ""
    seen = details["seen_by_start"]
    found = "unknown" if seen is None else f"{seen:,} of {details['documents']:,} documents"
    return f"seen by the start: {found}"


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
    standard_error_of_sum = math.sqrt(count / (count - 1) * np.square(residuals).sum())
    return ratio, float(standard_error_of_sum / denominator.sum())


def loss_by_position(losses: np.ndarray, positions: np.ndarray) -> list[tuple[int, float, int]]:
    """Return (last position, mean nats, tokens) for octaves of the position in the window: 1, 2, 3-4, 5-8, …"""
    octaves = np.ceil(np.log2(positions + 1)).astype(np.int64)
    counts = np.bincount(octaves)
    sums = np.bincount(octaves, weights=losses)
    last_of_all = int(positions.max()) + 1
    rows = []
    for octave in np.flatnonzero(counts).tolist():
        last = min(2**octave, last_of_all)
        mean = float(sums[octave] / counts[octave])
        rows.append((last, mean, int(counts[octave])))
    return rows

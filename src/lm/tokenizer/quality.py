"""Measure how a vocabulary fits a text: bytes per token by script and source, unused entries, longest tokens."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile, count_ids

SCRIPTS = ("latin", "cyrillic", "cjk", "digits", "punctuation", "white_space", "other", "incomplete")
NUM_LONGEST = 10
# Patterns for pyarrow's tables of Unicode, because Python's own differ between its versions.
_FIRST_CHARACTER = {
    "white_space": r"$",  # there is none
    "digits": r"\p{N}",
    "punctuation": r"[\p{P}\p{S}]",
    "latin": r"\p{Latin}",
    "cyrillic": r"\p{Cyrillic}",
    "cjk": r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}]",
}


def measure_vocabulary(train: TokenFile, validation: TokenFile, tokenizer: Tokenizer) -> dict:
    """Return the data card's entry on the tokenizer: results on the training text, and on the sources of validation."""
    counts = count_ids(train.ids, train.vocab_size)
    texts = tokenizer.token_texts
    sizes = tokenizer.token_bytes
    num_tokens = int(counts[sizes > 0].sum())  # without the ends of documents
    used = np.flatnonzero(counts)
    num_unused = tokenizer.vocab_size - len(used)

    # The longest entries that occur.
    with_text = used[sizes[used] > 0]
    longest = with_text[np.argsort(-sizes[with_text], kind="stable")[:NUM_LONGEST]].tolist()

    card = {
        "scripts": count_scripts(counts, texts),
        "unused_entries": num_unused,
        "unused_fraction": num_unused / tokenizer.vocab_size,
        "single_byte_fraction": int(counts[sizes == 1].sum()) / max(1, num_tokens),
        "longest": [
            {"text": texts[i].decode("utf-8", "replace"), "utf8_bytes": int(sizes[i]), "count": int(counts[i])}
            for i in longest
        ],
    }
    sources = count_sources(validation)
    return card | ({"validation_sources": sources} if sources else {})


def count_scripts(counts: np.ndarray, texts: dict[int, bytes]) -> dict[str, dict]:
    """Return each script's tokens and bytes per token, given how often each id occurs (V,)."""
    num_tokens = Counter()
    num_bytes = Counter()
    used = [token_id for token_id in np.flatnonzero(counts).tolist() if texts.get(token_id)]
    scripts = scripts_of([texts[token_id] for token_id in used])
    for token_id, script in zip(used, scripts, strict=True):
        num_tokens[script] += int(counts[token_id])
        num_bytes[script] += int(counts[token_id]) * len(texts[token_id])
    found = [script for script in SCRIPTS if num_tokens[script]]
    return {
        script: {"tokens": num_tokens[script], "bytes_per_token": num_bytes[script] / num_tokens[script]}
        for script in found
    }


def scripts_of(tokens: list[bytes]) -> list[str]:
    """Return the entry of SCRIPTS of each token: the script of its first character other than white space.

    `incomplete`: not whole characters in UTF-8, such as one byte of three. `punctuation` includes symbols.
    """
    texts = pc.utf8_ltrim_whitespace(pa.array([_decode(token) for token in tokens], pa.string()))
    is_script = [pc.match_substring_regex(texts, f"^{pattern}") for pattern in _FIRST_CHARACTER.values()]
    scripts = pc.case_when(pc.make_struct(pc.is_null(texts), *is_script), "incomplete", *_FIRST_CHARACTER, "other")
    return scripts.to_pylist()


def _decode(token: bytes) -> str | None:
    """Return the text of a token, None if it is not whole characters."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return None


def count_sources(validation: TokenFile) -> dict[str, dict]:
    """Return the tokens and bytes per token of each source of a mixture's validation file, {} without a mixture.

    The sources follow one another in the file; `sources` of the sidecar has the documents and bytes of each.
    """
    sources = validation.meta.get("sources") or {}
    bounds = np.concatenate([[0], validation.spans[:, 1]])  # of the documents
    counted = {}
    begin = 0
    for name, source in sources.items():
        end = begin + source["documents"]
        num_tokens = int(bounds[end] - bounds[begin])
        if num_tokens > 0:
            counted[name] = {"tokens": num_tokens, "bytes_per_token": source["utf8_bytes"] / num_tokens}
        begin = end
    return counted

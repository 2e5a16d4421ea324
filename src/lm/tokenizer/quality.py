"""How well a vocabulary fits a text: bytes per token by script and source, unused entries, longest tokens."""

import unicodedata
from collections import Counter

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile, count_ids

SCRIPTS = ("latin", "cyrillic", "cjk", "digits", "punctuation", "white_space", "other", "incomplete")
NUM_LONGEST = 10
_SCRIPT_OF_NAME = {"LATIN": "latin", "CYRILLIC": "cyrillic"} | dict.fromkeys(
    ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"), "cjk"
)


def measure_vocabulary(train: TokenFile, validation: TokenFile, tokenizer: Tokenizer) -> dict:
    """Return the card's entry on the tokenizer: results on the training text, and on the sources of validation."""
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
    for token_id in np.flatnonzero(counts).tolist():
        if text := texts.get(token_id):
            script = script_of(text)
            num_tokens[script] += int(counts[token_id])
            num_bytes[script] += int(counts[token_id]) * len(text)
    found = [script for script in SCRIPTS if num_tokens[script]]
    return {
        script: {"tokens": num_tokens[script], "bytes_per_token": num_bytes[script] / num_tokens[script]}
        for script in found
    }


def script_of(token: bytes) -> str:
    """Return which of SCRIPTS a token belongs to: that of its first character other than white space.

    `incomplete`: not whole characters in UTF-8, such as one byte of three. `punctuation` includes symbols.
    """
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return "incomplete"
    character = text.lstrip()[:1]
    if not character:
        return "white_space"
    category = unicodedata.category(character)
    if category[0] == "N":
        return "digits"
    if category[0] in "PS":
        return "punctuation"
    return _SCRIPT_OF_NAME.get(unicodedata.name(character, "").partition(" ")[0], "other")


def count_sources(validation: TokenFile) -> dict[str, dict]:
    """Return the tokens and bytes per token of each source of a mixture's validation file, {} for another source.

    The sources follow one another there; `sources` of the sidecar tells the documents and bytes of each.
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

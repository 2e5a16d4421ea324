"""Texts on which gigatoken is compared with tiktoken: those of `fuzzed_texts` with more pieces, long runs, characters.

More pieces are contractions, kinds of space, digits, code and scripts.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.text.documents import Chunk
from lm.tokenizer.gigatoken_encoder import END, UNKNOWN_CHARACTER, Gigatoken
from lm.tokenizer.load import Tokenizer, well_formed
from support.tokenizer_cases import PIECES, fuzzed_texts

MORE_PIECES = [
    *("<|fim_prefix|>", "Ġ", "'ve", "'re", "'d", "'m", "'S", "'LL", "''s", "'l", "'v", "don't"),
    *("  ", "\n\n", "\x0b", "\x0c", "\u1680", "\u202f", "\u205f", "\u180e", "Ⅷ", "½", "²", "⑳"),
    *("Hello", "camelCase", "snake_case", "ALLCAPS", "ǅ", "->", "::", "#include", "ไทย", "\ufffd"),
]


def hard_texts(num_texts: int, seed: int) -> list[str]:
    """Return fuzzed texts of all pieces, and a long run of each."""
    pieces = [*PIECES, *MORE_PIECES]
    runs = [piece * 999 + "x" for piece in pieces]
    return [*fuzzed_texts(num_texts, seed, pieces), *runs]


def scalars() -> list[str]:
    """Return every character that UTF-8 can hold, but END."""
    surrogates = range(0xD800, 0xE000)
    return [chr(code) for code in range(0x110000) if code not in surrogates and chr(code) != END]


def known(texts: list[str]) -> list[str]:
    """Return the texts without characters that only tiktoken may encode."""
    is_unknown = pc.match_substring_regex(pa.array(texts, pa.large_string()), UNKNOWN_CHARACTER)
    return [text for text, unknown in zip(texts, is_unknown.to_pylist(), strict=True) if not unknown]


def chunk_of(texts: list[str], first_document: int = 0) -> Chunk:
    """Return a chunk of these texts alone, well formed."""
    texts = [well_formed(text) for text in texts]
    return Chunk(
        texts=pa.array(texts, pa.large_string()),
        first_document=first_document,
        characters=sum(len(text) for text in texts),
        utf8_bytes=sum(len(text.encode()) for text in texts),
        sources={},
    )


def texts_that_differ(gigatoken: Gigatoken, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Return the texts to which gigatoken gives other ids than tiktoken."""
    tiktoken_ids, lengths = tokenizer.encode_documents(texts)
    by_tiktoken = np.split(tiktoken_ids, np.cumsum(lengths)[:-1])

    gigatoken_ids = gigatoken.encode_texts(texts)
    after_ends = np.flatnonzero(gigatoken_ids == tokenizer.eot_id) + 1
    by_gigatoken = np.split(gigatoken_ids, after_ends)[:-1]

    differ = []
    for text, expected, found in zip(texts, by_tiktoken, by_gigatoken, strict=True):
        if not np.array_equal(expected, found):
            differ.append(text)
    return differ

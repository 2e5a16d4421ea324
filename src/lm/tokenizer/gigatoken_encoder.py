"""Encode chunks of documents with gigatoken: tiktoken's ids, many times faster (README, "Speed").

tiktoken defines the ids, because other programs use it. gigatoken knows the letters of Unicode 17 and tiktoken those of
Unicode 16. So tiktoken encodes each chunk with a character that is unknown to pyarrow, whose Unicode is older.
No other difference was found in fuzzed texts.
"""

import sys
from typing import Any

import numpy as np
import pyarrow.compute as pc

from lm.text.documents import Chunk
from lm.tokenizer.load import RANKS, Tokenizer
from lm.tokenizer.pretokenize import PATTERN
from lm.tokenizer.round_trip import check_ids

# gigatoken encodes a whole chunk as one text, in which this noncharacter ends each document: a special token with the
# id eot_id.
END = "\U0010ffff"

# The characters that only tiktoken may encode: those without a category in pyarrow's Unicode, which END is too.
UNKNOWN_CHARACTER = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{C}]"

# Texts that both encode when a tokenizer is opened.
PROBES = [
    "The quick brown fox's jumping; they'll don't 'S ''s I'VE",
    "  two  spaces\n\n\ttab\r\n trailing  ",
    "x = [0.5, 12345];  // snake_case, camelCase, #include <a->b>::c",
    "naïve Ǆ straße ½ Ⅷ ² \u00a0\u3000 ไทย 漢字かな العربية हिन्दी 🙂👩‍💻 e\u0301",
    "a" * 999 + " " * 999 + "!" * 999,
    "<|endoftext|>",
    "",
]

# gigatoken remembers every word, in up to 9 bytes per byte of text. After this much text a new instance replaces it.
RENEW_AFTER_BYTES = 256 << 20


def open_gigatoken(tokenizer: Tokenizer) -> "Gigatoken | None":
    """Return gigatoken for a byte-level BPE of GPT-2's pattern; None for others, or if its ids are not tiktoken's."""
    if tokenizer.meta["pattern"] != PATTERN:
        return None
    gigatoken = Gigatoken(tokenizer)
    expected, _ = tokenizer.encode_documents(PROBES)
    if np.array_equal(gigatoken.encode_texts(PROBES), expected):
        return gigatoken
    problem = "gigatoken gives other ids than tiktoken"
    print(f"warning: {problem}; encoding with tiktoken alone, many times slower", file=sys.stderr)
    return None


class Gigatoken:
    """gigatoken with a tokenizer's ranks; only one thread at a time may call `encode`."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._renew()

    def encode(self, chunk: Chunk) -> np.ndarray:
        """Return the ids (N,) of a chunk's documents, each followed by eot_id."""
        texts = chunk.texts.to_pylist()
        is_ascii = chunk.characters == chunk.utf8_bytes
        if is_ascii or not pc.any(pc.match_substring_regex(chunk.texts, UNKNOWN_CHARACTER)).as_py():
            ids = self.encode_texts(texts)
        else:
            ids, _ = self.tokenizer.encode_documents(texts)
        check_ids(ids, chunk, self.tokenizer)
        return ids

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """Return gigatoken's ids (N,) of texts without END, each followed by eot_id."""
        if not texts:
            return np.empty(0, self.tokenizer.dtype)
        if self._text_bytes >= RENEW_AFTER_BYTES:
            self._renew()
        end = END.encode()  # joined as bytes: with END in it, a string would have 4 bytes for each character
        content = end.join([text.encode() for text in texts]) + end
        self._text_bytes += len(content)
        # Of gigatoken's entry points this one lets other threads run and needs no awkward arrays.
        source = self._library.BytesSource(content)
        rows, _ = self._backend.encode_batch_padded(source, pad_id=0, parallel=False)
        return rows[0].astype(self.tokenizer.dtype)

    def _renew(self) -> None:
        """Create a new gigatoken after the memory of the old one is free."""
        import gigatoken  # other tokenizers do not need it

        self._library = gigatoken
        self._backend: Any = None
        self._text_bytes = 0
        ranks = self.tokenizer.folder / RANKS
        ends = {END: self.tokenizer.eot_id}
        self._backend = gigatoken.Tokenizer.from_tiktoken(ranks, pretokenizer="gpt2", special_tokens=ends)

"""Encode chunks of documents with gigatoken: tiktoken's ids, many times faster (README, "Speed").

tiktoken stays the definition of the ids, because other programs use it; gigatoken is young. The fuzzer of
tests/support/fuzz.py found one difference between the versions in COMPARED: gigatoken has the letters of Unicode 17,
tiktoken those of Unicode 16. So tiktoken encodes every document with a character that pyarrow, which has an older
Unicode, does not know. Both encode a sample of the others. After a GigatokenError the caller encodes everything again
with tiktoken alone.
"""

import importlib.metadata
import sys
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from lm.text.documents import Chunk
from lm.tokenizer.load import RANKS, Tokenizer
from lm.tokenizer.pretokenize import PATTERN
from lm.tokenizer.round_trip import check_ids

COMPARED = {"gigatoken": "0.10.0", "tiktoken": "0.14.0"}
SAMPLE_FIRST, SAMPLE_EVERY = 32, 400  # both encode the first 32 documents, then one in 400

# gigatoken encodes a whole chunk as one text, in which this noncharacter ends each document: a special token with the
# id eot_id.
END = "\U0010ffff"

# The characters that only tiktoken may encode, END among them: those without a category in pyarrow's Unicode.
UNKNOWN_CHARACTER = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{C}]"

# gigatoken remembers every word, in up to 9 bytes per byte of text, so endless new words would fill the memory. A new
# one (50 ms) replaces it when the process uses more than this, apart from its text, and has encoded some text.
RENEW_ABOVE_RESIDENT_BYTES = 280 << 20
RENEW_AFTER_TEXT_BYTES = 12 << 20


class GigatokenError(Exception):
    """gigatoken failed or gave other ids than tiktoken; do not keep anything that it encoded."""


def open_gigatoken(tokenizer: Tokenizer) -> "Gigatoken | None":
    """Return gigatoken for a byte-level BPE, or None if it cannot be used; print a warning if it should work."""
    if tokenizer.meta["pattern"] != PATTERN:
        return None
    try:
        installed = {name: importlib.metadata.version(name) for name in COMPARED}
        if installed == COMPARED:
            import gigatoken

            return Gigatoken(tokenizer, gigatoken)
        reason = f"installed: {_names_of(installed)}, compared: {_names_of(COMPARED)}"
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        reason = f"gigatoken cannot be used ({type(error).__name__}: {error})"
    print(f"warning: {reason}; encoding with tiktoken alone: the same ids, many times slower", file=sys.stderr)
    return None


def _names_of(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


class Gigatoken:
    """gigatoken with a tokenizer's ranks; only one thread at a time may call `encode`."""

    def __init__(self, tokenizer: Tokenizer, library):
        self.tokenizer = tokenizer
        self._library = library
        self._renew()

    def encode(self, chunk: Chunk) -> np.ndarray:
        """Return the ids (N,) of a chunk's documents, each followed by eot_id. Raises GigatokenError."""
        try:
            ids = self._encode_chunk(chunk)
            check_ids(ids, chunk, self.tokenizer)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            raise GigatokenError(f"gigatoken: {type(error).__name__}: {error}") from error
        return ids

    def compare_sample(self, chunk: Chunk, ids: np.ndarray) -> None:
        """Encode some documents again, with tiktoken, in any thread; raise GigatokenError if `ids` (N,) differ."""
        numbers = chunk.first_document + np.arange(chunk.documents)
        begins = np.concatenate([[0], np.flatnonzero(ids == self.tokenizer.eot_id) + 1])
        for index in np.flatnonzero((numbers < SAMPLE_FIRST) | (numbers % SAMPLE_EVERY == 0)).tolist():
            expected, _ = self.tokenizer.encode_documents([chunk.texts[index].as_py()])
            if not np.array_equal(ids[begins[index] : begins[index + 1]], expected):
                raise GigatokenError(f"gigatoken: document {numbers[index]} has other ids than tiktoken gives")

    def _encode_chunk(self, chunk: Chunk) -> np.ndarray:
        """Encode each document with the library that must encode it; return the ids in the documents' order."""
        texts = chunk.texts.to_pylist()
        # gigatoken sees an empty document in the place of each that tiktoken encodes.
        tiktokens = {index: texts[index] for index in self._indices_for_tiktoken(chunk)}
        for index in tiktokens:
            texts[index] = ""
        ids = self.encode_texts(texts)
        if not tiktokens:
            return ids
        # Put tiktoken's ids in the place of the empty documents.
        documents = np.split(ids, np.flatnonzero(ids == self.tokenizer.eot_id) + 1)
        for index, text in tiktokens.items():
            documents[index], _ = self.tokenizer.encode_documents([text])
        return np.concatenate(documents)

    def _indices_for_tiktoken(self, chunk: Chunk) -> list[int]:
        """Return which documents of a chunk have characters that only tiktoken may encode."""
        if chunk.characters == chunk.utf8_bytes:  # ASCII
            return []
        has_unknown = pc.match_substring_regex(chunk.texts, UNKNOWN_CHARACTER)
        return np.flatnonzero(has_unknown.to_numpy(zero_copy_only=False)).tolist()

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """Return gigatoken's ids (N,) of texts without END, each followed by eot_id."""
        if not texts:
            return np.empty(0, self.tokenizer.dtype)
        resident = psutil.Process().memory_info().rss - pa.total_allocated_bytes()
        if self._text_bytes >= RENEW_AFTER_TEXT_BYTES and resident > RENEW_ABOVE_RESIDENT_BYTES:
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
        self._backend: Any = None
        self._text_bytes = 0
        ranks = self.tokenizer.folder / RANKS
        ends = {END: self.tokenizer.eot_id}
        self._backend = self._library.Tokenizer.from_tiktoken(ranks, pretokenizer="gpt2", special_tokens=ends)

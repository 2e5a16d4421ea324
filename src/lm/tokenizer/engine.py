"""Encode chunks of documents with gigatoken: tiktoken's ids, many times faster (README, "Speed").

tiktoken stays the definition of the ids, because other programs use it; gigatoken is young. Two safeguards keep them
equal. gigatoken has the letters of Unicode 17, tiktoken those of Unicode 16, and the fuzzer of tests/support/fuzz.py
found no other difference between the versions in COMPARED; so tiktoken encodes every document with a new character. And
both encode a sample of the others. After an EngineDifference the caller encodes everything again with tiktoken alone.
"""

import ctypes
import importlib.metadata
import re
import sys

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import IntegrityError
from lm.text.documents import Chunk
from lm.tokenizer.load import RANKS, Tokenizer
from lm.tokenizer.pretokenize import PATTERNS

COMPARED = {"gigatoken": "0.10.0", "tiktoken": "0.14.0"}
SAMPLE_FIRST, SAMPLE_EVERY = 32, 400  # both encode the first 32 documents, then one in 400

# Letters and digits that are new in Unicode 17 (DerivedAge.txt; a test finds them again with both libraries).
NEW_CHARACTERS = """
088F 0C5C 0CDC A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3
16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED 1E6F0-1E6F4
1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479
"""
# Combining marks that are new in Unicode 17. Only o200k tells marks from other characters.
NEW_MARKS = "1ACF-1ADD 1AE0-1AEB 10EFA-10EFB 11B60-11B67 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"

# gigatoken encodes a whole chunk as one text, in which a noncharacter ends each document: a special token with the id
# eot_id. tiktoken encodes a document that contains it all the same.
END = "\U0010ffff"
# As Arrow scalars, made from buffers: pa.scalar() would import pandas, which takes as long as 25 MB of text.
_ENDS = pa.LargeStringArray.from_buffers(2, pa.py_buffer(np.array([0, 4, 4])), pa.py_buffer(END.encode()))
_END, _EMPTY = _ENDS[0], _ENDS[1]


def _class_of(ranges: str) -> str:
    """Return a regular expression for END and the characters of some ranges."""
    characters = re.sub(r"[0-9A-F]+", lambda code: chr(int(code[0], 16)), ranges)
    return f"[{''.join(characters.split())}{END}]"


# gigatoken's name of each pattern, and which characters only tiktoken may encode.
SCHEMES = {
    PATTERNS["gpt2"]: ("gpt2", _class_of(NEW_CHARACTERS)),
    PATTERNS["cl100k"]: ("cl100k", _class_of(NEW_CHARACTERS)),
    PATTERNS["o200k"]: ("o200k", _class_of(NEW_CHARACTERS + NEW_MARKS)),
}

# gigatoken remembers every word, in up to 9 bytes per byte of text, so endless new words would fill the memory. A new
# one (50 ms) replaces it when the process uses more than this, apart from its text, and has encoded some text.
RENEW_ABOVE_RESIDENT_BYTES = 280 << 20
RENEW_AFTER_TEXT_BYTES = 12 << 20


class EngineDifference(Exception):
    """gigatoken failed or gave other ids than tiktoken; do not keep anything that it encoded."""


def open_engine(tokenizer: Tokenizer) -> "Engine | None":
    """Return the engine for a pattern of SCHEMES, or None if it cannot be used; print a warning if it should work."""
    if tokenizer.meta["pattern"] not in SCHEMES:
        return None
    try:
        installed = {name: importlib.metadata.version(name) for name in COMPARED}
        if installed == COMPARED:
            import gigatoken

            return Engine(tokenizer, gigatoken)
        versions = (" and ".join(map(" ".join, names.items())) for names in (installed, COMPARED))
        reason = "installed: {}, compared: {}".format(*versions)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        reason = f"gigatoken cannot be used ({type(error).__name__}: {error})"
    print(f"warning: {reason}; encoding with tiktoken alone: the same ids, many times slower", file=sys.stderr)
    return None


class Engine:
    """gigatoken with a tokenizer's ranks; only one thread at a time may call `encode`."""

    def __init__(self, tokenizer: Tokenizer, gigatoken):
        self.tokenizer, self._gigatoken = tokenizer, gigatoken
        self._scheme, self.only_exact = SCHEMES[tokenizer.meta["pattern"]]
        self.exact_documents = self.compared_documents = 0  # encoded by tiktoken instead, and by both
        self._renew()

    def describe(self) -> str:
        """Return one line about which library encoded what."""
        exact, both = self.exact_documents, self.compared_documents
        return f"gigatoken, {exact:,} documents by tiktoken instead, {both:,} by both for comparison"

    def encode(self, chunk: Chunk) -> np.ndarray:
        """Return the ids (N,) of a chunk's documents, each followed by eot_id. Raises EngineDifference."""
        try:
            ids = self._encode_mixed(chunk)
            check_ids(ids, chunk, self.tokenizer)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            raise EngineDifference(f"gigatoken: {type(error).__name__}: {error}") from error
        return ids

    def compare_sample(self, chunk: Chunk, ids: np.ndarray) -> None:
        """Encode some documents again, with tiktoken, in any thread; raise EngineDifference if `ids` (N,) differ."""
        numbers = chunk.first_document + np.arange(chunk.documents)
        begins = np.concatenate([[0], np.flatnonzero(ids == self.tokenizer.eot_id) + 1])
        for index in np.flatnonzero((numbers < SAMPLE_FIRST) | (numbers % SAMPLE_EVERY == 0)).tolist():
            expected, _ = self.tokenizer.encode_documents([chunk.texts[index].as_py()])
            if not np.array_equal(ids[begins[index] : begins[index + 1]], expected):
                raise EngineDifference(f"gigatoken: document {numbers[index]} has other ids than tiktoken gives")
            self.compared_documents += 1

    def _encode_mixed(self, chunk: Chunk) -> np.ndarray:
        """Encode each document with the library that must encode it; return the ids in the documents' order."""
        if chunk.characters == chunk.utf8_bytes:  # ASCII holds no new character, and is not searched for one
            return self.encode_fast(chunk.texts)
        only_exact = pc.match_substring_regex(chunk.texts, self.only_exact)
        if only_exact.true_count == 0:
            return self.encode_fast(chunk.texts)
        # gigatoken sees an empty document in the place of each that tiktoken encodes.
        ids = self.encode_fast(pc.if_else(only_exact, _EMPTY, chunk.texts.cast(pa.large_string())))
        documents = np.split(ids, np.flatnonzero(ids == self.tokenizer.eot_id) + 1)
        for index in np.flatnonzero(only_exact.to_numpy(zero_copy_only=False)).tolist():
            documents[index], _ = self.tokenizer.encode_documents([chunk.texts[index].as_py()])
        self.exact_documents += only_exact.true_count
        return np.concatenate(documents)

    def encode_fast(self, texts: pa.Array) -> np.ndarray:
        """Return gigatoken's ids (N,) of texts without END, each followed by eot_id."""
        if not len(texts):
            return np.empty(0, self.tokenizer.dtype)
        resident = psutil.Process().memory_info().rss - pa.total_allocated_bytes()
        if self._text_bytes >= RENEW_AFTER_TEXT_BYTES and resident > RENEW_ABOVE_RESIDENT_BYTES:
            self._renew()
        ended = pc.binary_join_element_wise(texts.cast(pa.large_string()), _END, _EMPTY)
        content = ended.buffers()[2].to_pybytes()  # all texts, one after the other
        self._text_bytes += len(content)
        # Of gigatoken's entry points this one lets other threads run and needs no awkward arrays.
        source = self._gigatoken.BytesSource(content)
        assert self._backend is not None
        rows, _ = self._backend.encode_batch_padded(source, pad_id=0, parallel=False)
        if rows.max() >= self.tokenizer.vocab_size:
            raise IntegrityError(f"id {rows.max()} is outside the vocabulary of {self.tokenizer.vocab_size}")
        return rows[0].astype(self.tokenizer.dtype)

    def _renew(self) -> None:
        """Create a new gigatoken after the memory of the old one has been returned."""
        self._backend, self._text_bytes = None, 0
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc would keep free memory for the thread
            trim(0)
        ranks, ends = self.tokenizer.folder / RANKS, {END: self.tokenizer.eot_id}
        self._backend = self._gigatoken.Tokenizer.from_tiktoken(ranks, pretokenizer=self._scheme, special_tokens=ends)


def encode_exactly(chunk: Chunk, tokenizer: Tokenizer) -> np.ndarray:
    """Return the tokenizer's own ids (N,) of a chunk's documents, each followed by eot_id. Raises IntegrityError."""
    ids, _ = tokenizer.encode_documents(chunk.texts.to_pylist())
    check_ids(ids, chunk, tokenizer)
    return ids


def check_ids(ids: np.ndarray, chunk: Chunk, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError unless ids (N,) contain one eot_id per document of a chunk, the last one at their end.

    With a byte-level tokenizer, the ids must also stand for as many bytes as the texts have.
    """
    num_ends = np.count_nonzero(ids == tokenizer.eot_id)
    num_bytes = tokenizer.count_bytes(ids) if tokenizer.is_byte_level else chunk.utf8_bytes
    ends_open = len(ids) > 0 and ids[-1] != tokenizer.eot_id
    if ends_open or (num_ends, num_bytes) != (chunk.documents, chunk.utf8_bytes):
        raise IntegrityError(
            f"tokenizer: {chunk.documents} documents of {chunk.utf8_bytes} bytes gave {num_ends} end-of-text ids "
            f"and {num_bytes} bytes; report the text from document {chunk.first_document} on"
        )

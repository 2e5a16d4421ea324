"""Chunks of documents → token ids by gigatoken, many times faster than tiktoken and held to its ids.

tiktoken stays the definition. gigatoken's tables of letters and digits are those of Unicode 17, the
ones of tiktoken those of Unicode 16; benchmarks/fuzz_tokenizers.py found no other difference between
the two versions named in COMPARED. So a document with a character of ONLY_EXACT is encoded by
tiktoken, a sample of the others by both, and whatever is not equal, or fails, raises EngineDifference:
the caller then does all of it again with tiktoken alone.
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
from lm.tokenizer.load import GPT2_PATTERN, RANKS, Tokenizer

COMPARED = {"gigatoken": "0.10.0", "tiktoken": "0.14.0"}
SAMPLE_FIRST, SAMPLE_EVERY = 32, 400  # documents that both encode: so many of the first, then one in so many

# The letters and digits that are new in Unicode 17.
NEW_CHARACTERS = """
088F 0C5C 0CDC A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3
16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED 1E6F0-1E6F4
1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479
"""
END = "\U0010ffff"  # ends each document on its way into gigatoken: a noncharacter, which no text should hold
END_BYTES = END.encode()
_RANGES = re.sub(r"[0-9A-F]+", lambda code: chr(int(code[0], 16)), NEW_CHARACTERS)
ONLY_EXACT = f"[{''.join(_RANGES.split())}{END}]"

# gigatoken remembers every word that it has met, at worst 9 bytes for a byte of text. A fresh one (50 ms)
# takes its place when the process, what it reads apart, has grown to so much memory, but not before it has
# encoded so much.
RENEW_ABOVE_RESIDENT_BYTES = 280 << 20
RENEW_AFTER_TEXT_BYTES = 12 << 20


class EngineDifference(Exception):
    """gigatoken failed or gave other ids than tiktoken; nothing that it encoded may be kept."""


def open_engine(tokenizer: Tokenizer) -> "Engine | None":
    """Return the engine of a byte-level BPE, or None where it cannot serve, which stderr says."""
    if tokenizer.meta["pattern"] != GPT2_PATTERN:
        return None
    try:
        found = {name: importlib.metadata.version(name) for name in COMPARED}
        if found == COMPARED:
            import gigatoken

            return Engine(tokenizer, gigatoken)
        reason = f"found {_names(found)}, compared were {_names(COMPARED)}"
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        reason = f"gigatoken cannot be used ({type(error).__name__}: {error})"
    print(f"warning: {reason}; encoding with tiktoken alone: the same ids, many times slower", file=sys.stderr)
    return None


def _names(versions: dict[str, str]) -> str:
    """Versions in words."""
    return " and ".join(f"{name} {version}" for name, version in versions.items())


class Engine:
    """gigatoken with a tokenizer's ranks; `encode` is for one thread at a time.

    `exact_documents` and `compared_documents` count those that tiktoken encoded instead, and too.
    """

    def __init__(self, tokenizer: Tokenizer, gigatoken):
        self.tokenizer = tokenizer
        self.exact_documents = self.compared_documents = 0
        self._gigatoken = gigatoken
        self._renew()

    def describe(self) -> str:
        """Who encoded how much, in words."""
        return (
            f"gigatoken, {self.exact_documents:,} documents by tiktoken instead, "
            f"{self.compared_documents:,} by both for comparison"
        )

    def encode(self, chunk: Chunk) -> np.ndarray:
        """Return the ids (N,) of a chunk's documents, each with its eot_id behind it.

        What can be told of them without the tokenizer is checked, and raises EngineDifference.
        """
        try:
            ids = self._encode_mixed(chunk)
            check_ids(ids, chunk, self.tokenizer)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            raise EngineDifference(f"gigatoken: {type(error).__name__}: {error}") from error
        return ids

    def compare_sample(self, chunk: Chunk, ids: np.ndarray) -> None:
        """Have tiktoken encode some of a chunk's documents too; raise EngineDifference if its `ids` (N,) are others.

        It may go on in another thread than `encode`.
        """
        numbers = chunk.first_document + np.arange(chunk.documents)
        sample = np.flatnonzero((numbers < SAMPLE_FIRST) | (numbers % SAMPLE_EVERY == 0))
        expected, lengths = self.tokenizer.encode_documents([chunk.texts[int(index)].as_py() for index in sample])
        begins = np.concatenate([[0], np.flatnonzero(ids == self.tokenizer.eot_id) + 1])
        for index, end, length in zip(sample, np.cumsum(lengths), lengths, strict=True):
            if ids[begins[index] : begins[index + 1]].tobytes() != expected[end - length : end].tobytes():
                number = chunk.first_document + index
                raise EngineDifference(f"gigatoken: document {number} has other ids than tiktoken gives it")
        self.compared_documents += len(sample)

    def _encode_mixed(self, chunk: Chunk) -> np.ndarray:
        """Encode each document by whom it is for, and put the ids in the documents' order."""
        if chunk.characters == chunk.utf8_bytes:  # ASCII
            return self.encode_fast(chunk.texts)
        only_exact = pc.match_substring_regex(chunk.texts, ONLY_EXACT)
        num_exact = only_exact.true_count
        if num_exact == 0:
            return self.encode_fast(chunk.texts)
        self.exact_documents += num_exact
        fast_ids = self.encode_fast(chunk.texts.filter(pc.invert(only_exact)))
        exact_ids, exact_lengths = self.tokenizer.encode_documents(chunk.texts.filter(only_exact).to_pylist())
        return self._merge(only_exact.to_numpy(zero_copy_only=False), fast_ids, exact_ids, exact_lengths)

    def _merge(self, only_exact, fast_ids, exact_ids, exact_lengths) -> np.ndarray:
        """Interleave the ids of two sets of documents; `only_exact` (n,) tells whose turn it is."""
        lengths = np.empty(len(only_exact), np.int64)
        lengths[only_exact] = exact_lengths
        lengths[~only_exact] = np.diff(np.flatnonzero(fast_ids == self.tokenizer.eot_id), prepend=-1)
        is_exact = np.repeat(only_exact, lengths)
        ids = np.empty(len(is_exact), self.tokenizer.dtype)
        ids[is_exact], ids[~is_exact] = exact_ids, fast_ids
        return ids

    def encode_fast(self, texts: pa.Array) -> np.ndarray:
        """gigatoken's ids of texts that hold no END, to which it gives the eot_id."""
        if not len(texts):
            return np.empty(0, self.tokenizer.dtype)
        if self._has_grown():
            self._renew()
        content = _joined(texts)
        self._text_bytes += len(content)
        # Of gigatoken's ways in, this one lets other threads run meanwhile and does without awkward arrays.
        source = self._gigatoken.BytesSource(content)
        rows, _ = self._backend.encode_batch_padded(source, pad_id=0, parallel=False)
        if rows.max() >= self.tokenizer.vocab_size:
            raise IntegrityError(f"id {rows.max()} is outside the vocabulary of {self.tokenizer.vocab_size}")
        return rows[0].astype(self.tokenizer.dtype)

    def _has_grown(self) -> bool:
        """Whether gigatoken's memory may be what makes the process large."""
        resident = psutil.Process().memory_info().rss - pa.total_allocated_bytes()
        return self._text_bytes >= RENEW_AFTER_TEXT_BYTES and resident > RENEW_ABOVE_RESIDENT_BYTES

    def _renew(self) -> None:
        """Make gigatoken anew, after the old one's memory has been given back."""
        self._backend, self._text_bytes = None, 0  # the text that the new one has encoded
        _return_freed_memory()
        self._backend = self._gigatoken.Tokenizer.from_tiktoken(
            self.tokenizer.folder / RANKS, pretokenizer="gpt2", special_tokens={END: self.tokenizer.eot_id}
        )


def _joined(texts: pa.Array) -> bytes:
    """The UTF-8 bytes of all texts, each with END behind it."""
    # From buffers: pa.array() and pa.scalar() would import pandas, an eighth of the time that 200 MB take.
    offsets = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(np.array([0, len(texts)]))])
    ends = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, len(END_BYTES)])), pa.py_buffer(END_BYTES))
    all_texts = pa.LargeListArray.from_arrays(offsets, texts.cast(pa.large_string()))
    return b"".join([pc.binary_join(all_texts, ends[0])[0].as_buffer(), END_BYTES])


def _return_freed_memory() -> None:
    """Have glibc, which would keep it for the thread, give what is free back to the kernel."""
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def encode_exactly(chunk: Chunk, tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids (N,) of a chunk's documents, each with its eot_id behind it, from the tokenizer itself.

    Raises IntegrityError.
    """
    ids, _ = tokenizer.encode_documents(chunk.texts.to_pylist())
    check_ids(ids, chunk, tokenizer)
    return ids


def check_ids(ids: np.ndarray, chunk: Chunk, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError unless ids (N,) hold one eot_id for each of a chunk's documents.

    Where the tokenizer is byte-level, the ids have to stand for as many bytes as the texts have, too.
    """
    num_ends = np.count_nonzero(ids == tokenizer.eot_id)
    num_bytes = tokenizer.count_bytes(ids) if tokenizer.is_byte_level else chunk.utf8_bytes
    if (num_ends, num_bytes) != (chunk.documents, chunk.utf8_bytes):
        raise IntegrityError(
            f"tokenizer: {chunk.documents} documents of {chunk.utf8_bytes} bytes gave {num_ends} end-of-text ids "
            f"and {num_bytes} bytes; report the text from document {chunk.first_document} on"
        )

"""Read and write token files: X.bin, a flat little-endian stream of ids, and its sidecar X.json.

One `eot_id` follows each document. X.bin has no header, so that any memmap reader can use it.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lm.core.errors import REPAIR, DataError, IntegrityError, names_file
from lm.core.files import atomic_write, check_hash, check_types, read_json, reject_special_file, write_json

FORMAT_VERSION = 1
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
BLOCK_TOKENS = 1 << 22
BLOCK_BYTES = 1 << 20  # read at once to check a file
REBUILD = "run `dvc repro -f` on the stage that writes it"
LOSSY = "lossy tokenizer: bits per byte are too low"
FORM = {"tokens": int, "sha256": str, "tokenizer": {"vocab_size": int, "eot_id": int, "sha256": str}}  # of a sidecar


@dataclasses.dataclass(frozen=True)
class TokenFile:
    """A checked token file: `ids` (N,) uint16 or uint32, a read-only memmap; `meta`, its sidecar."""

    path: Path
    ids: np.ndarray
    meta: dict

    @property
    def vocab_size(self) -> int:
        return self.meta["tokenizer"]["vocab_size"]

    @property
    def eot_id(self) -> int:
        return self.meta["tokenizer"]["eot_id"]

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """Return `document_spans`; the first call reads the stream."""
        return document_spans(self)


def sidecar_path(path: Path) -> Path:
    """Return the sidecar's path: train.json for train.bin."""
    return path.with_suffix(".json")


def map_ids(path: Path, meta: dict) -> np.ndarray:
    """Map the stream (N,) without reading or checking it."""
    with names_file(path):
        return np.memmap(path, DTYPES[meta["dtype"]], "r")


def write_tokens(path: Path, chunks: Iterable[np.ndarray], dtype: str, describe) -> dict:
    """Write the chunks of ids, (n,) each, to a new file, and its sidecar; return the sidecar.

    `describe()` is called after the last chunk and returns the entries that describe the text. The stream is
    renamed last, so that a killed run leaves no .bin.
    """
    digest = hashlib.sha256()
    num_tokens = 0
    with atomic_write(path) as file:
        for chunk in chunks:
            assert chunk.dtype == DTYPES[dtype], f"ids are {chunk.dtype}, the file is {dtype}"
            content = np.ascontiguousarray(chunk).data
            file.write(content)
            digest.update(content)
            num_tokens += len(chunk)
        meta = make_sidecar(dtype, num_tokens, describe(), digest.hexdigest())
        write_json(sidecar_path(path), meta)
    return meta


def make_sidecar(dtype: str, num_tokens: int, described: dict, sha256: str) -> dict:
    """Return a sidecar: the entries of every stream around those that describe its text."""
    return {"format_version": FORMAT_VERSION, "dtype": dtype, "tokens": num_tokens, **described, "sha256": sha256}


def check_sidecar(path: Path, meta: dict, advice: str = REBUILD) -> None:
    """Raise IntegrityError unless `meta`, read from `path`, describes a stream that this version can read."""
    version = meta.get("format_version")
    dtype = meta.get("dtype")
    if version != FORMAT_VERSION or dtype not in tuple(DTYPES):
        needed = f"{FORMAT_VERSION} and one of {', '.join(DTYPES)}"
        raise IntegrityError(
            f"{path}: format_version {version!r} and dtype {dtype!r} are unknown; they must be {needed}"
        )
    check_types(path, meta, FORM, advice)
    if "round_trip" in meta:
        form = {"documents": int, "round_trip": {"unknown_tokens": int, "changed_documents": int}}
        check_types(path, meta, form, advice)


def open_tokens(path: Path | str, is_verified: bool = False) -> TokenFile:
    """Open a token file, which is read once to check it.

    Raise IntegrityError if its length or SHA-256 is not its sidecar's, or if an id is outside the vocabulary. Raise
    DataError if it is empty.

    is_verified: another process has read and checked it.
    """
    path = Path(path)
    sidecar = sidecar_path(path)
    meta = read_json(sidecar)
    check_sidecar(sidecar, meta)
    _check_size(path, meta)
    if not is_verified:
        check_content(path, meta)
    return TokenFile(path, map_ids(path, meta), meta)


def _check_size(path: Path, meta: dict) -> None:
    """Raise IntegrityError if a file is missing or not as long as its sidecar says, DataError if both are empty."""
    dtype = meta["dtype"]
    num_tokens = meta["tokens"]
    expected = num_tokens * DTYPES[dtype].itemsize
    if not path.exists():
        raise IntegrityError(f"{path}: missing beside its sidecar; run `dvc repro` or `dvc checkout`")
    size = path.stat().st_size
    if size == expected == 0:
        raise DataError(f"{path}: holds no token; it must hold at least one: take a longer slice of the text")
    if size != expected:
        found = f"{size} bytes, its sidecar says {num_tokens} tokens of {dtype} = {expected} bytes"
        raise IntegrityError(f"{path}: {found}; {REPAIR}")


def check_content(path: Path, meta: dict) -> None:
    """Read a file once. Raise IntegrityError for another SHA-256, else for the first id outside the vocabulary.

    The SHA-256 shows that the file belongs to its sidecar. A sidecar that other software wrote may describe wrong ids.
    """
    dtype = DTYPES[meta["dtype"]]
    vocab_size = meta["tokenizer"]["vocab_size"]
    digest = hashlib.sha256()
    position = 0
    outside = None
    with names_file(path), open(reject_special_file(path), "rb") as file:
        while content := file.read(BLOCK_BYTES):
            digest.update(content)
            ids = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
            if outside is None and ids.max(initial=0) >= vocab_size:
                outside = _describe_outside(ids, position, vocab_size)
            position += len(ids)
    check_hash(path, digest.hexdigest(), meta["sha256"], "its sidecar")
    if outside is not None:
        raise IntegrityError(f"{path}: {outside}")


def _describe_outside(ids: np.ndarray, position: int, vocab_size: int) -> str:
    """Return a sentence about the first of ids (n,) outside the vocabulary. position: that of ids[0] in the stream."""
    first = int(np.argmax(ids >= vocab_size))
    place = f"token {int(ids[first])} at position {position + first}"
    return f"{place} is outside the vocabulary of {vocab_size}; tokenize again with `dvc repro -f`"


def blocks_of(ids: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (position, the ids from there on) in blocks, so that a scan does not need the whole stream."""
    for start in range(0, len(ids), BLOCK_TOKENS):
        yield start, ids[start : start + BLOCK_TOKENS]


def count_ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return how often each id occurs in a stream: (V,) int64."""
    counts = np.zeros(vocab_size, np.int64)
    for _, block in blocks_of(ids):
        counts += np.bincount(block, minlength=vocab_size)
    return counts


def lossy_fractions(meta: dict) -> dict[str, float]:
    """Return the fraction of the tokens that are unknown, and of the documents that are decoded to another text.

    Return {} if the tokenizer gives back every text. meta: a sidecar.
    """
    losses = meta.get("round_trip", {})
    if not any(losses.values()):
        return {}
    return {
        "unknown_token_fraction": losses["unknown_tokens"] / meta["tokens"],
        "changed_document_fraction": losses["changed_documents"] / meta["documents"],
    }


def document_spans(tokens: TokenFile) -> np.ndarray:
    """Return where each document begins and where its eot_id ends, in tokens: (N_documents, 2) int64, read-only.

    A document begins where the previous one ends, so the rows are views of one array of 8 bytes for each document. A
    stream that other software wrote may have no document.
    """
    ends = [start + np.flatnonzero(block == tokens.eot_id) + 1 for start, block in blocks_of(tokens.ids)]
    bounds = np.concatenate([[0], *ends])
    return sliding_window_view(bounds, 2) if len(bounds) > 1 else np.zeros((0, 2), np.int64)


def check_tokenizer(tokens: TokenFile, tokenizer_sha256: str) -> None:
    """Raise IntegrityError if the file was made with another tokenizer."""
    recorded = tokens.meta["tokenizer"]["sha256"]
    if recorded != tokenizer_sha256:
        made = f"made with tokenizer {recorded[:12]}…, data/tokenizer is {tokenizer_sha256[:12]}…"
        raise IntegrityError(f"{tokens.path}: {made}; run `dvc repro`")


def check_window_fits(tokens: TokenFile, seq_len: int) -> None:
    """Raise DataError if the file is too short for one window of `seq_len` tokens and the token after it."""
    if len(tokens.ids) < seq_len + 1:
        found = f"{len(tokens.ids)} tokens, one window of train.seq_len needs {seq_len + 1}"
        raise DataError(f"{tokens.path}: {found}")

"""A token stream on its way from one format to another: read block by block, checked, described.

A stream is the ids of X.bin, without padding, whatever the file that holds it; its sidecar is
X.json's content and goes with it from format to format unchanged. Formats: X.bin here, X.npy in
formats_npy, folders of dump-*.pkl in formats_dumps.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lm.core.errors import DataError, IntegrityError
from lm.core.files import sha256_file
from lm.tokenizer.load import Tokenizer, describe_tokenizer
from lm.tokens.tokenfile import DTYPES, FORMAT_VERSION, map_ids, open_tokens, sidecar_path

BLOCK_TOKENS = 1 << 20
SIDECAR_KEYS = {"format_version", "dtype", "tokens", "tokenizer", "sha256"}


@dataclasses.dataclass(frozen=True)
class Stream:
    """`blocks()` gives the ids anew at each call, in 1-D arrays of any integer dtype; `meta` is the
    sidecar, None where the input has none."""

    path: Path
    blocks: Callable[[], Iterator[np.ndarray]]
    meta: dict | None

    def __post_init__(self):
        missing = sorted(SIDECAR_KEYS - self.meta.keys()) if self.meta is not None else []
        if missing:
            raise IntegrityError(f"{self.path}: its sidecar has no {missing[0]!r}; convert or tokenize it again")


def bin_stream(path: Path, dtype: str) -> Stream:
    """The stream of X.bin; `dtype` is what a file without a sidecar holds ("uint16" or "uint32")."""
    meta = open_tokens(path).meta if sidecar_path(path).exists() else None
    described = meta or _described_by_size(path, dtype)

    def blocks() -> Iterator[np.ndarray]:
        """BLOCK_TOKENS ids at a time."""
        for start in range(0, described["tokens"], BLOCK_TOKENS):
            # Mapped anew for each block, so that what was read does not stay resident.
            yield map_ids(path, described)[start : start + BLOCK_TOKENS]

    return Stream(path, blocks, meta)


def _described_by_size(path: Path, dtype: str) -> dict:
    """What there is to say of a file of ids without a sidecar."""
    num_tokens, odd_bytes = divmod(path.stat().st_size, DTYPES[dtype].itemsize)
    if odd_bytes:
        raise IntegrityError(f"{path}: {path.stat().st_size} bytes are no whole number of {dtype} ids")
    return {"dtype": dtype, "tokens": num_tokens, "sha256": ""}


def padding_of(rows: np.ndarray, pad_token: int) -> np.ndarray:
    """(n,) int64: the length of the run of `pad_token` at the end of each of `rows` (n, L)."""
    return np.logical_and.accumulate(rows[:, ::-1] == pad_token, axis=1).sum(axis=1)


def unpadded(rows: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """The ids (N,) of rows (n, L) without the padding (n,) at the end of each."""
    return rows[np.arange(rows.shape[1]) < rows.shape[1] - padding[:, None]]


def narrowed(blocks: Iterable[np.ndarray], dtype: str, vocab_size: int, path: Path) -> Iterator[np.ndarray]:
    """Pass ids on as `dtype`; IntegrityError with the position of the first one outside the vocabulary."""
    position = 0
    for block in _pieces(blocks):
        outside = (block < 0) | (block >= vocab_size)
        if outside.any():
            first = int(np.argmax(outside))
            raise IntegrityError(
                f"{path}: token {int(block[first])} at position {position + first} is outside the vocabulary of "
                f"{vocab_size}; name the tokenizer that made it, or the id that pads it"
            )
        position += len(block)
        yield np.ascontiguousarray(block, DTYPES[dtype])


def _pieces(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Cut blocks that are longer than BLOCK_TOKENS, such as a very long row."""
    for block in blocks:
        for start in range(0, len(block), BLOCK_TOKENS):
            yield block[start : start + BLOCK_TOKENS]


def checked(stream: Stream, meta: dict) -> Iterator[np.ndarray]:
    """Pass the stream's ids on in the sidecar's dtype.

    Raises IntegrityError behind the last one if they are not those that the sidecar describes.
    """
    digest, num_tokens = hashlib.sha256(), 0
    for ids in narrowed(stream.blocks(), meta["dtype"], meta["tokenizer"]["vocab_size"], stream.path):
        digest.update(ids)
        num_tokens += len(ids)
        yield ids
    if (num_tokens, digest.hexdigest()) != (meta["tokens"], meta["sha256"]):
        raise IntegrityError(
            f"{stream.path}: holds {num_tokens} tokens of sha256 {digest.hexdigest()}, its sidecar says "
            f"{meta['tokens']} of {meta['sha256']}; convert or tokenize it again"
        )


def describe_stream(stream: Stream, tokenizer: Tokenizer) -> dict:
    """Read a stream that has no sidecar once and return its sidecar.

    Characters and bytes of text follow from the ids where the vocabulary is byte-level and are None
    otherwise. Raises DataError if there is no token, IntegrityError if one is outside the vocabulary.
    """
    digest, counts, last_id = hashlib.sha256(), np.zeros(tokenizer.vocab_size, np.int64), None
    for ids in narrowed(stream.blocks(), tokenizer.meta["dtype"], tokenizer.vocab_size, stream.path):
        digest.update(ids)
        counts += np.bincount(ids, minlength=len(counts))
        last_id = int(ids[-1]) if len(ids) else last_id
    if last_id is None:
        raise DataError(f"{stream.path}: holds no token; at least one is needed")
    return {
        "format_version": FORMAT_VERSION,
        "dtype": tokenizer.meta["dtype"],
        "tokens": int(counts.sum()),
        "documents": int(counts[tokenizer.eot_id]) + (last_id != tokenizer.eot_id),
        "characters": int(counts @ _token_characters(tokenizer)) if tokenizer.is_byte_level else None,
        "utf8_bytes": int(counts @ tokenizer.token_bytes) if tokenizer.is_byte_level else None,
        "surprisal_bits": None,
        "tokenizer": describe_tokenizer(tokenizer),
        "slice": None,
        "source": {"name": stream.path.name, "manifest_sha256": None, "sha256": _sha256(stream.path)},
        "sha256": digest.hexdigest(),
    }


def _token_characters(tokenizer: Tokenizer) -> np.ndarray:
    """(V,) int64: how many characters begin inside each token of a byte-level vocabulary."""
    characters = np.zeros(tokenizer.vocab_size, np.int64)
    for token, rank in tokenizer.ranks.items():
        characters[rank] = sum(byte & 0xC0 != 0x80 for byte in token)
    return characters


def _sha256(path: Path) -> str | None:
    """The digest of an input file; a folder has none."""
    return sha256_file(path) if path.is_file() else None

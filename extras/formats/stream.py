"""Read a token stream of any format block by block, and check it.

A stream is the ids of X.bin without padding. Its sidecar, the content of X.json, is the same in every format.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lm.core.errors import IntegrityError
from lm.tokens.tokenfile import DTYPES, check_sidecar, map_ids, open_tokens

BLOCK_TOKENS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Stream:
    """A stream: each call of `blocks` yields all ids in 1-D arrays; `meta` is the sidecar, if any."""

    path: Path
    blocks: Callable[[], Iterator[np.ndarray]]
    meta: dict | None

    def __post_init__(self):
        if self.meta is not None:
            check_sidecar(self.path, self.meta, "convert or tokenize it again")


def bin_stream(path: Path) -> Stream:
    meta = open_tokens(path).meta

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, meta["tokens"], BLOCK_TOKENS):
            # Map again for each block, so that blocks that were read do not stay in memory.
            yield map_ids(path, meta)[start : start + BLOCK_TOKENS]

    return Stream(path, blocks, meta)


def padding_of(rows: np.ndarray, pad_token: int) -> np.ndarray:
    """Return the length of the run of `pad_token` at the end of each of `rows` (n, L): (n,) int64."""
    return np.logical_and.accumulate(rows[:, ::-1] == pad_token, axis=1).sum(axis=1)


def unpadded(rows: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """Return the ids (N,) of rows (n, L) without the padding (n,) at the end of each."""
    return rows[np.arange(rows.shape[1]) < rows.shape[1] - padding[:, None]]


def narrowed(blocks: Iterable[np.ndarray], dtype: str, vocab_size: int, path: Path) -> Iterator[np.ndarray]:
    """Yield ids as `dtype`; raise IntegrityError with the position of the first id outside the vocabulary."""
    position = 0
    pieces = (block[i : i + BLOCK_TOKENS] for block in blocks for i in range(0, len(block), BLOCK_TOKENS))
    for block in pieces:  # because one very long row is one block
        outside = (block < 0) | (block >= vocab_size)
        if outside.any():
            first = int(np.argmax(outside))
            raise IntegrityError(
                f"{path}: token {int(block[first])} at position {position + first} is outside the vocabulary of "
                f"{vocab_size}; name the tokenizer that made the file, or its padding id"
            )
        position += len(block)
        yield np.ascontiguousarray(block, DTYPES[dtype])


def checked(stream: Stream, meta: dict) -> Iterator[np.ndarray]:
    """Yield the stream's ids in the sidecar's dtype; raise IntegrityError at the end if it describes others."""
    digest = hashlib.sha256()
    num_tokens = 0
    for ids in narrowed(stream.blocks(), meta["dtype"], meta["tokenizer"]["vocab_size"], stream.path):
        digest.update(ids.data)
        num_tokens += len(ids)
        yield ids
    held = f"{num_tokens} tokens of sha256 {digest.hexdigest()}"
    recorded = f"{meta['tokens']} tokens of sha256 {meta['sha256']}"
    if held != recorded:
        raise IntegrityError(f"{stream.path}: holds {held}, its sidecar says {recorded}; convert or tokenize it again")

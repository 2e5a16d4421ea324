"""Token files: X.bin, a flat little-endian stream of ids, beside X.json, which says what it is.

Each document is followed by one `eot_id`. There is no header, so that every memmap reader can use
the stream; the sidecar holds counts, the slice, the tokenizer and the SHA-256 of the stream.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lm.errors import MEND, DataError, IntegrityError
from lm.files import atomic_write, read_json, sha256_file, write_json

FORMAT_VERSION = 1
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclasses.dataclass(frozen=True)
class TokenFile:
    """A checked token file: `ids` (N,) read-only memmap of uint16 or uint32, `meta` its sidecar."""

    path: Path
    ids: np.ndarray
    meta: dict

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary that the ids belong to."""
        return self.meta["tokenizer"]["vocab_size"]

    @property
    def eot_id(self) -> int:
        """The id that ends each document."""
        return self.meta["tokenizer"]["eot_id"]


def sidecar_path(path: Path) -> Path:
    """train.bin → train.json."""
    return path.with_suffix(".json")


def write_tokens(path: Path, chunks: Iterable[np.ndarray], dtype: str, describe) -> dict:
    """Append the chunks of ids to a new file and write its sidecar; both appear whole.

    `describe()` is called after the last chunk and returns what the sidecar holds beside the
    format, the dtype, the number of tokens and the hash. The stream is renamed last, so that a
    killed run leaves no .bin.
    """
    digest, num_tokens = hashlib.sha256(), 0
    with atomic_write(path) as file:
        for chunk in chunks:
            assert chunk.dtype == DTYPES[dtype], f"ids are {chunk.dtype}, the file is {dtype}"
            content = np.ascontiguousarray(chunk).data
            file.write(content)
            digest.update(content)
            num_tokens += len(chunk)
        meta = {"format_version": FORMAT_VERSION, "dtype": dtype, "tokens": num_tokens, **describe()}
        meta["sha256"] = digest.hexdigest()
        write_json(sidecar_path(path), meta)
    return meta


def open_tokens(path: Path | str) -> TokenFile:
    """Open a token file after checking length, dtype and full hash against its sidecar.

    Raises IntegrityError (exit 4) naming what was found and what the sidecar says, DataError (3) if
    there is no token.
    """
    path = Path(path)
    meta = read_json(sidecar_path(path))
    if meta.get("format_version") != FORMAT_VERSION or meta.get("dtype") not in DTYPES:
        raise IntegrityError(
            f"{sidecar_path(path)}: format_version {meta.get('format_version')!r} and dtype {meta.get('dtype')!r} "
            f"are not known; needed: {FORMAT_VERSION} and one of {', '.join(DTYPES)}"
        )
    for key, kind in {"tokens": int, "sha256": str, "tokenizer": dict}.items():
        if not isinstance(meta.get(key), kind):
            raise IntegrityError(
                f"{sidecar_path(path)}: {key} is {meta.get(key)!r}; run `dvc repro -f` on the stage that writes it"
            )
    dtype = DTYPES[meta["dtype"]]
    if not path.exists():
        raise IntegrityError(f"{path}: missing beside its sidecar; run `dvc repro` or `dvc checkout`")
    size, expected = path.stat().st_size, meta["tokens"] * dtype.itemsize
    if size == expected == 0:
        raise DataError(f"{path}: holds no token, at least one is needed; take a longer slice of the text")
    if size != expected:
        raise IntegrityError(
            f"{path}: {size} bytes, its sidecar says {meta['tokens']} tokens of {meta['dtype']} = {expected} bytes; "
            f"{MEND}"
        )
    found = sha256_file(path)
    if found != meta["sha256"]:
        raise IntegrityError(f"{path}: sha256 is {found}, its sidecar says {meta['sha256']}; {MEND}")
    return TokenFile(path, np.memmap(path, dtype=dtype, mode="r"), meta)


def entropy_per_token(tokens: TokenFile) -> float | None:
    """Nats a token that the text holds, where its source knows: no honest loss is lower on average."""
    bits = tokens.meta.get("surprisal_bits")
    return None if bits is None else bits * math.log(2) / tokens.meta["tokens"]


def document_spans(tokens: TokenFile) -> np.ndarray:
    """(N_documents, 2) int64: where each document begins and where its eot_id ends, in tokens."""
    ends = np.flatnonzero(tokens.ids == tokens.eot_id) + 1
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)


def check_tokenizer(tokens: TokenFile, tokenizer_sha256: str) -> None:
    """Raise IntegrityError if the file was made with another tokenizer."""
    found = tokens.meta["tokenizer"]["sha256"]
    if found != tokenizer_sha256:
        raise IntegrityError(
            f"{tokens.path}: made with tokenizer {found[:12]}…, data/tokenizer is {tokenizer_sha256[:12]}…; "
            "run `dvc repro`"
        )


def check_id_range(tokens: TokenFile, block_tokens: int = 1 << 22) -> None:
    """Raise IntegrityError with the position of the first id that is not in the vocabulary."""
    for start in range(0, len(tokens.ids), block_tokens):
        block = tokens.ids[start : start + block_tokens]
        if int(block.max()) >= tokens.vocab_size:
            position = start + int(np.argmax(block >= tokens.vocab_size))
            raise IntegrityError(
                f"{tokens.path}: token {int(tokens.ids[position])} at position {position} is outside the "
                f"vocabulary of {tokens.vocab_size}; tokenize again with `dvc repro -f`"
            )

"""Read and write token files: X.bin, a flat little-endian stream of ids, and its sidecar X.json.

One `eot_id` follows each document. X.bin has no header, so that any memmap reader can use it. If the sidecar
lists `shards`, X.bin is a folder, and the stream is its files one after the other.
"""

import dataclasses
import functools
import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from tqdm import tqdm

from lm.core.errors import MEND, DataError, IntegrityError, ParamsError
from lm.core.files import atomic_folder, atomic_write, check_types, inside, read_json, sha256_file, write_json
from lm.tokens.shards import ShardedIds

FORMAT_VERSION = 1
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
BLOCK_TOKENS = 1 << 22
REMAKE = "run `dvc repro -f` on the stage that writes it"
FORM = {"tokens": int, "sha256": str, "tokenizer": {"vocab_size": int, "eot_id": int, "sha256": str}}  # of a sidecar


@dataclasses.dataclass(frozen=True)
class TokenFile:
    """A checked token file: `ids` (N,) uint16 or uint32, a read-only memmap or ShardedIds; `meta`, its sidecar."""

    path: Path
    ids: np.ndarray | ShardedIds
    meta: dict

    @property
    def vocab_size(self) -> int:
        """Return the number of entries in the vocabulary."""
        return self.meta["tokenizer"]["vocab_size"]

    @property
    def eot_id(self) -> int:
        """Return the id that ends each document."""
        return self.meta["tokenizer"]["eot_id"]

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """Return `document_spans`; the first call reads the stream."""
        return document_spans(self)


class Shard(NamedTuple):
    """One file of a stream: its path, number of tokens and SHA-256."""

    path: Path
    tokens: int
    sha256: str


def sidecar_path(path: Path) -> Path:
    """Return the sidecar's path: train.json for train.bin."""
    return path.with_suffix(".json")


def files_of(path: Path, meta: dict) -> list[Shard]:
    """Return the files of a stream in order: X.bin or the shards in it. Raises IntegrityError for a malformed list."""
    if "shards" not in meta:
        return [Shard(path, meta["tokens"], meta["sha256"])]
    sidecar, listed = sidecar_path(path), meta["shards"]
    check_types(sidecar, listed, [{"path": str, "tokens": int, "sha256": str}], REMAKE, "shards")
    shards = [Shard(inside(path, each["path"], sidecar), each["tokens"], each["sha256"]) for each in listed]
    if not shards or sum(shard.tokens for shard in shards) != meta["tokens"]:
        found = f"{len(shards)} with {sum(shard.tokens for shard in shards)} tokens"
        problem = f"`shards` is not a list of files with {meta['tokens']} tokens in total ({found})"
        raise IntegrityError(f"{sidecar}: {problem}; {REMAKE}")
    return shards


def map_ids(path: Path, meta: dict) -> np.ndarray | ShardedIds:
    """Map the stream (N,) without reading or checking it."""
    maps = [np.memmap(shard.path, DTYPES[meta["dtype"]], "r") for shard in files_of(path, meta)]
    return ShardedIds(maps) if "shards" in meta else maps[0]


def write_tokens(path: Path, chunks: Iterable[np.ndarray], dtype: str, describe) -> dict:
    """Write the chunks of ids to a new file, and its sidecar; return the sidecar.

    `describe()` is called after the last chunk and returns the entries that describe the text. The stream is
    renamed last, so that a killed run leaves no .bin. Raises ParamsError if a folder of shards would be replaced.
    """
    if path.is_dir():
        raise ParamsError(f"{path}: is a folder of shards, a file must be written there; remove the folder first")
    digest, num_tokens = hashlib.sha256(), 0
    with atomic_write(path) as file:
        for chunk in chunks:
            assert chunk.dtype == DTYPES[dtype], f"ids are {chunk.dtype}, the file is {dtype}"
            content = np.ascontiguousarray(chunk).data
            file.write(content)
            digest.update(content)
            num_tokens += len(chunk)
        meta = describe_tokens(dtype, num_tokens, describe(), digest.hexdigest())
        write_json(sidecar_path(path), meta)
    return meta


def describe_tokens(dtype: str, num_tokens: int, described: dict, sha256: str) -> dict:
    """Return a sidecar: the entries of every stream around those that describe its text."""
    return {"format_version": FORMAT_VERSION, "dtype": dtype, "tokens": num_tokens, **described, "sha256": sha256}


def join_shards(path: Path, shards: list[Shard], dtype: str, described: dict) -> dict:
    """Join files into the folder `path`, one stream, and write its sidecar; return the sidecar.

    The files are linked if possible, else copied. `described` describes the text. Raises IntegrityError if a file
    does not have its SHA-256.
    """
    entries = [{"path": f"{i:05d}.bin", "tokens": s.tokens, "sha256": s.sha256} for i, s in enumerate(shards)]
    with atomic_folder(path) as folder:
        linked = [folder / entry["path"] for entry in entries]
        for shard, file in zip(shards, linked, strict=True):
            try:
                os.link(shard.path, file)
            except OSError:  # on another disk
                shutil.copyfile(shard.path, file)
        with ThreadPoolExecutor(1) as pool:  # hash each file while this thread hashes the stream
            hashes = pool.map(sha256_file, linked)
            sha256 = sha256_of_stream(linked)
            for shard, file_sha256 in zip(shards, hashes, strict=True):
                check_hash(shard.path, file_sha256, shard.sha256, "remove it, and run the same command again")
        meta = describe_tokens(dtype, sum(shard.tokens for shard in shards), described, sha256) | {"shards": entries}
        if path.is_file():
            path.unlink()
        write_json(sidecar_path(path), meta)
    return meta


def sha256_of_stream(paths: Iterable[Path]) -> str:
    """Return the hex SHA-256 of the files' bytes, one file after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def check_hash(path: Path, sha256: str, recorded: str, advice: str = MEND) -> None:
    """Raise IntegrityError if a file's SHA-256 is not the recorded one."""
    if sha256 != recorded:
        raise IntegrityError(f"{path}: sha256 is {sha256}, its sidecar says {recorded}; {advice}")


def check_sidecar(path: Path, meta: dict, advice: str = REMAKE) -> None:
    """Raise IntegrityError unless `meta`, read from `path`, describes a stream that this version can read."""
    version, dtype = meta.get("format_version"), meta.get("dtype")
    if version != FORMAT_VERSION or dtype not in tuple(DTYPES):
        needed = f"{FORMAT_VERSION} and one of {', '.join(DTYPES)}"
        raise IntegrityError(f"{path}: format_version {version!r} and dtype {dtype!r} are unknown; needed: {needed}")
    check_types(path, meta, FORM, advice)
    check_types(path, meta.get("surprisal_bits"), (float, int, type(None)), advice, "surprisal_bits")


def open_tokens(path: Path | str) -> TokenFile:
    """Open a token file. Raises IntegrityError if a length or hash is not its sidecar's, DataError if it is empty."""
    path, sidecar = Path(path), sidecar_path(Path(path))
    meta = read_json(sidecar)
    check_sidecar(sidecar, meta)
    dtype, files = meta["dtype"], files_of(path, meta)
    for file in files:
        _check_size(file, dtype)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = pool.map(sha256_file, [file.path for file in files])
        hidden = True if len(files) == 1 else None  # None: shown on a terminal
        bar = tqdm(hashes, f"check {path.name}", len(files), unit="shard", leave=False, disable=hidden)
        for file, sha256 in zip(files, bar, strict=True):
            check_hash(file.path, sha256, file.sha256)
    return TokenFile(path, map_ids(path, meta), meta)


def _check_size(file: Shard, dtype: str) -> None:
    """Raise IntegrityError if a file is missing or not as long as its sidecar says, DataError if both are empty."""
    path, expected = file.path, file.tokens * DTYPES[dtype].itemsize
    if not path.exists():
        raise IntegrityError(f"{path}: missing beside its sidecar; run `dvc repro` or `dvc checkout`")
    size = path.stat().st_size
    if size == expected == 0:
        raise DataError(f"{path}: holds no token, needed: at least one; take a longer slice of the text")
    if size != expected:
        raise IntegrityError(
            f"{path}: {size} bytes, its sidecar says {file.tokens} tokens of {dtype} = {expected} bytes; {MEND}"
        )


def blocks_of(ids: np.ndarray | ShardedIds, block_tokens: int = BLOCK_TOKENS) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (position, the ids from there on) in blocks, so that a scan does not need the whole stream."""
    for start in range(0, len(ids), block_tokens):
        yield start, ids[start : start + block_tokens]


def entropy_per_token(tokens: TokenFile) -> float | None:
    """Return the text's entropy in nats per token, a lower bound on the loss; None if the source does not know it."""
    bits = tokens.meta.get("surprisal_bits")
    return None if bits is None else bits * math.log(2) / tokens.meta["tokens"]


def document_spans(tokens: TokenFile) -> np.ndarray:
    """Return where each document begins and where its eot_id ends, in tokens: (N_documents, 2) int64, read-only.

    A document begins where the one before ends, so the rows are views of one array of 8 bytes for each document.
    """
    ends = (start + np.flatnonzero(block == tokens.eot_id) + 1 for start, block in blocks_of(tokens.ids))
    bounds = np.concatenate([[0], *ends])
    return as_strided(bounds, (len(bounds) - 1, 2), bounds.strides * 2, writeable=False)


def check_tokenizer(tokens: TokenFile, tokenizer_sha256: str) -> None:
    """Raise IntegrityError if the file was made with another tokenizer."""
    recorded, needed = tokens.meta["tokenizer"]["sha256"], tokenizer_sha256
    if recorded != needed:
        made = f"made with tokenizer {recorded[:12]}…, data/tokenizer is {needed[:12]}…"
        raise IntegrityError(f"{tokens.path}: {made}; run `dvc repro`")


def check_window_fits(tokens: TokenFile, seq_len: int) -> None:
    """Raise DataError if the file is too short for one window of `seq_len` tokens and the token after it."""
    if len(tokens.ids) < seq_len + 1:
        found = f"{len(tokens.ids)} tokens, one window of train.seq_len needs {seq_len + 1}"
        raise DataError(f"{tokens.path}: {found}")


def check_id_range(tokens: TokenFile, block_tokens: int = BLOCK_TOKENS) -> None:
    """Raise IntegrityError with the position of the first id outside the vocabulary."""
    for start, block in blocks_of(tokens.ids, block_tokens):
        if int(block.max()) >= tokens.vocab_size:
            position = start + int(np.argmax(block >= tokens.vocab_size))
            raise IntegrityError(
                f"{tokens.path}: token {int(tokens.ids[position])} at position {position} is outside the "
                f"vocabulary of {tokens.vocab_size}; tokenize again with `dvc repro -f`"
            )

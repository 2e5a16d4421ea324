"""Folders of dump-*.pkl: samples of one length as pickled lists of lists of ids.

dump-0.pkl, dump-1.pkl, … and dump-meta_data.json, {file: {num_samples, num_tokens}}, are what the
format's other readers know. dump-provenance.yaml (JSON, which is YAML too) says the rest: the
stream's sidecar, the padding, a SHA-256 a file; those readers take any file named *.json for the
meta file, so it must not be one. Here num_tokens counts no padding, and only the last sample of the
last dump is padded, at its end.

A pickle is a program. It is read by an unpickler that refuses every name, so that it can build
lists and numbers and call nothing.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lm.core.errors import DataError, IntegrityError, ParamsError
from lm.core.files import atomic_folder, read_json, sha256_file, write_json
from lm.formats.stream import Stream, padding_of, unpadded
from lm.tokens.tokenfile import DTYPES, FORMAT_VERSION

META, PROVENANCE, TOKENIZER = "dump-meta_data.json", "dump-provenance.yaml", "tokenizer"
DUMP_NAME = re.compile(r"dump-(\d+)\.pkl")


class _ListUnpickler(pickle.Unpickler):
    """Builds lists and numbers; a pickle that names anything to import is refused."""

    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


@dataclasses.dataclass(frozen=True)
class DumpFolder:
    """The dumps of a folder in numeric order, (file, num_samples, num_tokens) each, and its provenance,
    None where another program wrote it."""

    path: Path
    dumps: list[tuple[Path, int, int]]
    provenance: dict | None


def open_dumps(folder: Path) -> DumpFolder:
    """List a folder's dumps; IntegrityError if the meta file is missing or names others than there are."""
    if not (folder / META).exists():
        raise IntegrityError(f"{folder}: has no {META}, so it is no folder of dumps; name another, or tokenize again")
    entries = read_json(folder / META)
    found = {path.name for path in folder.iterdir() if DUMP_NAME.fullmatch(path.name)}
    if found != entries.keys() or not found:
        only = sorted(found ^ entries.keys())
        raise IntegrityError(
            f"{folder}: {META} and the dumps that lie there differ in {', '.join(only) or 'nothing: there are none'}; "
            "restore the folder or tokenize again"
        )
    names = sorted(found, key=lambda name: int(DUMP_NAME.fullmatch(name)[1]))
    try:
        dumps = [(folder / name, int(entries[name]["num_samples"]), int(entries[name]["num_tokens"])) for name in names]
    except (TypeError, KeyError, ValueError) as error:
        raise IntegrityError(f"{folder / META}: no num_samples and num_tokens for each file ({error!r})") from None
    provenance = read_json(folder / PROVENANCE) if (folder / PROVENANCE).exists() else None
    if provenance is not None and not {"files", "stream"} <= provenance.keys():
        raise IntegrityError(f"{folder / PROVENANCE}: has no 'files' and 'stream'; tokenize again")
    return DumpFolder(folder, dumps, provenance)


def read_dumps(folder: DumpFolder, pad_token: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each dump's samples (n, seq_len) int64 and the padding (n,) at the end of each, in tokens.

    In a folder without provenance every run of `pad_token` at a sample's end is padding (None: no
    run is). One dump at a time is in memory, as Python lists: 36 bytes a token. Raises
    IntegrityError if a file is not what the records say.
    """
    for path, num_samples, num_tokens in folder.dumps:
        if folder.provenance is not None and sha256_file(path) != folder.provenance["files"].get(path.name):
            raise IntegrityError(f"{path}: its sha256 is not the one in {PROVENANCE}; tokenize again")
        rows = _load(path)
        num_padded = rows.size - num_tokens
        if len(rows) != num_samples or not 0 <= num_padded < rows.shape[1]:
            raise IntegrityError(
                f"{path}: holds {len(rows)} samples of {rows.shape[1]}, {META} says {num_samples} samples with "
                f"{num_tokens} tokens; tokenize again"
            )
        if folder.provenance is None and num_padded == 0 and pad_token is not None:
            yield rows, padding_of(rows, pad_token)
        else:
            yield rows, np.where(np.arange(num_samples) == num_samples - 1, num_padded, 0)


def _load(path: Path) -> np.ndarray:
    """(n, seq_len) ids of one dump; IntegrityError if it holds anything but equally long lists of them."""
    try:
        with open(path, "rb") as file:
            rows = np.array(_ListUnpickler(file).load())
            rest = file.read(1)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise IntegrityError(f"{path}: not a list of equally long lists of ids ({error}); tokenize again") from None
    is_ids = rows.ndim == 2 and rows.dtype.kind in "iu" and rows.size and rows.min() >= 0 and rows.max() < 2**32
    if rest or not is_ids:
        raise IntegrityError(f"{path}: not a list of equally long lists of ids, and nothing else; tokenize again")
    return rows


def dumps_stream(path: Path, pad_token: int | None) -> Stream:
    """The stream of a folder: its samples without their padding, one after the other."""
    folder = open_dumps(path)

    def blocks() -> Iterator[np.ndarray]:
        return (unpadded(rows, padding) for rows, padding in read_dumps(folder, pad_token))

    return Stream(path, blocks, folder.provenance and folder.provenance["stream"])


@contextlib.contextmanager
def replace_dumps(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `path` on success; only dumps are ever replaced."""
    known = {META, PROVENANCE, TOKENIZER}
    others = [
        entry.name
        for entry in (path.iterdir() if path.exists() else [])
        if entry.name not in known and not DUMP_NAME.fullmatch(entry.name)
    ]
    if others:
        raise ParamsError(f"{path}: holds {sorted(others)[0]}, which is no part of a dump folder; name another folder")
    with atomic_folder(path) as folder:
        yield folder


class _Samples:
    """A stream cut into samples; counts and hashes what passes, leaves out a last one that is too short."""

    def __init__(self, chunks: Iterable[np.ndarray], dtype: str, seq_len: int, min_sample_length: int):
        self.chunks, self.dtype, self.seq_len = chunks, DTYPES[dtype], seq_len
        self.min_sample_length = min(min_sample_length, seq_len)
        self.num_tokens = self.left_out_tokens = 0
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[np.ndarray]:
        rest = np.empty(0, self.dtype)
        for chunk in self.chunks:
            assert chunk.dtype == self.dtype, f"ids are {chunk.dtype}, the stream is {self.dtype}"
            rest = np.concatenate([rest, chunk])
            num_whole = len(rest) // self.seq_len * self.seq_len
            yield from map(self._count, rest[:num_whole].reshape(-1, self.seq_len))
            rest = rest[num_whole:]
        if len(rest) >= self.min_sample_length:
            yield self._count(rest)
        else:
            self.left_out_tokens = len(rest)

    def _count(self, sample: np.ndarray) -> np.ndarray:
        self.digest.update(np.ascontiguousarray(sample))
        self.num_tokens += len(sample)
        return sample


def write_dumps(
    folder: Path,
    chunks: Iterable[np.ndarray],
    dtype: str,
    describe: Callable[[], dict],
    *,
    seq_len: int,
    max_dump_size: int,
    pad_token: int,
    min_sample_length: int = 1,
) -> dict:
    """Write a stream as samples of seq_len into an empty folder, max_dump_size of them a dump.

    A shorter last sample is filled up with `pad_token` if it has min_sample_length tokens, else left
    out and counted. `describe()` is called after the last chunk and returns what the stream's
    sidecar holds beside format, dtype, tokens and hash. Returns the provenance; one sample and one
    chunk are in memory.
    """
    for name, value in (
        ("seq_len", seq_len),
        ("max_dump_size", max_dump_size),
        ("min_sample_length", min_sample_length),
    ):
        if value < 1:
            raise ParamsError(f"{name} is {value}, needed: at least 1")
    samples = _Samples(chunks, dtype, seq_len, min_sample_length)
    entries, stream = {}, iter(samples)
    for first in stream:
        dump = itertools.chain([first], itertools.islice(stream, max_dump_size - 1))
        path = folder / f"dump-{len(entries)}.pkl"
        entries[path.name] = _write_dump(path, dump, seq_len, pad_token)
    if not entries:
        raise DataError(
            f"{samples.left_out_tokens} tokens are no sample of at least {samples.min_sample_length}; take more text"
        )
    meta = {"format_version": FORMAT_VERSION, "dtype": dtype, "tokens": samples.num_tokens, **describe()}
    num_samples = sum(entry["num_samples"] for entry in entries.values())
    provenance = {
        "seq_len": seq_len,
        "samples": num_samples,
        "pad_token": pad_token,
        "padding_tokens": num_samples * seq_len - samples.num_tokens,
        "left_out_tokens": samples.left_out_tokens,
        "stream": meta | {"sha256": samples.digest.hexdigest()},
        "files": {name: sha256_file(folder / name) for name in entries},
    }
    write_json(folder / META, entries)
    write_json(folder / PROVENANCE, provenance)
    return provenance


def _write_dump(path: Path, samples: Iterable[np.ndarray], seq_len: int, pad_token: int) -> dict:
    """Write one dump sample by sample, so that no list of all exists; return its entry of the meta file.

    Protocol 2 pickles a list as a header of 2 bytes, the list and a stop of 1; without those it can be
    appended to a list around it. The bytes are the same in every Python.
    """
    num_samples = num_tokens = 0
    with open(path, "wb") as file:
        file.write(pickle.PROTO + b"\x02" + pickle.EMPTY_LIST)
        for sample in samples:
            ids = sample.tolist() + [pad_token] * (seq_len - len(sample))
            file.write(pickle.dumps(ids, protocol=2)[2:-1] + pickle.APPEND)
            num_samples += 1
            num_tokens += len(sample)
        file.write(pickle.STOP)
    return {"num_samples": num_samples, "num_tokens": num_tokens}

"""Read and write folders of dump-*.pkl: samples of one length as pickled lists of lists of ids.

Other readers of the format know dump-0.pkl, dump-1.pkl, … and dump-meta_data.json, {file: {num_samples,
num_tokens}}. dump-provenance.yaml (JSON, which is YAML too) adds the stream's sidecar, the padding and a
SHA-256 per file; those readers take any *.json for the meta file, so it must have another suffix. Here
num_tokens excludes padding, and only the end of the last sample of the last dump is padded.
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

from extras.formats.stream import Stream, padding_of, unpadded
from lm.core.errors import DataError, IntegrityError, ParamsError, UserError, names_file
from lm.core.files import atomic_folder, check_types, read_json, sha256_file, write_json
from lm.tokens.tokenfile import DTYPES, make_sidecar

TOKENIZE_AGAIN = "restore the folder or tokenize again"
META = "dump-meta_data.json"
PROVENANCE = "dump-provenance.yaml"
DUMP_NAME = re.compile(r"dump-(\d+)\.pkl")


class _ListUnpickler(pickle.Unpickler):
    """Build lists and numbers; reject a pickle that names anything to import, so that it can call nothing."""

    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


@dataclasses.dataclass(frozen=True)
class DumpFolder:
    """(file, num_samples, num_tokens) of each dump, in order; `provenance` is None if another program wrote them."""

    path: Path
    dumps: list[tuple[Path, int, int]]
    provenance: dict | None


def open_dumps(folder: Path) -> DumpFolder:
    """List a folder's dumps; raise IntegrityError if the meta file is missing or lists other dumps."""
    if not (folder / META).exists():
        raise IntegrityError(f"{folder}: has no {META}, so it is not a folder of dumps; name another")
    entries = read_json(folder / META, TOKENIZE_AGAIN)
    numbers = {}
    for path in folder.iterdir():
        found = DUMP_NAME.fullmatch(path.name)
        if found:
            numbers[path.name] = int(found[1])
    if numbers.keys() != entries.keys() or not numbers:
        differing = ", ".join(sorted(numbers.keys() ^ entries.keys())) or "nothing, because there are no dumps"
        problem = f"{META} and the dumps in the folder differ in {differing}"
        raise IntegrityError(f"{folder}: {problem}; {TOKENIZE_AGAIN}")
    names = sorted(numbers, key=numbers.__getitem__)
    form = {"num_samples": int, "num_tokens": int}
    advice = "no num_samples and num_tokens for each file"
    check_types(folder / META, entries, {str: form}, f"{advice}; {TOKENIZE_AGAIN}")
    dumps = [(folder / name, entries[name]["num_samples"], entries[name]["num_tokens"]) for name in names]
    provenance = read_json(folder / PROVENANCE, TOKENIZE_AGAIN) if (folder / PROVENANCE).exists() else None
    if provenance is not None:
        check_types(folder / PROVENANCE, provenance, {"files": {str: str}, "stream": dict}, TOKENIZE_AGAIN)
    return DumpFolder(folder, dumps, provenance)


def read_dumps(folder: DumpFolder, pad_token: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each dump's samples (n, seq_len) int64 and the padding (n,) at the end of each, in tokens.

    Without provenance, each run of `pad_token` at the end of a sample is padding (None: there is no padding).
    One dump at a time is in memory. Raises IntegrityError if a file differs from its records.
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
    """Return the ids (n, seq_len) of one dump; raise IntegrityError unless it is equally long lists of ids."""
    try:
        with names_file(path), open(path, "rb") as file:
            rows = np.array(_ListUnpickler(file).load())
            if file.read(1):
                raise pickle.UnpicklingError("bytes follow the pickle")
    except (OSError, UserError):
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise IntegrityError(f"{path}: not a list of equally long lists of ids ({error}); tokenize again") from None
    is_ids = rows.ndim == 2 and rows.dtype.kind in "iu" and rows.size and rows.min() >= 0 and rows.max() < 2**32
    if not is_ids:
        raise IntegrityError(f"{path}: not a list of equally long lists of ids; tokenize again")
    return rows


def dumps_stream(path: Path, pad_token: int | None) -> Stream:
    """Return the stream of a folder: its samples without their padding, one after the other."""
    folder = open_dumps(path)
    meta = folder.provenance["stream"] if folder.provenance else None
    return Stream(path, lambda: itertools.starmap(unpadded, read_dumps(folder, pad_token)), meta)


@contextlib.contextmanager
def replace_dumps(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `path` on success; only a folder of dumps is ever replaced."""
    for name in sorted(entry.name for entry in path.iterdir()) if path.exists() else []:
        if name not in (META, PROVENANCE) and not DUMP_NAME.fullmatch(name):
            raise ParamsError(f"{path}: holds {name}, which does not belong to a dump folder; name another folder")
    with atomic_folder(path) as folder:
        yield folder


def cut_samples(chunks: Iterable[np.ndarray], seq_len: int) -> Iterator[np.ndarray]:
    """Yield a stream in samples of seq_len ids; the last one may be shorter."""
    rest = np.empty(0, np.uint8)
    for chunk in chunks:
        rest = np.concatenate([rest, chunk]) if len(rest) else chunk
        num_whole = len(rest) // seq_len * seq_len
        yield from rest[:num_whole].reshape(-1, seq_len)
        rest = rest[num_whole:]
    if len(rest):
        yield rest


def write_dumps(
    folder: Path,
    chunks: Iterable[np.ndarray],
    dtype: str,
    describe: Callable[[], dict],
    *,
    seq_len: int,
    max_dump_size: int,
    pad_token: int,
) -> dict:
    """Write a stream as samples of seq_len into an empty folder, at most max_dump_size per dump; return the provenance.

    `pad_token` pads a shorter last sample. `describe()` is called after the last chunk, as for write_tokens.
    """
    digest = hashlib.sha256()

    def hashed_samples() -> Iterator[np.ndarray]:
        for sample in cut_samples(chunks, seq_len):
            digest.update(np.ascontiguousarray(sample, DTYPES[dtype]).data)
            yield sample

    entries = {}
    samples = hashed_samples()
    for first in samples:
        path = folder / f"dump-{len(entries)}.pkl"
        num_samples = 0
        num_tokens = 0
        # Protocol 2 pickles a list as a header of 2 bytes, the list and a stop of 1 byte; without those it can be
        # appended to a list around it. The bytes are the same in every Python version.
        with open(path, "wb") as file:
            file.write(pickle.PROTO + b"\x02" + pickle.EMPTY_LIST)
            for sample in itertools.chain([first], itertools.islice(samples, max_dump_size - 1)):
                ids = sample.tolist() + [pad_token] * (seq_len - len(sample))
                file.write(pickle.dumps(ids, protocol=2)[2:-1] + pickle.APPEND)
                num_samples += 1
                num_tokens += len(sample)
            file.write(pickle.STOP)
        entries[path.name] = {"num_samples": num_samples, "num_tokens": num_tokens}
    if not entries:
        raise DataError("no token; the input must hold at least one")
    num_samples = sum(entry["num_samples"] for entry in entries.values())
    num_tokens = sum(entry["num_tokens"] for entry in entries.values())
    provenance = {
        "seq_len": seq_len,
        "samples": num_samples,
        "pad_token": pad_token,
        "padding_tokens": num_samples * seq_len - num_tokens,
        "stream": make_sidecar(dtype, num_tokens, describe(), digest.hexdigest()),
        "files": {name: sha256_file(folder / name) for name in entries},
    }
    write_json(folder / META, entries)
    write_json(folder / PROVENANCE, provenance)
    return provenance

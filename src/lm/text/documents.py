"""Read the documents of a slice of data/raw in order, as a stream.

A slice is a range of the characters of a split. A document belongs to the slice that holds its first character, so
no document is cut and none is in two slices.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import MEND, DataError, IntegrityError, NoDocument, ParamsError
from lm.core.files import read_json, sha256_file
from lm.core.params import needed
from lm.text.parquet import iter_batches

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Slice:
    """The characters start_char to start_char + num_chars of a split; num_chars None means to its end."""

    split: str
    start_char: int
    num_chars: int | None

    def __post_init__(self):
        needed(self.start_char >= 0, "start_char", self.start_char, "0 or more")
        has_chars = self.num_chars is None or self.num_chars >= 1
        needed(has_chars, "num_chars", self.num_chars, "at least 1, or null for the rest")

    @property
    def end_char(self) -> float:
        """Return the first character after the range, or infinity."""
        return math.inf if self.num_chars is None else self.start_char + self.num_chars


def refuse_overlap(train: Slice, validation: Slice, where: str) -> None:
    """Raise ParamsError if the two slices have a character in common."""
    start, end = max(train.start_char, validation.start_char), min(train.end_char, validation.end_char)
    if train.split == validation.split and start < end:
        overlap = f"characters {start} to {end} of split {train.split!r}"
        raise ParamsError(f"{where}: train and validation share {overlap}; move validation.start_char")


def read_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw after checking the SHA-256 of every file."""
    manifest = read_json(raw / MANIFEST)
    check_files(raw, files_of(manifest))
    return manifest


def files_of(manifest: dict) -> list[dict]:
    """Return the manifest's entries of all files of all splits."""
    return [entry for split in manifest["splits"].values() for entry in split["files"]]


def check_files(raw: Path, files: list[dict]) -> None:
    """Raise IntegrityError if a file does not have the SHA-256 of its entry in the manifest."""
    for entry in files:
        path = raw / entry["path"]
        actual = sha256_file(path) if path.exists() else "no file"
        if actual != entry["sha256"]:
            raise IntegrityError(f"{path}: sha256 is {actual}, the manifest says {entry['sha256']}; {MEND}")


def describe_source(raw: Path, manifest: dict) -> dict:
    """Return the entry for a token file's sidecar that identifies data/raw."""
    return {"name": manifest["source"], "manifest_sha256": sha256_file(raw / MANIFEST)}


def check_slice(manifest: dict, part: Slice) -> None:
    """Raise DataError if the split does not exist or is shorter than the slice."""
    splits, source = manifest["splits"], f"sources.{manifest['source']}"
    if part.split not in splits:
        raise DataError(f"{source} has no split {part.split!r}; its splits are {', '.join(splits)}")
    total, start = splits[part.split]["characters"], part.start_char
    if start >= total:
        raise DataError(f"{source}: start_char is {start}, but split {part.split!r} has {total} characters; lower it")
    if part.num_chars is not None and part.end_char > total:
        excess = f"the slice from {start} asks for {part.num_chars}, {part.end_char - total} too many"
        remedy = "lower num_chars, or set it to null for the rest"
        raise DataError(f"{source}: split {part.split!r} has {total} characters; {excess}: {remedy}")


Rows = tuple[pa.RecordBatch, np.ndarray]  # documents with the text in column 0; characters of each, (n,) int64


def iter_rows(raw: Path, manifest: dict, part: Slice, columns: list[str] | None = None) -> Iterator[Rows]:
    """Yield the slice's rows in order, without null and empty texts. Raise NoDocument if no document begins inside."""
    check_slice(manifest, part)
    paths = (raw / entry["path"] for entry in manifest["splits"][part.split]["files"])
    batches = (batch for path in paths for batch in iter_batches(path, [manifest["column"], *(columns or [])]))
    position, is_empty = 0, True
    for batch in batches:
        rows, lengths, position = _select(batch, position, part)
        if rows.num_rows:
            is_empty = False
            yield rows, lengths
        if position >= part.end_char:
            break
    if is_empty:
        where = f"in characters {part.start_char} to {part.end_char}; widen the range"
        raise NoDocument(f"sources.{manifest['source']}: no document of split {part.split!r} begins {where}")


def _select(batch: pa.RecordBatch, position: int, part: Slice) -> tuple[pa.RecordBatch, np.ndarray, int]:
    """Return the rows that begin inside `part`, their lengths in characters, and the position after the batch."""
    texts, content = batch.column(0), batch.column(0).buffers()[2]
    is_ascii = content is None or np.frombuffer(content, np.int8).min(initial=0) >= 0
    lengths = (pc.binary_length if is_ascii else pc.utf8_length)(texts)  # the first is a hundred times faster
    lengths = lengths.fill_null(0) if lengths.null_count else lengths
    lengths = np.from_dlpack(lengths).astype(np.int64)  # to_numpy() would import pandas, which is slow
    ends = position + np.cumsum(lengths)
    starts = ends - lengths
    keep = (starts >= part.start_char) & (starts < part.end_char) & (lengths > 0)
    kept = batch if keep.all() else batch.filter(pa.array(keep))
    return kept, lengths[keep], int(ends[-1]) if len(ends) else position


def iter_texts(raw: Path, part: Slice) -> Iterator[list[str]]:
    """Yield the documents of the slice in order, in batches of at most 8,192 strings."""
    for batch, _ in iter_rows(raw, read_manifest(raw), part):
        yield batch.column(0).to_pylist()


class Chunk(NamedTuple):
    """Consecutive whole documents, with their counts."""

    texts: pa.Array  # of large strings, none null or empty
    first_document: int  # its number in the slice
    characters: int
    utf8_bytes: int
    surprisal_bits: float | None  # the information of the texts, if the source knows it

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return len(self.texts)


def iter_chunks(raw: Path, manifest: dict, part: Slice, chunk_chars: int) -> Iterator[Chunk]:
    """Yield the documents of the slice in order; those of a chunk begin within the same `chunk_chars` characters."""
    columns = ["surprisal_bits"] if "entropy" in manifest else []
    pending, number, position, first_document = [], 0, 0, 0
    for batch, lengths in iter_rows(raw, manifest, part, columns):
        numbers = (position + np.cumsum(lengths) - lengths) // chunk_chars
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
        for begin, end in itertools.pairwise(cuts):
            if pending and numbers[begin] != number:
                yield _chunk(pending, first_document)
                first_document += sum(rows.num_rows for rows, _ in pending)
                pending = []
            number = numbers[begin]
            pending.append((batch.slice(begin, end - begin), lengths[begin:end]))
        position += int(lengths.sum())
    if pending:
        yield _chunk(pending, first_document)


def _chunk(pending: list[Rows], first_document: int) -> Chunk:
    """Join the rows of several batches into one chunk."""
    texts = pa.concat_arrays([rows.column(0).cast(pa.large_string()) for rows, _ in pending])  # one type for all files
    bits = [pc.sum(rows.column("surprisal_bits")).as_py() for rows, _ in pending if rows.num_columns > 1]
    characters, utf8_bytes = int(sum(lengths.sum() for _, lengths in pending)), pc.sum(pc.binary_length(texts)).as_py()
    return Chunk(texts, first_document, characters, utf8_bytes, surprisal_bits=sum(bits) if bits else None)

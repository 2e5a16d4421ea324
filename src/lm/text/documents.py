"""Documents of a character range, streamed from data/raw in their order.

A slice is a range of the characters of a split's documents put one after the other. A document
belongs to the range that holds its first character, so none is cut and none stands in two.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import MEND, DataError, IntegrityError, NoDocument, ParamsError
from lm.core.files import read_json, sha256_file
from lm.text.parquet import open_parquet, read_row_group

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Slice:
    """Characters start_char … start_char + num_chars of a split; num_chars None: to its end."""

    split: str
    start_char: int
    num_chars: int | None

    def __post_init__(self):
        if self.start_char < 0:
            raise ValueError(f"start_char is {self.start_char}, needed: 0 or more")
        if self.num_chars is not None and self.num_chars < 1:
            raise ValueError(f"num_chars is {self.num_chars}, needed: at least 1, or null for the rest")

    @property
    def end_char(self) -> float:
        """The first character behind the range."""
        return float("inf") if self.num_chars is None else self.start_char + self.num_chars


def refuse_overlap(train: Slice, validation: Slice, where: str) -> None:
    """Raise ParamsError if a character would stand in both slices."""
    common = min(train.end_char, validation.end_char) - max(train.start_char, validation.start_char)
    if train.split == validation.split and common > 0:
        raise ParamsError(
            f"{where}: train and validation share characters {max(train.start_char, validation.start_char)} to "
            f"{min(train.end_char, validation.end_char)} of split {train.split!r}; move validation.start_char"
        )


def read_manifest(raw: Path) -> dict:
    """Return data/raw's manifest after checking every file's SHA-256 against it."""
    manifest = read_json(raw / MANIFEST)
    check_files(raw, files_of(manifest))
    return manifest


def files_of(manifest: dict) -> list[dict]:
    """The entries of all files, of all splits."""
    return [entry for split in manifest["splits"].values() for entry in split["files"]]


def check_files(raw: Path, files: list[dict]) -> None:
    """Raise IntegrityError unless each file has the SHA-256 that its entry in the manifest records."""
    for entry in files:
        path = raw / entry["path"]
        found = sha256_file(path) if path.exists() else "no file"
        if found != entry["sha256"]:
            raise IntegrityError(f"{path}: sha256 is {found}, the manifest says {entry['sha256']}; {MEND}")


def describe_source(raw: Path, manifest: dict) -> dict:
    """The entry of a token file's sidecar that names data/raw."""
    return {"name": manifest["source"], "manifest_sha256": sha256_file(raw / MANIFEST)}


def check_slice(manifest: dict, part: Slice) -> None:
    """Raise DataError unless the split exists and is at least as long as the slice asks."""
    splits, source = manifest["splits"], f"sources.{manifest['source']}"
    if part.split not in splits:
        raise DataError(f"{source} has no split {part.split!r}; its splits are {', '.join(splits)}")
    total = splits[part.split]["characters"]
    if part.start_char >= total:
        raise DataError(
            f"{source}: start_char is {part.start_char}, but split {part.split!r} has {total} characters; lower it"
        )
    if part.num_chars is not None and part.end_char > total:
        raise DataError(
            f"{source}: split {part.split!r} has {total} characters; the slice from {part.start_char} asks for "
            f"{part.num_chars}, {part.end_char - total} too many: lower num_chars, or set it to null for the rest"
        )


Rows = tuple[pa.RecordBatch, np.ndarray]  # some documents, the text in column 0, and the characters of each, int64


def iter_rows(raw: Path, manifest: dict, part: Slice, columns: list[str] | None = None) -> Iterator[Rows]:
    """Yield the slice's rows in order, in small batches; null and empty rows are left out.

    `columns` are read beside the text column, which comes first. Memory does not grow with the
    corpus. Raises NoDocument if none begins inside the slice.
    """
    check_slice(manifest, part)
    found = False
    for rows in _iter_selected(raw, manifest, part, columns or []):
        found = True
        yield rows
    if not found:
        raise NoDocument(
            f"sources.{manifest['source']}: no document of split {part.split!r} begins in characters "
            f"{part.start_char} to {part.end_char}; widen the range"
        )


def _iter_selected(raw: Path, manifest: dict, part: Slice, columns: list[str]) -> Iterator[Rows]:
    """Yield the slice's rows, reading no further than to its end."""
    column, position = manifest["column"], 0
    for entry in manifest["splits"][part.split]["files"]:
        path = raw / entry["path"]
        file = open_parquet(path, column)
        for group in range(file.num_row_groups):
            for batch in read_row_group(path, file, group, [column, *columns]):
                batch, lengths, position = _select(batch, position, part)
                if batch.num_rows:
                    yield batch, lengths
                if position >= part.end_char:
                    return


def _select(batch: pa.RecordBatch, position: int, part: Slice) -> tuple[pa.RecordBatch, np.ndarray, int]:
    """Return the rows that begin inside `part`, their characters, and the position after the batch."""
    lengths = _characters(batch.column(0))
    ends = position + np.cumsum(lengths)
    starts = ends - lengths
    keep = (starts >= part.start_char) & (starts < part.end_char) & (lengths > 0)
    kept = batch if keep.all() else batch.filter(pa.array(keep))
    return kept, lengths[keep], int(ends[-1]) if len(ends) else position


def _characters(texts: pa.Array) -> np.ndarray:
    """(n,) int64: the characters of each text, 0 for null."""
    content = texts.buffers()[2]
    is_ascii = content is None or np.frombuffer(content, np.int8).min(initial=0) >= 0
    lengths = (pc.binary_length if is_ascii else pc.utf8_length)(texts)  # the former is a hundred times faster
    lengths = lengths.fill_null(0) if lengths.null_count else lengths
    return np.from_dlpack(lengths).astype(np.int64)  # to_numpy() would import pandas, a quarter of a small run's time


def iter_texts(raw: Path, part: Slice) -> Iterator[list[str]]:
    """Yield the slice's documents in order, in batches of at most 8,192 strings."""
    for batch, _ in iter_rows(raw, read_manifest(raw), part):
        yield batch.column(0).to_pylist()


class Chunk(NamedTuple):
    """Documents in their order, whole, and what they hold all together."""

    texts: pa.Array  # of large strings, none null or empty
    first_document: int  # the number of the first one in the slice
    characters: int
    utf8_bytes: int
    surprisal_bits: float | None  # the information of the texts, where the source knows it

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.texts)


def iter_chunks(raw: Path, manifest: dict, part: Slice, chunk_chars: int) -> Iterator[Chunk]:
    """Yield the slice's documents in order, cut into chunks of about `chunk_chars` characters."""
    columns = ["surprisal_bits"] if "entropy" in manifest else []
    return chunks_of(iter_rows(raw, manifest, part, columns), chunk_chars)


def chunks_of(batches: Iterable[Rows], chunk_chars: int) -> Iterator[Chunk]:
    """Regroup rows: a chunk holds those documents that begin within the next `chunk_chars` characters."""
    pending, number, position, first_document = [], 0, 0, 0
    for batch, lengths in batches:
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
    """One chunk of the rows of several batches."""
    texts = pa.concat_arrays([rows.column(0).cast(pa.large_string()) for rows, _ in pending])  # files may differ
    bits = [pc.sum(rows.column("surprisal_bits")).as_py() for rows, _ in pending if rows.num_columns > 1]
    return Chunk(
        texts,
        first_document,
        characters=int(sum(lengths.sum() for _, lengths in pending)),
        utf8_bytes=pc.sum(pc.binary_length(texts)).as_py(),
        surprisal_bits=sum(bits) if bits else None,
    )

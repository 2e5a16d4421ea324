"""Documents of a character range, streamed from data/raw in their order.

A slice is a range of the characters of a split's documents put one after the other. A document
belongs to the range that holds its first character, so none is cut and none stands in two.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.errors import DataError, IntegrityError, ParamsError
from lm.files import read_json, sha256_file
from lm.sources.parquet import open_parquet, read_row_group


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
    manifest = read_json(raw / "manifest.json")
    for split in manifest["splits"].values():
        for entry in split["files"]:
            path = raw / entry["path"]
            found = sha256_file(path) if path.exists() else "no file"
            if found != entry["sha256"]:
                raise IntegrityError(
                    f"{path}: sha256 is {found}, the manifest says {entry['sha256']}; run `dvc repro -f fetch`"
                )
    return manifest


def check_slice(manifest: dict, part: Slice) -> None:
    """Raise DataError unless the split exists and is at least as long as the slice asks."""
    splits = manifest["splits"]
    if part.split not in splits:
        raise DataError(f"data.source has no split {part.split!r}; its splits are {', '.join(splits)}")
    total = splits[part.split]["characters"]
    if part.start_char >= total:
        raise DataError(f"start_char is {part.start_char}, but split {part.split!r} has {total} characters")
    if part.num_chars is not None and part.end_char > total:
        raise DataError(
            f"split {part.split!r} has {total} characters; the slice from {part.start_char} asks for {part.num_chars}, "
            f"{part.end_char - total} too many: lower num_chars, or set it to null for the rest"
        )


def iter_rows(raw: Path, part: Slice, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the slice's rows in order, in small batches; null and empty rows are left out.

    `columns` are read beside the text column, which comes first. Memory does not grow with the
    corpus. Raises DataError if no document begins inside the slice.
    """
    manifest = read_manifest(raw)
    check_slice(manifest, part)
    column, position, found = manifest["column"], 0, False
    for entry in manifest["splits"][part.split]["files"]:
        path = raw / entry["path"]
        file = open_parquet(path, column)
        for group in range(file.num_row_groups):
            for batch in read_row_group(path, file, group, [column, *(columns or [])]):
                batch, position = _select(batch, position, part)
                if batch.num_rows:
                    found = True
                    yield batch
                if position >= part.end_char:
                    return
    if not found:
        raise DataError(
            f"no document of split {part.split!r} begins in characters {part.start_char} to {part.end_char}"
        )


def _select(batch: pa.RecordBatch, position: int, part: Slice) -> tuple[pa.RecordBatch, int]:
    """Return the rows that begin inside `part` and the position after the batch, in characters."""
    lengths = pc.fill_null(pc.utf8_length(batch.column(0)), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = position + np.cumsum(lengths)
    starts = ends - lengths
    keep = (starts >= part.start_char) & (starts < part.end_char) & (lengths > 0)
    return batch.filter(pa.array(keep)), int(ends[-1]) if len(ends) else position


def iter_texts(raw: Path, part: Slice) -> Iterator[list[str]]:
    """Yield the slice's documents in order, in batches of at most 256 strings."""
    for batch in iter_rows(raw, part):
        yield batch.column(0).to_pylist()


def surprisal_bits(raw: Path, part: Slice) -> float | None:
    """The information of the slice's documents in bits, where the source knows it exactly."""
    if "entropy" not in read_json(raw / "manifest.json"):
        return None
    return sum(pc.sum(batch.column("surprisal_bits")).as_py() for batch in iter_rows(raw, part, ["surprisal_bits"]))

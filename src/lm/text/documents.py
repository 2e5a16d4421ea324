"""Read the documents of a slice of data/raw in order, as a stream.

A slice is a range of the characters of a split. A document belongs to the slice that holds its first character, so
no document is cut and none is in two slices. The split `train` of a mixture is the mixed stream of its parts' training
slices, and its split `validation` is their validation slices one after the other.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import MEND, IntegrityError, NoDocument, ParamsError
from lm.core.files import check_types, inside, read_json, sha256_file
from lm.text.mixture import PART, Part, Rows, interleave, label
from lm.text.parquet import iter_batches
from lm.text.slices import MixedSlice, Slice, check_slice, check_weights, refuse_excess

MANIFEST = "manifest.json"
COUNTS_FORM = {"documents": int, "characters": int, "utf8_bytes": int}
PART_FORM = {"source": str, "column": str, "splits": {str: {"files": [{"path": str, "sha256": str}]} | COUNTS_FORM}}
Dropped = dict[tuple[str, str], np.ndarray]  # (part, split) → the sorted numbers, int64, of documents to leave out


def read_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw after checking the SHA-256 of every file."""
    manifest = open_manifest(raw)
    check_files(raw, files_of(manifest))
    return manifest


def open_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw. Raise IntegrityError if it has another form; the files are not read."""
    manifest = read_json(raw / MANIFEST)
    form = {"parts": {str: PART_FORM | {"train": dict, "validation": dict}}} if "parts" in manifest else PART_FORM
    check_types(raw / MANIFEST, manifest, form | {"source": str}, "run `dvc repro -f` to make it again")
    return manifest


def parts_of(manifest: dict) -> dict[str, dict]:
    """Return the manifest of each part by its name; a source that is not a mixture has one part, itself."""
    return manifest.get("parts") or {manifest["source"]: manifest}


def files_of(manifest: dict) -> list[dict]:
    """Return the manifest's entries of all files of all splits of all parts."""
    splits = [split for part in parts_of(manifest).values() for split in part["splits"].values()]
    return [entry for split in splits for entry in split["files"]]


def check_files(raw: Path, files: list[dict]) -> None:
    """Raise IntegrityError if a file does not have the SHA-256 of its entry in the manifest."""
    for entry in files:
        path = inside(raw, entry["path"], raw / MANIFEST)
        actual = sha256_file(path) if path.exists() else "no file"
        if actual != entry["sha256"]:
            raise IntegrityError(f"{path}: sha256 is {actual}, the manifest says {entry['sha256']}; {MEND}")


def describe_source(raw: Path, manifest: dict) -> dict:
    """Return the entry for a token file's sidecar that identifies data/raw."""
    return {"name": manifest["source"], "manifest_sha256": sha256_file(raw / MANIFEST)}


def iter_rows(
    raw: Path, manifest: dict, part_slice: Slice, columns: list[str] | None = None, dropped: Dropped | None = None
) -> Iterator[Rows]:
    """Yield the slice's rows in order, without null, empty and `dropped` texts; those of a mixture have no `columns`.

    Raise DataError if the split lacks the slice, NoDocument if nothing is left, ParamsError for a mixture's weights.
    """
    if "parts" in manifest:
        yield from _mixed_rows(manifest, part_slice, open_parts(raw, manifest, part_slice, dropped))
        return
    if isinstance(part_slice, MixedSlice):
        raise ParamsError(f"sources.{manifest['source']}.train.weights: only a mixture has weights; remove them")
    check_slice(manifest, part_slice)
    paths = (raw / entry["path"] for entry in manifest["splits"][part_slice.split]["files"])
    batches = (batch for path in paths for batch in iter_batches(path, [manifest["column"], *(columns or [])]))
    left_out = (dropped or {}).get((manifest["source"], part_slice.split), np.empty(0, np.int64))
    yield from _within(map(_measured, batches), part_slice, f"sources.{manifest['source']}", left_out)


def _measured(batch: pa.RecordBatch) -> Rows:
    """Return a batch and the characters of each text, 0 for null."""
    texts, content = batch.column(0), batch.column(0).buffers()[2]
    is_ascii = content is None or np.frombuffer(content, np.int8).min(initial=0) >= 0
    lengths = (pc.binary_length if is_ascii else pc.utf8_length)(texts)  # the first is a hundred times faster
    lengths = lengths.fill_null(0) if lengths.null_count else lengths
    return batch, np.from_dlpack(lengths).astype(np.int64)  # to_numpy() would import pandas, which is slow


def _within(rows: Iterable[Rows], part: Slice, source: str, left_out: np.ndarray) -> Iterator[Rows]:
    """Yield the rows with text that begin inside `part`, without those numbered in `left_out`, (n,) int64, sorted."""
    position, number, is_empty = 0, 0, True
    for batch, lengths in rows:
        ends, has_text = position + np.cumsum(lengths), np.flatnonzero(lengths)
        starts = ends - lengths
        keep = (starts >= part.start_char) & (starts < part.end_char) & (lengths > 0)
        first, last = np.searchsorted(left_out, [number, number + len(has_text)])
        keep[has_text[left_out[first:last] - number]] = False
        if keep.any():
            is_empty = False
            yield (batch if keep.all() else batch.filter(pa.array(keep))), lengths[keep]
        position, number = position + int(lengths.sum()), number + len(has_text)
        if position >= part.end_char:
            break
    if is_empty:
        place = f"in characters {part.start_char} to {part.end_char}"
        why = f"begins {place}; widen the range"
        if len(left_out):
            why = f"{place} is left after the selection; loosen its rules, or widen the range"
        raise NoDocument(f"{source}: no document of split {part.split!r} {why}")
    if position < part.end_char:
        refuse_excess(part, position, source)  # of a mixture, whose length is known only now


@dataclasses.dataclass(frozen=True)
class PartRows:
    """The documents of a part's slice; each iteration reads them."""

    raw: Path
    manifest: dict
    slice: Slice
    dropped: Dropped

    def __iter__(self) -> Iterator[Rows]:
        return iter_rows(self.raw, self.manifest, self.slice, dropped=self.dropped)

    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of the documents; reads them unless the manifest knows."""
        check_slice(self.manifest, self.slice)
        name, split = self.manifest["source"], self.slice.split
        is_whole = self.slice.start_char == 0 and self.slice.num_chars is None
        if is_whole and not len(self.dropped.get((name, split), ())):
            return self.manifest["splits"][split]["utf8_bytes"]
        return sum(pc.sum(pc.binary_length(batch.column(0))).as_py() for batch, _ in self)


def open_parts(raw: Path, manifest: dict, part_slice: Slice, dropped: Dropped | None = None) -> list[Part]:
    """Return the parts of a mixture that its slice reads, in order; raise ParamsError for weights that do not fit."""
    source, split = f"sources.{manifest['source']}", "train" if isinstance(part_slice, MixedSlice) else "validation"
    if isinstance(part_slice, MixedSlice):
        check_weights(part_slice.weights, manifest["parts"], source)
    elif part_slice.split == "train":
        raise ParamsError(f"{source}.train.weights is missing, and {source} is a mixture; give each part a weight")
    if part_slice.split != split:
        raise ParamsError(f"{source}.{split}.split is {part_slice.split!r}, needed for a mixture: {split}")
    names = [name for name in manifest["parts"] if getattr(part_slice, "weights", {}).get(name, 1)]
    opened = [
        PartRows(raw, manifest["parts"][name], Slice(**manifest["parts"][name][split]), dropped or {}) for name in names
    ]
    return [Part(name, rows, rows.num_bytes()) for name, rows in zip(names, opened, strict=True)]


def _mixed_rows(manifest: dict, part_slice: Slice, parts: list[Part]) -> Iterator[Rows]:
    """Yield the rows of a mixture that `open_parts` has opened, with the number of the part as column `part`."""
    if isinstance(part_slice, MixedSlice):
        rows = interleave(parts, [part_slice.weights[part.name] for part in parts])
    else:
        rows = (each for number, part in enumerate(parts) for each in label(part.rows, number))
    if part_slice.start_char == 0 and part_slice.num_chars is None:
        yield from rows
    else:
        yield from _within(rows, part_slice, f"sources.{manifest['source']}", np.empty(0, np.int64))


def expected_chars(manifest: dict, part: Slice) -> float:
    """Return the number of characters of the slice; for a mixture it is an estimate."""
    if "parts" in manifest:
        weights = getattr(part, "weights", {})
        parts = [each for name, each in manifest["parts"].items() if part.split in each and weights.get(name, 1)]
        total = sum(expected_chars(each, Slice(**each[part.split])) for each in parts)
    else:
        total = manifest["splits"].get(part.split, {}).get("characters", 0)
    return min(total, part.end_char) - part.start_char


def iter_texts(raw: Path, part_slice: Slice, dropped: Dropped | None = None) -> Iterator[list[str]]:
    """Yield the documents of the slice in order, in batches of at most 8,192 strings per part."""
    for batch, _ in iter_rows(raw, read_manifest(raw), part_slice, dropped=dropped):
        yield batch.column(0).to_pylist()


class PartCount(NamedTuple):
    """Documents and UTF-8 bytes of one part in a stretch of a mixture, and the bytes of one pass over the part."""

    documents: int
    utf8_bytes: int
    pass_bytes: int


class Chunk(NamedTuple):
    """Consecutive whole documents, with their counts."""

    texts: pa.Array  # of large strings, none null or empty
    first_document: int  # its number in the slice
    characters: int
    utf8_bytes: int
    surprisal_bits: float | None  # the information of the texts, if the source knows it
    parts: dict[str, PartCount]  # of a mixture, else empty

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return len(self.texts)


def iter_chunks(
    raw: Path, manifest: dict, part_slice: Slice, chunk_chars: int, dropped: Dropped | None = None
) -> Iterator[Chunk]:
    """Yield the documents of the slice in order; those of a chunk begin within the same `chunk_chars` characters."""
    parts = open_parts(raw, manifest, part_slice, dropped) if "parts" in manifest else []
    columns = ["surprisal_bits"] if "entropy" in manifest else []
    rows = _mixed_rows(manifest, part_slice, parts) if parts else iter_rows(raw, manifest, part_slice, columns, dropped)
    pending, number, position, first_document = [], 0, 0, 0
    for batch, lengths in rows:
        numbers = (position + np.cumsum(lengths) - lengths) // chunk_chars
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
        for begin, end in itertools.pairwise(cuts):
            if pending and numbers[begin] != number:
                yield _chunk(pending, first_document, parts)
                first_document += sum(rows.num_rows for rows, _ in pending)
                pending = []
            number = numbers[begin]
            pending.append((batch.slice(begin, end - begin), lengths[begin:end]))
        position += int(lengths.sum())
    if pending:
        yield _chunk(pending, first_document, parts)


def _chunk(pending: list[Rows], first_document: int, parts: list[Part]) -> Chunk:
    """Join the rows of several batches into one chunk."""
    texts = pa.concat_arrays([rows.column(0).cast(pa.large_string()) for rows, _ in pending])  # one type for all files
    has_bits = "surprisal_bits" in pending[0][0].schema.names
    bits = sum(pc.sum(rows.column("surprisal_bits")).as_py() for rows, _ in pending) if has_bits else None
    characters, utf8_bytes = int(sum(lengths.sum() for _, lengths in pending)), pc.sum(pc.binary_length(texts)).as_py()
    counts = _count_parts(texts, [rows.column(PART) for rows, _ in pending], parts) if parts else {}
    return Chunk(texts, first_document, characters, utf8_bytes, bits, counts)


def _count_parts(texts: pa.Array, numbers: list[pa.Array], parts: list[Part]) -> dict[str, PartCount]:
    """Return the counts of each part among `texts`; `numbers` are those of their parts, in several arrays."""
    number_of, sizes = np.from_dlpack(pa.concat_arrays(numbers)), np.from_dlpack(pc.binary_length(texts))
    documents = np.bincount(number_of, minlength=len(parts))
    num_bytes = [int(sizes[number_of == number].sum()) for number in range(len(parts))]
    counted = zip(parts, documents.tolist(), num_bytes, strict=True)
    return {part.name: PartCount(count, size, part.num_bytes) for part, count, size in counted}

"""Read the documents of a slice of data/raw in order, as a stream.

A slice is a range of the characters of a split. A document belongs to the slice that holds its first character, so
no document is cut and none is in two slices.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.files import check_sha256, check_types, read_json, safe_join
from lm.text.parquet import iter_batches
from lm.text.rows import Rows, measured, rows_within
from lm.text.slices import TEST, Slice, check_slice

MANIFEST = "manifest.json"
TEXT, SOURCE, UTF8_BYTES = COLUMNS = "text", "source", "utf8_bytes"  # of a file of data/raw
COUNTS_FORM = {"documents": int, "characters": int, "utf8_bytes": int}
SPLIT_FORM = {"path": str, "sha256": str} | COUNTS_FORM
FORM = {"source": str, "sources": {str: dict}, "splits": {str: SPLIT_FORM}}


def read_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw after checking the SHA-256 of every file, except that of the test split."""
    manifest = open_manifest(raw)
    check_files(raw, files_of(manifest))
    return manifest


def open_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw. Raise IntegrityError if it has another form; the files are not read."""
    manifest = read_json(raw / MANIFEST)
    form = FORM | ({TEST: SPLIT_FORM} if TEST in manifest else {})
    check_types(raw / MANIFEST, manifest, form, "run `dvc repro -f` to make it again")
    return manifest


def manifest_of_test(manifest: dict) -> dict:
    """Return a manifest whose only split is the held-out one, which no other manifest has among its splits.

    Stages must not call this. `manifest` is that of data/raw and has a test split.
    """
    return manifest | {"splits": {TEST: manifest[TEST]}}


def files_of(manifest: dict) -> list[dict]:
    """Return the manifest's entries of the files of all splits, except the test split."""
    return list(manifest["splits"].values())


def check_files(raw: Path, files: list[dict]) -> None:
    """Raise IntegrityError if a file does not have the SHA-256 of its entry in the manifest."""
    for entry in files:
        path = safe_join(raw, entry["path"], raw / MANIFEST)
        check_sha256(path, entry["sha256"], "the manifest")


def describe_text(manifest: dict, text_slice: Slice) -> dict:
    """Return the entry for a record that identifies the text of a slice: the source, and the file of the split."""
    check_slice(manifest, text_slice)
    return {"name": manifest["source"], "text_sha256": manifest["splits"][text_slice.split]["sha256"]}


def is_mixture(manifest: dict) -> bool:
    return len(manifest["sources"]) > 1


def iter_rows(raw: Path, manifest: dict, text_slice: Slice, row_groups: range | None = None) -> Iterator[Rows]:
    """Yield the slice's rows in order: the text, and of a mixture also the name of the source.

    `row_groups`: read only these of the file, so that the slice counts characters from the first of them on. Raise
    DataError if the split lacks the slice, NoDocument if no document begins in it.
    """
    if row_groups is None:
        check_slice(manifest, text_slice)
    path = raw / manifest["splits"][text_slice.split]["path"]
    columns = [TEXT, SOURCE] if is_mixture(manifest) else [TEXT]
    rows = map(measured, iter_batches(path, columns, row_groups=row_groups))
    yield from rows_within(rows, text_slice, f"sources.{manifest['source']}")


def expected_chars(manifest: dict, text_slice: Slice) -> float:
    """Return the number of characters of the slice."""
    total = manifest["splits"].get(text_slice.split, {}).get("characters", 0)
    return min(total, text_slice.end_char) - text_slice.start_char


def iter_texts(raw: Path, text_slice: Slice) -> Iterator[list[str]]:
    """Yield the documents of the slice in order, in batches of at most 8,192 strings."""
    for batch, _ in iter_rows(raw, read_manifest(raw), text_slice):
        yield batch.column(0).to_pylist()


class SourceCount(NamedTuple):
    """Documents and UTF-8 bytes of one source in a stretch of a mixture."""

    documents: int
    utf8_bytes: int


class Chunk(NamedTuple):
    """Consecutive whole documents, with their counts."""

    texts: pa.Array  # of large strings, none null or empty
    first_document: int  # its number in the slice
    characters: int
    utf8_bytes: int
    sources: dict[str, SourceCount]  # of a mixture, else empty
    unknown_tokens: int = 0  # counted when it is encoded, as the next
    changed_documents: int = 0  # whose ids are decoded to another text

    @property
    def documents(self) -> int:
        return len(self.texts)


def iter_chunks(
    raw: Path, manifest: dict, text_slice: Slice, chunk_chars: int, row_groups: range | None = None
) -> Iterator[Chunk]:
    """Yield the documents of the slice in order; those of a chunk begin within the same `chunk_chars` characters."""
    pending = []
    number = 0
    position = 0
    first_document = 0
    for batch, lengths in iter_rows(raw, manifest, text_slice, row_groups):
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
    texts = pa.concat_arrays([rows.column(0).cast(pa.large_string()) for rows, _ in pending])  # one type for all
    sizes = pc.binary_length(texts)
    characters = int(sum(lengths.sum() for _, lengths in pending))
    has_sources = pending[0][0].num_columns > 1
    sources = pa.concat_arrays([rows.column(1) for rows, _ in pending]) if has_sources else None
    counts = {} if sources is None else count_sources(sources, np.from_dlpack(sizes))
    return Chunk(texts, first_document, characters, pc.sum(sizes).as_py(), counts)


def count_sources(sources: pa.Array, sizes: np.ndarray) -> dict[str, SourceCount]:
    """Return the counts of each source, in the order of its first document, given documents' sources and bytes (n,)."""
    encoded = sources.dictionary_encode()
    numbers = np.from_dlpack(encoded.indices)
    names = encoded.dictionary.to_pylist()
    return {
        name: SourceCount(int(np.count_nonzero(numbers == number)), int(sizes[numbers == number].sum()))
        for number, name in enumerate(names)
    }

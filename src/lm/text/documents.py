"""Read the documents of a slice of data/raw in order, as a stream.

A slice is a range of the characters of a split. A document belongs to the slice that holds its first character, so
no document is cut and none is in two slices.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
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
CHUNK_CHARS = 1_000_000  # characters encoded at a time
TEXT, SOURCE, UTF8_BYTES = COLUMNS = "text", "source", "utf8_bytes"  # columns of a file of data/raw
SPLIT_FORM = {"path": str, "sha256": str, "documents": int, "characters": int, "utf8_bytes": int}
FORM = {"source": str, "sources": {str: dict}, "splits": {str: SPLIT_FORM}}


def open_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw, without reading its files. Raise IntegrityError if it has another form."""
    manifest = read_json(raw / MANIFEST)
    form = FORM | ({TEST: SPLIT_FORM} if TEST in manifest else {})
    check_types(raw / MANIFEST, manifest, form, "run `dvc repro -f` to make it again")
    return manifest


def describe_text(manifest: dict, text_slice: Slice) -> dict:
    """Return the entry of a record that identifies the text of a slice: the source, and the file of the split."""
    check_slice(manifest, text_slice)
    return {"name": manifest["source"], "text_sha256": manifest["splits"][text_slice.split]["sha256"]}


def is_mixture(manifest: dict) -> bool:
    return len(manifest["sources"]) > 1


@dataclasses.dataclass(frozen=True)
class Text:
    """The documents of a slice of data/raw, which each method reads in order.

    Raise DataError if the split does not exist or is shorter than the slice. `open_text` also checks the file.
    """

    raw: Path
    manifest: dict
    slice: Slice

    def __post_init__(self):
        check_slice(self.manifest, self.slice)

    @property
    def _split(self) -> dict:
        """Return the entry of the split in the manifest."""
        return self.manifest["splits"][self.slice.split]

    @property
    def path(self) -> Path:
        """Return the file of the split."""
        return safe_join(self.raw, self._split["path"], self.raw / MANIFEST)

    @property
    def source(self) -> dict:
        """Return the entry for a record that identifies the text."""
        return describe_text(self.manifest, self.slice)

    @property
    def num_chars(self) -> int:
        """Return the number of characters of the slice."""
        end = min(self._split["characters"], self.slice.end_char)
        return int(end) - self.slice.start_char

    def check_file(self) -> None:
        """Raise IntegrityError if the file does not have the SHA-256 of its entry in the manifest."""
        check_sha256(self.path, self._split["sha256"], "the manifest")

    def rows(self, columns: tuple[str, ...] = (), row_groups: range | None = None) -> Iterator[Rows]:
        """Yield the rows of the documents: the text, and other columns of the file.

        row_groups: read only these groups of the file; the slice then counts characters from the first of them. Raise
        NoDocument if no document begins in the slice.
        """
        rows = map(measured, iter_batches(self.path, [TEXT, *columns], row_groups=row_groups))
        yield from rows_within(rows, self.slice, f"sources.{self.manifest['source']}")

    def batches(self) -> Iterator[list[str]]:
        """Yield the documents in batches of at most 8,192 strings."""
        for batch, _ in self.rows():
            yield batch.column(0).to_pylist()

    def utf8_bytes(self) -> np.ndarray:
        """Return the UTF-8 bytes of each document, as counted by fetch: (D,) int64."""
        columns = [batch.column(1) for batch, _ in self.rows((UTF8_BYTES,))]
        return np.concatenate([np.from_dlpack(column) for column in columns])

    def chunks(self, row_groups: range | None = None) -> Iterator["Chunk"]:
        """Yield the documents in chunks; the documents of a chunk begin within the same CHUNK_CHARS characters."""
        columns = (SOURCE,) if is_mixture(self.manifest) else ()
        return _chunks_of(self.rows(columns, row_groups))


def open_text(raw: Path, text_slice: Slice) -> Text:
    """Open a slice of data/raw. Raise IntegrityError if the file of its split differs from the manifest."""
    (text,) = open_texts(raw, [text_slice])
    return text


def open_texts(raw: Path, slices: list[Slice]) -> list[Text]:
    """Open slices of data/raw, as `open_text` does. A file that several slices need is checked once."""
    manifest = open_manifest(raw)
    texts = [Text(raw, manifest, each) for each in slices]
    text_of_file = {text.path: text for text in texts}
    for text in text_of_file.values():
        text.check_file()
    return texts


def text_of_test(raw: Path, manifest: dict) -> Text:
    """Return the text of the held-out split, which the manifest lists separately; its file is not checked.

    Stages must not call this. manifest: that of `raw`, with a test split.
    """
    manifest_of_test = manifest | {"splits": {TEST: manifest[TEST]}}
    return Text(raw, manifest_of_test, Slice(TEST, 0, None))


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
    unknown_tokens: int = 0  # counted when the chunk is encoded, like the next
    changed_documents: int = 0  # whose ids are decoded to another text

    @property
    def documents(self) -> int:
        return len(self.texts)


def _chunks_of(rows: Iterable[Rows]) -> Iterator[Chunk]:
    """Yield rows of documents in chunks; the documents of a chunk begin within the same CHUNK_CHARS characters."""
    pending = []
    number = 0
    position = 0
    first_document = 0
    for batch, lengths in rows:
        numbers = (position + np.cumsum(lengths) - lengths) // CHUNK_CHARS
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
    """Return the counts of each source, in order of first documents, given the sources and bytes (n,) of documents."""
    encoded = sources.dictionary_encode()
    numbers = np.from_dlpack(encoded.indices)
    names = encoded.dictionary.to_pylist()
    return {
        name: SourceCount(int(np.count_nonzero(numbers == number)), int(sizes[numbers == number].sum()))
        for number, name in enumerate(names)
    }

"""Read the documents of a slice of data/raw in order, as a stream.

A slice is a range of the characters of a split. A document belongs to the slice that holds its first character, so
no document is cut and none is in two slices. The split `train` of a mixture is the mixed stream of its sources'
training slices, and its split `validation` is their validation slices one after the other.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import REPAIR, IntegrityError, NoDocument, ParamsError
from lm.core.files import check_types, read_json, safe_join, sha256_file
from lm.text.mixture import SOURCE, MixtureSource, Rows, interleave, tag_rows
from lm.text.parquet import iter_batches
from lm.text.slices import MixedSlice, Slice, check_slice, check_weights, refuse_excess

MANIFEST = "manifest.json"
COUNTS_FORM = {"documents": int, "characters": int, "utf8_bytes": int}
SOURCE_FORM = {"source": str, "column": str, "splits": {str: {"files": [{"path": str, "sha256": str}]} | COUNTS_FORM}}
Dropped = dict[tuple[str, str], np.ndarray]  # (source, split) → the sorted numbers, int64, of documents to leave out


def read_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw after checking the SHA-256 of every file."""
    manifest = open_manifest(raw)
    check_files(raw, files_of(manifest))
    return manifest


def open_manifest(raw: Path) -> dict:
    """Return the manifest of data/raw. Raise IntegrityError if it has another form; the files are not read."""
    manifest = read_json(raw / MANIFEST)
    mixture_form = {"sources": {str: SOURCE_FORM | {"train": dict, "validation": dict}}}
    form = mixture_form if "sources" in manifest else SOURCE_FORM
    check_types(raw / MANIFEST, manifest, form | {"source": str}, "run `dvc repro -f` to make it again")
    return manifest


def describe_in_mixture(manifest: dict, name: str) -> dict:
    """Return a source's manifest for that of the mixture, where its files are in the folder `name`."""
    splits = {}
    for split, entry in manifest["splits"].items():
        splits[split] = {**entry, "files": [{**file, "path": f"{name}/{file['path']}"} for file in entry["files"]]}
    described = {key: value for key, value in manifest.items() if key != "format_version"}
    return {**described, "splits": splits}


def sources_of(manifest: dict) -> dict[str, dict]:
    """Return the manifest of each source by its name; a source that is not a mixture has one source, itself."""
    return manifest.get("sources") or {manifest["source"]: manifest}


def files_of(manifest: dict) -> list[dict]:
    """Return the manifest's entries of all files of all splits of all sources."""
    splits = [split for source in sources_of(manifest).values() for split in source["splits"].values()]
    return [entry for split in splits for entry in split["files"]]


def check_files(raw: Path, files: list[dict]) -> None:
    """Raise IntegrityError if a file does not have the SHA-256 of its entry in the manifest."""
    for entry in files:
        path = safe_join(raw, entry["path"], raw / MANIFEST)
        actual = sha256_file(path) if path.exists() else "no file"
        if actual != entry["sha256"]:
            raise IntegrityError(f"{path}: sha256 is {actual}, the manifest says {entry['sha256']}; {REPAIR}")


def describe_source(raw: Path, manifest: dict) -> dict:
    """Return the entry for a token file's sidecar that identifies data/raw."""
    return {"name": manifest["source"], "manifest_sha256": sha256_file(raw / MANIFEST)}


def iter_rows(raw: Path, manifest: dict, text_slice: Slice, dropped: Dropped | None = None) -> Iterator[Rows]:
    """Yield the slice's rows in order, without null, empty and `dropped` texts.

    Raise DataError if the split lacks the slice, NoDocument if nothing is left, ParamsError for a mixture's weights.
    """
    if "sources" in manifest:
        yield from _mixed_rows(manifest, text_slice, open_sources(raw, manifest, text_slice, dropped))
        return
    if isinstance(text_slice, MixedSlice):
        raise ParamsError(f"sources.{manifest['source']}.train.weights: only a mixture has weights; remove them")
    check_slice(manifest, text_slice)
    paths = (raw / entry["path"] for entry in manifest["splits"][text_slice.split]["files"])
    batches = (batch for path in paths for batch in iter_batches(path, [manifest["column"]]))
    left_out = (dropped or {}).get((manifest["source"], text_slice.split), np.empty(0, np.int64))
    yield from _within(map(_measured, batches), text_slice, f"sources.{manifest['source']}", left_out)


def _measured(batch: pa.RecordBatch) -> Rows:
    """Return a batch and the characters of each text, 0 for null."""
    texts, content = batch.column(0), batch.column(0).buffers()[2]
    is_ascii = content is None or np.frombuffer(content, np.int8).min(initial=0) >= 0
    lengths = (pc.binary_length if is_ascii else pc.utf8_length)(texts)  # the first is a hundred times faster
    lengths = lengths.fill_null(0) if lengths.null_count else lengths
    return batch, np.from_dlpack(lengths).astype(np.int64)  # to_numpy() would import pandas, which is slow


def _within(rows: Iterable[Rows], text_slice: Slice, source: str, left_out: np.ndarray) -> Iterator[Rows]:
    """Yield the rows with text that begin in `text_slice`, without those numbered in `left_out`, (n,) int64, sorted."""
    position, number, is_empty = 0, 0, True
    for batch, lengths in rows:
        ends, has_text = position + np.cumsum(lengths), np.flatnonzero(lengths)
        starts = ends - lengths
        keep = (starts >= text_slice.start_char) & (starts < text_slice.end_char) & (lengths > 0)
        first, last = np.searchsorted(left_out, [number, number + len(has_text)])
        keep[has_text[left_out[first:last] - number]] = False
        if keep.any():
            is_empty = False
            yield (batch if keep.all() else batch.filter(pa.array(keep))), lengths[keep]
        position, number = position + int(lengths.sum()), number + len(has_text)
        if position >= text_slice.end_char:
            break
    if is_empty:
        place = f"in characters {text_slice.start_char} to {text_slice.end_char}"
        why = f"begins {place}; widen the range"
        if len(left_out):
            why = f"{place} is left after the selection; loosen its rules, or widen the range"
        raise NoDocument(f"{source}: no document of split {text_slice.split!r} {why}")
    if position < text_slice.end_char:
        refuse_excess(text_slice, position, source)  # of a mixture, whose length is known only now


@dataclasses.dataclass(frozen=True)
class SourceRows:
    """The documents of a source's slice; each iteration reads them."""

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


def open_sources(raw: Path, manifest: dict, text_slice: Slice, dropped: Dropped | None = None) -> list[MixtureSource]:
    """Return the sources of a mixture that its slice reads, in order; raise ParamsError for weights that do not fit."""
    source, split = f"sources.{manifest['source']}", "train" if isinstance(text_slice, MixedSlice) else "validation"
    if isinstance(text_slice, MixedSlice):
        check_weights(text_slice.weights, manifest["sources"], source)
    elif text_slice.split == "train":
        raise ParamsError(f"{source}.train.weights is missing, and {source} is a mixture; give each source a weight")
    if text_slice.split != split:
        raise ParamsError(f"{source}.{split}.split is {text_slice.split!r}, needed for a mixture: {split}")
    names = [name for name in manifest["sources"] if getattr(text_slice, "weights", {}).get(name, 1)]
    chosen = [(name, manifest["sources"][name]) for name in names]
    opened = [(name, SourceRows(raw, each, Slice(**each[split]), dropped or {})) for name, each in chosen]
    return [MixtureSource(name, rows, rows.num_bytes()) for name, rows in opened]


def _mixed_rows(manifest: dict, text_slice: Slice, sources: list[MixtureSource]) -> Iterator[Rows]:
    """Yield the rows of a mixture that `open_sources` has opened, with the number of the source as column `source`."""
    if isinstance(text_slice, MixedSlice):
        rows = interleave(sources, [text_slice.weights[source.name] for source in sources])
    else:
        rows = (each for number, source in enumerate(sources) for each in tag_rows(source.rows, number))
    if text_slice.start_char == 0 and text_slice.num_chars is None:
        yield from rows
    else:
        yield from _within(rows, text_slice, f"sources.{manifest['source']}", np.empty(0, np.int64))


def expected_chars(manifest: dict, text_slice: Slice) -> float:
    """Return the number of characters of the slice; for a mixture it is an estimate."""
    split = text_slice.split
    if "sources" in manifest:
        weights = getattr(text_slice, "weights", {})
        sources = [each for name, each in manifest["sources"].items() if split in each and weights.get(name, 1)]
        total = sum(expected_chars(each, Slice(**each[split])) for each in sources)
    else:
        total = manifest["splits"].get(split, {}).get("characters", 0)
    return min(total, text_slice.end_char) - text_slice.start_char


def iter_texts(raw: Path, text_slice: Slice, dropped: Dropped | None = None) -> Iterator[list[str]]:
    """Yield the documents of the slice in order, in batches of at most 8,192 strings per source."""
    for batch, _ in iter_rows(raw, read_manifest(raw), text_slice, dropped=dropped):
        yield batch.column(0).to_pylist()


class SourceCount(NamedTuple):
    """Documents and UTF-8 bytes of one source in a stretch of a mixture, and the bytes of one pass over the source."""

    documents: int
    utf8_bytes: int
    pass_bytes: int


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
    raw: Path, manifest: dict, text_slice: Slice, chunk_chars: int, dropped: Dropped | None = None
) -> Iterator[Chunk]:
    """Yield the documents of the slice in order; those of a chunk begin within the same `chunk_chars` characters."""
    sources = open_sources(raw, manifest, text_slice, dropped) if "sources" in manifest else []
    rows = _mixed_rows(manifest, text_slice, sources) if sources else iter_rows(raw, manifest, text_slice, dropped)
    pending, number, position, first_document = [], 0, 0, 0
    for batch, lengths in rows:
        numbers = (position + np.cumsum(lengths) - lengths) // chunk_chars
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
        for begin, end in itertools.pairwise(cuts):
            if pending and numbers[begin] != number:
                yield _chunk(pending, first_document, sources)
                first_document += sum(rows.num_rows for rows, _ in pending)
                pending = []
            number = numbers[begin]
            pending.append((batch.slice(begin, end - begin), lengths[begin:end]))
        position += int(lengths.sum())
    if pending:
        yield _chunk(pending, first_document, sources)


def _chunk(pending: list[Rows], first_document: int, sources: list[MixtureSource]) -> Chunk:
    texts = pa.concat_arrays([rows.column(0).cast(pa.large_string()) for rows, _ in pending])  # one type for all files
    characters, utf8_bytes = int(sum(lengths.sum() for _, lengths in pending)), pc.sum(pc.binary_length(texts)).as_py()
    counts = _count_sources(texts, [rows.column(SOURCE) for rows, _ in pending], sources) if sources else {}
    return Chunk(texts, first_document, characters, utf8_bytes, counts)


def _count_sources(texts: pa.Array, numbers: list[pa.Array], sources: list[MixtureSource]) -> dict[str, SourceCount]:
    """Return the counts of each source among `texts`; `numbers` are those of their sources, in several arrays."""
    number_of, sizes = np.from_dlpack(pa.concat_arrays(numbers)), np.from_dlpack(pc.binary_length(texts))
    documents = np.bincount(number_of, minlength=len(sources))
    num_bytes = [int(sizes[number_of == number].sum()) for number in range(len(sources))]
    counted = zip(sources, documents.tolist(), num_bytes, strict=True)
    return {source.name: SourceCount(count, size, source.num_bytes) for source, count, size in counted}

"""Write data/raw: one parquet file for each split, with the documents that are used, and the manifest.

A source has been fetched into a folder of its own, as lm.text.sources leaves it. Its documents are filtered by the
rules of a selection; those of a mixture are mixed in order. Each row has the text, its source and its UTF-8 bytes.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from lm.core.errors import DataError
from lm.core.files import PARQUET, sha256_file, write_json
from lm.text.documents import MANIFEST, SOURCE, TEXT, UTF8_BYTES
from lm.text.mixture import MixtureSource, interleave, tag_rows
from lm.text.parquet import GROUP_CHARS, ROW_CHARS, iter_batches
from lm.text.rows import Rows, keep_rows, measured, rows_within
from lm.text.rules import Selection
from lm.text.selection import Batch, Marks, select, show_examples
from lm.text.slices import TEST, Slice, check_slice

SCHEMA = pa.schema([(TEXT, pa.large_string()), (SOURCE, pa.string()), (UTF8_BYTES, pa.int64())])


@dataclasses.dataclass(frozen=True)
class Part:
    """A slice of a fetched source; `split` is the split of data/raw that it goes to."""

    source: str
    split: str
    folder: Path
    fetched: dict  # the manifest of the folder
    slice: Slice

    def rows(self) -> Iterator[Rows]:
        """Yield the documents with text of the slice, in order."""
        check_slice(self.fetched, self.slice)
        entries = self.fetched["splits"][self.slice.split]["files"]
        paths = [self.folder / entry["path"] for entry in entries]
        rows = (measured(batch) for path in paths for batch in iter_batches(path, [self.fetched["column"]]))
        yield from rows_within(rows, self.slice, f"sources.{self.source}")

    @property
    def documents(self) -> int:
        """Return the number of documents of the whole split, for a progress bar."""
        return self.fetched["splits"].get(self.slice.split, {}).get("documents", 0)


@dataclasses.dataclass(frozen=True)
class KeptRows:
    """The documents of a part that no rule drops; each iteration reads them."""

    part: Part
    is_kept: np.ndarray | None  # (n,) bool, None for all

    def __iter__(self) -> Iterator[Rows]:
        position = 0
        for batch, lengths in self.part.rows():
            if self.is_kept is None:
                yield batch, lengths
                continue
            own = self.is_kept[position : position + len(lengths)]
            position += len(lengths)
            if own.any():
                yield keep_rows((batch, lengths), own)

    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of the documents; reads them."""
        return sum(pc.sum(pc.binary_length(batch.column(0))).as_py() for batch, _ in self)


def compose(
    folder: Path, source: str, parts: list[Part], weights: dict[str, float] | None, name: str, rules: Selection
) -> dict:
    """Write the files and the manifest of `source` into `folder` and return the manifest.

    The split `test` has an entry of its own in the manifest, apart from the splits that slices name.

    `parts` are in the order in which equal documents are kept; `weights` are those of a mixture's split `train`.
    Raise DataError if the rules, called `name`, leave nothing of a part.
    """
    # Apply the rules; if all are off, the text is not read for them.
    read = functools.partial(read_parts, parts)
    marks = None if rules.keeps_everything else select(read, rules)
    dropped = count_dropped(parts, marks, name)
    places = [{"source": part.source, "split": part.split} for part in parts]
    examples = show_examples(read, marks, places) if marks else {}

    # Write each split, in the order of the parts; a mixture's training text is interleaved.
    kept = [KeptRows(part, marks and marks.is_kept_of(number)) for number, part in enumerate(parts)]
    splits = {}
    for split in sorted({part.split for part in parts}):
        own = [rows for rows in kept if rows.part.split == split]
        names = [rows.part.source for rows in own]
        if weights and split == "train":
            sources = [MixtureSource(rows.part.source, rows, rows.num_bytes()) for rows in own]
            splits[split] = write_split(folder, split, interleave(sources, [weights[each] for each in names]), names)
            for each in sources if len(names) > 1 else ():  # how often the stream holds it, in bytes
                counts = splits[split]["sources"][each.name]
                counts["passes"] = round(counts["utf8_bytes"] / each.num_bytes, 4)
        else:
            in_order = (batch for number, rows in enumerate(own) for batch in tag_rows(rows, number))
            splits[split] = write_split(folder, split, in_order, names)

    fetched = {part.source: describe_source(part.fetched) for part in parts}
    selection = {"name": name, "rules": dataclasses.asdict(rules), "dropped": dropped, "examples": examples}
    test = splits.pop(TEST, None)
    return write_manifest(folder, source, fetched, splits, selection, test)


def write_manifest(
    folder: Path, source: str, sources: dict, splits: dict, selection: dict, test: dict | None = None
) -> dict:
    """Write the manifest of data/raw and return it; `test` is the entry of the split that no stage reads."""
    manifest = {"format_version": 2, "source": source, "splits": splits, "selection": selection, "sources": sources}
    if test:
        manifest[TEST] = test
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_parts(parts: list[Part], task: str) -> Iterator[Batch]:
    """Yield all documents, part by part; show the task's progress."""
    total = sum(part.documents for part in parts)
    with tqdm(total=total, desc=task, unit=" documents", unit_scale=True, disable=None, leave=False) as bar:
        for number, part in enumerate(parts):
            for batch, _ in part.rows():
                yield number, batch.column(0).to_pylist()
                bar.update(batch.num_rows)


def count_dropped(parts: list[Part], marks: Marks | None, name: str) -> dict:
    """Return source → split → rule → documents and characters that it drops; raise DataError if nothing is left."""
    dropped: dict[str, dict] = {}
    for number, part in enumerate(parts):
        found = marks.count_dropped(number) if marks else {}
        if marks and not marks.is_kept_of(number).any():
            rule, most = max(found.items(), key=lambda item: item[1]["documents"])
            lost = f"no document of split {part.split!r} of {part.source} is left"
            why = f"{rule} drops most of them, {most['documents']:,} of {len(marks.is_kept_of(number)):,}"
            raise DataError(f"presets.yaml: selections.{name}: {lost}; {why}; loosen that rule")
        dropped.setdefault(part.source, {})[part.split] = found
    return dropped


def describe_source(fetched: dict) -> dict:
    """Return a fetched source's entry in the manifest; the files are named where they were downloaded."""
    entry = {key: value for key, value in fetched.items() if key not in ("format_version", "source", "column")}
    if entry["kind"] == "hub":
        return entry
    splits = {}
    for name, split in entry["splits"].items():
        splits[name] = {key: value for key, value in split.items() if key != "files"}
    return {**entry, "splits": splits}


def write_split(folder: Path, split: str, rows: Iterable[Rows], names: list[str]) -> dict:
    """Write the rows, each with the number of its source in `names`, to a file; return its entry in the manifest."""
    path = folder / f"{split}.parquet"
    counts = {"documents": 0, "characters": 0, "utf8_bytes": 0}
    by_source = {name: {"documents": 0, "utf8_bytes": 0} for name in names}
    options = {"use_dictionary": [SOURCE], "write_statistics": False, **PARQUET}
    with pq.ParquetWriter(path, SCHEMA, **options) as writer:
        for batch, lengths in _row_groups(rows):
            texts = batch.column(0)
            numbers = np.from_dlpack(batch.column(1))
            sizes = pc.cast(pc.binary_length(texts), pa.int64())
            sources = pa.array(names).take(pa.array(numbers))
            writer.write_table(pa.Table.from_arrays([texts, sources, sizes], schema=SCHEMA))
            num_bytes = np.from_dlpack(sizes)
            counts["documents"] += len(texts)
            counts["characters"] += int(lengths.sum())
            counts["utf8_bytes"] += int(num_bytes.sum())
            for number, name in enumerate(names):
                by_source[name]["documents"] += int(np.count_nonzero(numbers == number))
                by_source[name]["utf8_bytes"] += int(num_bytes[numbers == number].sum())
    if not counts["documents"]:
        raise DataError(f"split {split!r} of {', '.join(names)} has no document; at least one is needed")
    entry = {"path": path.name, "sha256": sha256_file(path), "bytes": path.stat().st_size, **counts}
    return entry | ({"sources": by_source} if len(names) > 1 else {})


def _row_groups(rows: Iterable[Rows]) -> Iterator[Rows]:
    """Join batches until they have about GROUP_CHARS characters, which a row group holds."""
    group = []
    num_chars = 0
    for batch, lengths in rows:
        group.append((batch, lengths))
        num_chars += int(lengths.sum()) + ROW_CHARS * len(lengths)
        if num_chars >= GROUP_CHARS:
            yield _joined(group)
            group = []
            num_chars = 0
    if group:
        yield _joined(group)


def _joined(group: list[Rows]) -> Rows:
    batches = [batch for batch, _ in group]
    arrays = [pa.concat_arrays([batch.column(number) for batch in batches]) for number in range(2)]
    joined = pa.RecordBatch.from_arrays(arrays, names=batches[0].schema.names)
    return joined, np.concatenate([lengths for _, lengths in group])

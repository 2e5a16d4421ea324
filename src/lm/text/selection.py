"""Which documents of data/raw are left out: search them, record them in data/selection, and read them back.

A document is named by its source (one source of a mixture, or the plain source), its split, and its number among the
documents of that split that are neither null nor empty, from 0.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.errors import REPAIR, IntegrityError
from lm.core.files import PARQUET, check_types, read_json, sha256_file, sha256_json, write_json
from lm.text.documents import MANIFEST, Dropped, iter_rows, sources_of
from lm.text.duplicates import digest
from lm.text.rules import KEPT, RULES, Selection, first_broken_rules
from lm.text.slices import Slice

DETAILS, DROPPED = "details.json", "dropped.parquet"
HASHES = "dropped_sha256", "validation_dropped_sha256"  # of dropped.parquet; of its documents in validation slices
REBUILD = "run `dvc repro -f` to make it again"
SCHEMA = pa.schema(
    [
        ("source", pa.string()), ("split", pa.string()), ("document", pa.int64()), ("rule", pa.string()),
        ("repeats_source", pa.string()), ("repeats_split", pa.string()), ("repeats_document", pa.int64()),
    ]
)  # fmt: skip
NUMBERS = pa.schema([SCHEMA.field(name) for name in ("source", "split", "document")])


class Batch(NamedTuple):
    """Some documents of one split, all or none of a validation slice: their numbers (n,) int64 and their texts."""

    source: str
    split: str
    is_validation: bool
    numbers: np.ndarray
    texts: list[str]


@dataclasses.dataclass
class Marks:
    """All documents in the order of `iter_documents`, D of them, and the rule that drops each."""

    sources: list[tuple[str, str]]  # (source, split)
    source: np.ndarray  # (D,) int32, index in `sources`
    is_validation: np.ndarray  # (D,) bool, whether a validation slice holds it
    number: np.ndarray  # (D,) int64, of the document in its split
    chars: np.ndarray  # (D,) int64
    digest: np.ndarray  # (D,) uint64
    rule: np.ndarray  # (D,) uint8, index in RULES, or KEPT
    repeats: np.ndarray  # (D,) int64, position of the document that it repeats, or -1

    @property
    def is_kept(self) -> np.ndarray:
        """Return whether no rule drops a document (D,)."""
        return self.rule == KEPT

    def drop_repeats(self, rule: str, first: np.ndarray) -> None:
        """Drop the kept documents that repeat an earlier one; `first` (n,) numbers them from 0 among the kept ones."""
        kept = np.flatnonzero(self.is_kept)
        repeats = np.flatnonzero(first != np.arange(len(kept)))
        self.rule[kept[repeats]] = RULES.index(rule)
        self.repeats[kept[repeats]] = kept[first[repeats]]


def iter_documents(raw: Path, manifest: dict, validation: dict[str, Slice]) -> Iterator[Batch]:
    """Yield the documents in the validation slices of all sources, then all others in the order of the manifest.

    So the first of several equal documents is a validation document if any of them is one.
    """
    for is_wanted in (True, False):
        for source, entry in sources_of(manifest).items():
            held = validation[source]
            for split in entry["splits"]:
                has_none = split != held.split if is_wanted else held == Slice(split, 0, None)
                if has_none:
                    continue
                for numbers, texts in _choose(raw, entry, split, held, is_wanted):
                    yield Batch(source, split, is_wanted, numbers, texts)


def _choose(raw: Path, entry: dict, split: str, held: Slice, is_wanted: bool) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield numbers and texts of a split's documents inside the slice `held`, or with is_wanted False outside it."""
    number = position = 0
    for batch, lengths in iter_rows(raw, entry, Slice(split, 0, None)):
        starts = position + np.cumsum(lengths) - lengths
        is_held = (split == held.split) & (starts >= held.start_char) & (starts < held.end_char)
        chosen = np.flatnonzero(is_held == is_wanted)
        if len(chosen):
            yield number + chosen, batch.column(0).take(pa.array(chosen)).to_pylist()
        number, position = number + len(lengths), position + int(lengths.sum())


def mark_documents(batches: Iterator[Batch], selection: Selection) -> Marks:
    """Apply the rules that need one document alone, and the rule of exact duplicates."""
    sources, columns = {}, []
    for batch in batches:
        index, num_texts = sources.setdefault((batch.source, batch.split), len(sources)), len(batch.texts)
        columns.append(
            (
                np.full(num_texts, index, np.int32),
                np.full(num_texts, batch.is_validation),
                batch.numbers,
                np.fromiter(map(len, batch.texts), np.int64, num_texts),
                np.fromiter(map(digest, batch.texts), np.uint64, num_texts),
                first_broken_rules(batch.texts, selection),
            )
        )
    arrays = [np.concatenate(values) for values in zip(*columns, strict=True)]
    marks = Marks(list(sources), *arrays, repeats=np.full(len(arrays[0]), -1))
    if selection.exact_duplicates:
        _, first, inverse = np.unique(marks.digest[marks.is_kept], return_index=True, return_inverse=True)
        marks.drop_repeats("exact_duplicates", first[inverse])
    return marks


def kept_texts(batches: Iterator[Batch], marks: Marks) -> Iterator[list[str]]:
    """Yield the texts of the documents that no rule has dropped, batch by batch."""
    position, is_kept = 0, marks.is_kept
    for batch in batches:
        kept = np.flatnonzero(is_kept[position : position + len(batch.texts)])
        if len(kept):
            yield [batch.texts[i] for i in kept]
        position += len(batch.texts)


def texts_at(batches: Iterator[Batch], positions: Sequence[int]) -> dict[int, str]:
    """Return the texts of the documents at some positions of `iter_documents`."""
    found, first, wanted = {}, 0, np.unique(np.asarray(positions, np.int64))
    for batch in batches:
        begin, end = np.searchsorted(wanted, [first, first + len(batch.texts)])
        found |= {int(i): batch.texts[i - first] for i in wanted[begin:end]}
        first += len(batch.texts)
        if end == len(wanted):
            break
    return found


def hash_of_validation(marks: Marks | None) -> str:
    """Return the SHA-256 of the documents that the validation slices lose: with them runs are comparable or not."""
    numbers: dict[str, list[int]] = {}
    if marks:
        for position in np.flatnonzero(marks.is_validation & ~marks.is_kept):
            numbers.setdefault(marks.sources[marks.source[position]][0], []).append(int(marks.number[position]))
    return sha256_json(numbers)


def write_selection(folder: Path, raw: Path, marks: Marks | None, details: dict) -> None:
    """Write dropped.parquet, without rows if `marks` is None, and details.json, which adds hashes to `details`."""
    _write_dropped(folder / DROPPED, marks)
    dropped = dict(zip(HASHES, (sha256_file(folder / DROPPED), hash_of_validation(marks)), strict=True))
    hashes = {"manifest_sha256": sha256_file(raw / MANIFEST), **dropped}
    write_json(folder / DETAILS, {"format_version": 1, **hashes, **details})


def _write_dropped(path: Path, marks: Marks | None) -> None:
    """Write a row for each dropped document, split by split."""
    with pq.ParquetWriter(path, SCHEMA, **PARQUET) as writer:
        if marks is None:
            return
        for index in range(len(marks.sources)):
            dropped = np.flatnonzero((marks.source == index) & ~marks.is_kept)
            dropped = dropped[np.argsort(marks.number[dropped])]
            if len(dropped):
                writer.write_table(_rows(marks, dropped))


def _rows(marks: Marks, dropped: np.ndarray) -> pa.Table:
    """Return the rows of dropped.parquet for documents at some positions."""
    sources, splits = (pa.array(names) for names in zip(*marks.sources, strict=True))
    origin, is_none = marks.repeats[dropped], marks.repeats[dropped] < 0
    of_origin = pa.array(marks.source[origin], mask=is_none)
    source, rule = pa.array(marks.source[dropped]), pa.array(RULES).take(pa.array(marks.rule[dropped]))
    columns = [sources.take(source), splits.take(source), pa.array(marks.number[dropped]), rule]
    columns += [sources.take(of_origin), splits.take(of_origin), pa.array(marks.number[origin], mask=is_none)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def read_dropped(selection: Path, raw: Path) -> Dropped:
    """Return the numbers of the dropped documents by (source, split), each (n,) int64, sorted.

    Raise IntegrityError if the selection was made from another data/raw, or if the file differs from its record.
    """
    describe_selection(selection, raw)
    several = {}
    try:
        file = pq.ParquetFile(selection / DROPPED)
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=NUMBERS.names).cast(NUMBERS)
            key = rows["source"][0].as_py(), rows["split"][0].as_py()
            several.setdefault(key, []).append(np.from_dlpack(rows["document"].combine_chunks()))
    except (pa.ArrowException, OSError, IndexError, ValueError) as error:  # IndexError: a row group without rows
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{selection / DROPPED}: not a list of documents ({reason}); {REBUILD}") from None
    numbers = {key: np.concatenate(arrays) for key, arrays in several.items()}
    if any((np.diff(each) <= 0).any() for each in numbers.values()):
        raise IntegrityError(f"{selection / DROPPED}: its numbers of documents do not ascend; {REBUILD}")
    return numbers


def describe_selection(selection: Path, raw: Path) -> dict:
    """Return the hashes of the selection, as records name it; raise IntegrityError as `read_dropped` does.

    The name of the rules is not among them, so that rules that drop the same documents train nothing again.
    """
    details, path = read_json(selection / DETAILS), selection / DROPPED
    check_types(selection / DETAILS, details, dict.fromkeys(("manifest_sha256", *HASHES), str), REBUILD)
    if details["manifest_sha256"] != sha256_file(raw / MANIFEST):
        raise IntegrityError(f"{selection}: made from another version of {raw}; run `dvc repro`")
    actual = sha256_file(path) if path.exists() else "no file"
    if actual != details["dropped_sha256"]:
        raise IntegrityError(f"{path}: sha256 is {actual}, {DETAILS} says {details['dropped_sha256']}; {REPAIR}")
    return {name: details[name] for name in HASHES}


def sum_by_rule(documents: dict) -> dict:
    """Return the documents and characters that each rule drops in all sources and splits, in the order of RULES.

    `documents` is the entry of details.json.
    """
    by_rule = {rule: {"documents": 0, "characters": 0} for rule in RULES}
    for found in (found for source in documents.values() for found in source.values()):
        for rule, dropped in found["dropped"].items():
            by_rule[rule] = {name: by_rule[rule][name] + dropped[name] for name in dropped}
    return {rule: dropped for rule, dropped in by_rule.items() if dropped["documents"]}

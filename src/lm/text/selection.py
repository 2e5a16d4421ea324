"""Which documents the rules of selection.name leave out, of all that a source or a mixture has.

Documents are numbered in the order in which they are read: validation first, so that of equal documents the one in
validation stays.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lm.text.duplicates import digest
from lm.text.near_duplicates import find_clusters
from lm.text.rules import KEPT, MEASURES, RULES, Selection, first_broken_rules
from lm.text.slices import TEST

NUM_EXAMPLES, EXAMPLE_CHARS = 3, 200  # for each rule
Batch = tuple[int, list[str]]  # the number of a part of the text, and some of its documents
Read = Callable[[str], Iterator[Batch]]  # reads all documents again, for a task that is shown


@dataclasses.dataclass
class Marks:
    """All documents in their order, D of them, and the rule that drops each."""

    part: np.ndarray  # (D,) int32
    chars: np.ndarray  # (D,) int64
    digest: np.ndarray  # (D,) uint64
    rule: np.ndarray  # (D,) uint8, index in RULES, or KEPT
    repeats: np.ndarray  # (D,) int64, number of the document that it repeats, or -1

    @property
    def is_kept(self) -> np.ndarray:
        """Return whether no rule drops a document (D,)."""
        return self.rule == KEPT

    def is_kept_of(self, part: int) -> np.ndarray:
        """Return the same for the documents of one part, (n,)."""
        return self.is_kept[self.part == part]

    def drop_repeats(self, rule: str, first: np.ndarray) -> None:
        """Drop the kept documents that repeat an earlier one; `first` (n,) numbers them from 0 among the kept ones."""
        kept = np.flatnonzero(self.is_kept)
        repeats = np.flatnonzero(first != np.arange(len(kept)))
        self.rule[kept[repeats]] = RULES.index(rule)
        self.repeats[kept[repeats]] = kept[first[repeats]]

    def count_dropped(self, part: int) -> dict[str, dict[str, int]]:
        """Return the documents and characters of a part that each rule drops, without rules that drop nothing."""
        own = self.part == part
        documents = np.bincount(self.rule[own], minlength=len(RULES))
        chars = np.bincount(self.rule[own], weights=self.chars[own], minlength=len(RULES))
        numbers = zip(RULES, documents, chars, strict=False)  # the last counts are those of the kept documents
        return {rule: {"documents": int(n), "characters": int(c)} for rule, n, c in numbers if n}


def select(read: Read, selection: Selection) -> Marks:
    """Mark the documents to drop."""
    marks = mark_documents(read("rules"), selection)
    if selection.near_duplicates.threshold is not None:
        kept = kept_texts(read("near-duplicates"), marks)
        marks.drop_repeats("near_duplicates", find_clusters(kept, selection.near_duplicates))
    return marks


def mark_documents(batches: Iterator[Batch], selection: Selection) -> Marks:
    """Apply the rules that need one document alone, and the rule of exact duplicates."""
    columns = []
    for part, texts in batches:
        columns.append(
            (
                np.full(len(texts), part, np.int32),
                np.fromiter(map(len, texts), np.int64, len(texts)),
                np.fromiter(map(digest, texts), np.uint64, len(texts)),
                first_broken_rules(texts, selection),
            )
        )
    arrays = [np.concatenate(values) for values in zip(*columns, strict=True)]
    marks = Marks(*arrays, repeats=np.full(len(arrays[0]), -1))
    if selection.exact_duplicates:
        _, first, inverse = np.unique(marks.digest[marks.is_kept], return_index=True, return_inverse=True)
        marks.drop_repeats("exact_duplicates", first[inverse])
    return marks


def kept_texts(batches: Iterator[Batch], marks: Marks) -> Iterator[list[str]]:
    """Yield the texts of the documents that no rule has dropped, batch by batch."""
    position = 0
    is_kept = marks.is_kept
    for _, texts in batches:
        kept = np.flatnonzero(is_kept[position : position + len(texts)])
        if len(kept):
            yield [texts[i] for i in kept]
        position += len(texts)


def texts_at(batches: Iterator[Batch], numbers: Sequence[int]) -> dict[int, str]:
    """Return the texts of the documents with some numbers."""
    found = {}
    first = 0
    wanted = np.unique(np.asarray(numbers, np.int64))
    for _, texts in batches:
        begin, end = np.searchsorted(wanted, [first, first + len(texts)])
        found |= {int(i): texts[i - first] for i in wanted[begin:end]}
        first += len(texts)
        if end == len(wanted):
            break
    return found


def show_examples(read: Read, marks: Marks, places: list[dict]) -> dict[str, list[dict]]:
    """Return for each rule the beginnings of a few dropped documents, spread over all, and of what they repeat.

    `places` describes each part. Nothing of the split `test` is shown.
    """
    # Leave out the documents of the split test, and those that repeat one of them.
    part_is_shown = np.array([place["split"] != TEST for place in places])
    is_shown = part_is_shown[marks.part]
    repeats = np.flatnonzero(marks.repeats >= 0)
    is_shown[repeats] &= part_is_shown[marks.part[marks.repeats[repeats]]]

    chosen = {}
    for index, rule in enumerate(RULES):
        if len(dropped := np.flatnonzero((marks.rule == index) & is_shown)):
            chosen[rule] = dropped[np.unique(np.linspace(0, len(dropped) - 1, NUM_EXAMPLES).astype(int))].tolist()
    numbers = [number for several in chosen.values() for number in several]
    origins = [number for number in marks.repeats[numbers].tolist() if number >= 0]
    texts = texts_at(read("examples"), numbers + origins)

    def describe(number: int) -> dict:
        text = texts[number]
        return {**places[marks.part[number]], "characters": len(text), "text": text[:EXAMPLE_CHARS]}

    def describe_dropped(number: int, rule: str) -> dict:
        if rule in MEASURES:
            return describe(number) | {"value": MEASURES[rule][0](texts[number])}
        return describe(number) | {"repeats": describe(int(marks.repeats[number]))}

    return {rule: [describe_dropped(number, rule) for number in several] for rule, several in chosen.items()}


def sum_by_rule(dropped: dict) -> dict:
    """Return the documents and characters that each rule drops in all sources and splits, in the order of RULES.

    `dropped` is that of the manifest: source → split → rule → counts.
    """
    by_rule = {rule: {"documents": 0, "characters": 0} for rule in RULES}
    for found in (found for splits in dropped.values() for found in splits.values()):
        for rule, counts in found.items():
            by_rule[rule] = {name: by_rule[rule][name] + counts[name] for name in counts}
    return {rule: counts for rule, counts in by_rule.items() if counts["documents"]}

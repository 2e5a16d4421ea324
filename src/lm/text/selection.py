"""Choose which documents of a source or a mixture the rules of selection.name drop.

Documents are numbered in the order in which they are read. Validation is read first, so that of equal documents the
one in validation is kept.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lm.text.duplicates import digest
from lm.text.near_duplicates import NearDuplicates, find_clusters
from lm.text.rules import KEPT, MEASURES, RULES, Selection, first_broken_rules
from lm.text.slices import TEST

NUM_EXAMPLES = 3  # for each rule
EXAMPLE_CHARS = 200  # of each example
Batch = tuple[int, list[str]]  # the number of a part of the text, and some of its documents
Read = Callable[[str], Iterator[Batch]]  # reads all documents again, for a task that is shown


@dataclasses.dataclass
class Marks:
    """The D documents in their order, and the rule that drops each."""

    part: np.ndarray  # (D,) int32
    chars: np.ndarray  # (D,) int64
    digest: np.ndarray  # (D,) uint64
    rule: np.ndarray  # (D,) uint8, index in RULES, or KEPT
    repeats: np.ndarray  # (D,) int64, number of the document that it repeats, or -1

    @property
    def is_kept(self) -> np.ndarray:
        """Return whether each document is kept: (D,) bool."""
        return self.rule == KEPT

    def is_kept_of(self, part: int) -> np.ndarray:
        """Return whether each document of one part is kept: (n,) bool."""
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
        counts = {}
        for index, rule in enumerate(RULES):
            if documents[index] > 0:
                counts[rule] = {"documents": int(documents[index]), "characters": int(chars[index])}
        return counts


def select(read: Read, selection: Selection) -> Marks:
    """Mark the documents to drop."""
    marks = mark_documents(read("rules"), selection)
    chosen = selection.near_duplicates
    if chosen.threshold is not None:
        params = NearDuplicates(chosen.threshold, chosen.ngram_words, chosen.num_permutations, rule=3)
        kept = kept_texts(read("near-duplicates"), marks)
        marks.drop_repeats("near_duplicates", find_clusters(kept, params))
    return marks


def mark_documents(batches: Iterator[Batch], selection: Selection) -> Marks:
    """Apply the rules that need one document alone, and the rule of exact duplicates."""
    parts = []
    chars = []
    digests = []
    rules = []
    for part, texts in batches:
        parts.append(np.full(len(texts), part, np.int32))
        chars.append(np.fromiter(map(len, texts), np.int64, len(texts)))
        digests.append(np.fromiter(map(digest, texts), np.uint64, len(texts)))
        rules.append(first_broken_rules(texts, selection))
    part_of_document = np.concatenate(parts)
    marks = Marks(
        part=part_of_document,
        chars=np.concatenate(chars),
        digest=np.concatenate(digests),
        rule=np.concatenate(rules),
        repeats=np.full(len(part_of_document), -1),
    )
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
    first = 0  # number of the first document of a batch
    wanted = np.unique(np.asarray(numbers, np.int64))
    for _, texts in batches:
        begin, end = np.searchsorted(wanted, [first, first + len(texts)])
        for number in wanted[begin:end].tolist():
            found[number] = texts[number - first]
        first += len(texts)
        if end == len(wanted):
            break
    return found


def show_examples(read: Read, marks: Marks, places: list[dict]) -> dict[str, list[dict]]:
    """Return for each rule the beginnings of a few dropped documents, and of the documents that they repeat.

    `places` describes each part. Nothing of the split `test` is shown.
    """
    # Leave out the documents of the split test, and those that repeat one of them.
    part_is_shown = np.array([place["split"] != TEST for place in places])
    is_shown = part_is_shown[marks.part]
    repeats = np.flatnonzero(marks.repeats >= 0)
    part_of_origin = marks.part[marks.repeats[repeats]]
    is_shown[repeats] &= part_is_shown[part_of_origin]

    # Choose a few documents for each rule, equally far apart.
    chosen: dict[str, list[int]] = {}
    for index, rule in enumerate(RULES):
        dropped = np.flatnonzero((marks.rule == index) & is_shown)
        if len(dropped) > 0:
            places_in_dropped = np.linspace(0, len(dropped) - 1, NUM_EXAMPLES).astype(int)
            chosen[rule] = dropped[np.unique(places_in_dropped)].tolist()

    # Read their texts, and those of the documents that they repeat.
    numbers = list(itertools.chain(*chosen.values()))
    origins = [origin for origin in marks.repeats[numbers].tolist() if origin >= 0]
    texts = texts_at(read("examples"), numbers + origins)

    def describe(number: int) -> dict:
        place = places[marks.part[number]]
        text = texts[number]
        return {**place, "characters": len(text), "text": text[:EXAMPLE_CHARS]}

    examples: dict[str, list[dict]] = {}
    for rule, numbers_of_rule in chosen.items():
        examples[rule] = []
        for number in numbers_of_rule:
            example = describe(number)
            if rule in MEASURES:
                measure, _ = MEASURES[rule]
                example["value"] = measure(texts[number])
            else:
                example["repeats"] = describe(int(marks.repeats[number]))
            examples[rule].append(example)
    return examples


def sum_by_rule(dropped: dict) -> dict:
    """Return the documents and characters that each rule drops in all sources and splits, in the order of RULES.

    `dropped` is that of the manifest: source → split → rule → counts.
    """
    totals = {rule: {"documents": 0, "characters": 0} for rule in RULES}
    for splits in dropped.values():
        for by_rule in splits.values():
            for rule, counts in by_rule.items():
                totals[rule]["documents"] += counts["documents"]
                totals[rule]["characters"] += counts["characters"]
    return {rule: counts for rule, counts in totals.items() if counts["documents"] > 0}

"""Stage select: apply the rules that selection.name chooses to data/raw → data/selection.

    python src/select_documents.py --raw data/raw --selection data/selection

dropped.parquet lists the documents to leave out, each with the first rule that it breaks, and for a duplicate the
document that it repeats. details.json counts them and shows examples. The text itself is not copied.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

import numpy as np
from tqdm import tqdm

from lm.core.errors import DataError, command
from lm.core.files import atomic_folder, output_lock, read_json
from lm.core.params import read_section
from lm.text.documents import MANIFEST, read_manifest, sources_of
from lm.text.near_duplicates import find_clusters
from lm.text.rules import MEASURES, RULES, Selection
from lm.text.selection import (
    Batch,
    Marks,
    iter_documents,
    kept_texts,
    mark_documents,
    sum_by_rule,
    texts_at,
    write_selection,
)
from lm.text.slices import Slice

PARAMS, PRESETS, SOURCES = "params.yaml", "presets.yaml", "sources.yaml"
NUM_EXAMPLES, EXAMPLE_CHARS = 3, 200  # for each rule


@dataclasses.dataclass(frozen=True)
class Text:
    """The documents of data/raw, and the validation slice of each source."""

    raw: Path
    manifest: dict
    validation: dict[str, Slice]

    def read(self, task: str) -> Iterator[Batch]:
        """Yield all documents, those of the validation slices first; show the task's progress."""
        splits = [split for source in sources_of(self.manifest).values() for split in source["splits"].values()]
        total = sum(split["documents"] for split in splits)
        with tqdm(total=total, desc=task, unit=" documents", unit_scale=True, disable=None, leave=False) as bar:
            for batch in iter_documents(self.raw, self.manifest, self.validation):
                yield batch
                bar.update(len(batch.texts))


def open_text(raw: Path) -> Text:
    """Check the files of data/raw and return them with the validation slices; a mixture's are in its manifest."""
    manifest, source = read_manifest(raw), read_section(PARAMS, "data.source", str)
    own = read_section(SOURCES, f"sources.{source}.validation", Slice)
    mixed = {name: Slice(**each["validation"]) for name, each in manifest.get("sources", {}).items()}
    return Text(raw, manifest, mixed or {manifest["source"]: own})


def select(text: Text, selection: Selection) -> Marks:
    """Mark the documents to drop."""
    marks = mark_documents(text.read("rules"), selection)
    rule = selection.near_duplicates
    if rule.threshold is not None:
        kept = kept_texts(text.read("near-duplicates"), marks)
        marks.drop_repeats("near_duplicates", find_clusters(kept, rule))
    return marks


def count(manifest: dict, marks: Marks | None) -> dict:
    """Return by source and split the documents, those kept, and the documents and characters that each rule drops."""
    counts = {}
    for source, entry in sources_of(manifest).items():
        for split, found in entry["splits"].items():
            dropped = count_dropped(marks, (source, split)) if marks else {}
            kept = found["documents"] - sum(each["documents"] for each in dropped.values())
            counts.setdefault(source, {})[split] = {"documents": found["documents"], "kept": kept, "dropped": dropped}
    return counts


def count_dropped(marks: Marks, source: tuple[str, str]) -> dict:
    """Return the documents and characters of a split that each rule drops, without rules that drop nothing."""
    own = marks.source == marks.sources.index(source)
    documents = np.bincount(marks.rule[own], minlength=len(RULES))
    chars = np.bincount(marks.rule[own], weights=marks.chars[own], minlength=len(RULES))
    numbers = zip(RULES, documents, chars, strict=False)  # the last counts are those of the kept documents
    return {rule: {"documents": int(n), "characters": int(c)} for rule, n, c in numbers if n}


def refuse_empty(counts: dict, name: str) -> None:
    """Raise DataError if nothing is left of a split."""
    for source, splits in counts.items():
        for split, found in splits.items():
            if found["dropped"] and not found["kept"]:
                rule, most = max(found["dropped"].items(), key=lambda item: item[1]["documents"])
                lost = f"no document of split {split!r} of {source} is left"
                why = f"{rule} drops most of them, {most['documents']:,} of {found['documents']:,}"
                raise DataError(f"{PRESETS}: selections.{name}: {lost}; {why}; loosen that rule")


def show_examples(text: Text, marks: Marks) -> dict:
    """Return for each rule the beginnings of a few dropped documents, spread over all, and of what they repeat."""
    chosen = {}
    for index, rule in enumerate(RULES):
        if len(dropped := np.flatnonzero(marks.rule == index)):
            chosen[rule] = dropped[np.unique(np.linspace(0, len(dropped) - 1, NUM_EXAMPLES).astype(int))].tolist()
    positions = [position for several in chosen.values() for position in several]
    origins = [position for position in marks.repeats[positions].tolist() if position >= 0]
    texts = texts_at(text.read("examples"), positions + origins)
    return {rule: [describe_example(marks, texts, p, rule) for p in several] for rule, several in chosen.items()}


def describe_example(marks: Marks, texts: dict[int, str], position: int, rule: str) -> dict:
    """Return a dropped document's place and beginning, and the value that its rule measured or what it repeats."""
    example = describe_document(marks, texts, position)
    if rule in MEASURES:
        return example | {"value": MEASURES[rule][0](texts[position])}
    return example | {"repeats": describe_document(marks, texts, int(marks.repeats[position]))}


def describe_document(marks: Marks, texts: dict[int, str], position: int) -> dict:
    """Return a document's source, split and number, its length, and its beginning."""
    source, split = marks.sources[marks.source[position]]
    place = {"source": source, "split": split, "document": int(marks.number[position])}
    return place | {"characters": len(texts[position]), "text": texts[position][:EXAMPLE_CHARS]}


def summary(counts: dict) -> str:
    """Return how many documents are dropped, and by which rules."""
    splits = [found for source in counts.values() for found in source.values()]
    total, kept = (sum(found[name] for found in splits) for name in ("documents", "kept"))
    by_rule = sum_by_rule(counts)
    rules = ", ".join(f"{rule} {each['documents']:,}" for rule, each in by_rule.items())
    return f"{total - kept:,} of {total:,} documents dropped" + (f": {rules}" if rules else "")


@command
def main(argv: list[str]) -> None:
    """Write the folder --selection; it appears complete or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--raw", type=Path, required=True, help="folder of the text and its manifest")
    parser.add_argument("--selection", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)

    # Read the selected preset.
    name = read_section(PARAMS, "selection.name", str)
    selection = read_section(PRESETS, f"selections.{name}", Selection)

    with output_lock(args.selection), atomic_folder(args.selection) as folder:
        # Apply the rules; if all are off, the text is not read.
        marks, examples = None, {}
        if not selection.keeps_everything:
            text = open_text(args.raw)
            marks = select(text, selection)
            examples = show_examples(text, marks)
        counts = count(read_json(args.raw / MANIFEST), marks)
        refuse_empty(counts, name)

        # Write the dropped documents, then their counts and hashes.
        rules = dataclasses.asdict(selection)
        details = {"selection": name, "rules": rules, "documents": counts, "examples": examples}
        write_selection(folder, args.raw, marks, details)

    # Report what each rule dropped.
    print(f"{args.selection}: {summary(counts)}")


if __name__ == "__main__":
    sys.exit(main())

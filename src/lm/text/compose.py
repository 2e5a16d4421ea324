"""Make data/raw from the fetched sources: filter their documents by the rules of a selection, mix and write them.

lm.text.parts reads the documents, lm.text.mixture interleaves those of a mixture, and lm.text.raw_files writes them.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from lm.core.errors import DataError
from lm.text.config import Selection
from lm.text.mixture import MixtureSource, interleave, tag_rows
from lm.text.parts import KeptRows, Part, read_parts
from lm.text.raw_files import write_manifest, write_split
from lm.text.rules import keeps_everything
from lm.text.selection import Marks, select, show_examples
from lm.text.slices import TEST


def compose(
    folder: Path, source: str, parts: list[Part], weights: dict[str, float] | None, name: str, rules: Selection
) -> dict:
    """Write the files and the manifest of `source` into `folder` and return the manifest.

    The manifest lists the split `test` separately from the splits that slices name.

    parts: of equal documents, the first in this order is kept. weights: those of a mixture's split `train`.
    Raise DataError if the rules, called `name`, drop all documents of a part.
    """
    # Apply the rules; if all are off, the text is not read for them.
    read = functools.partial(read_parts, parts)
    marks = None if keeps_everything(rules) else select(read, rules)
    dropped = count_dropped(parts, marks, name)
    places = [{"source": part.source, "split": part.output_split} for part in parts]
    examples = show_examples(read, marks, places) if marks else {}

    # Write each split, in the order of the parts; a mixture's training text is interleaved.
    kept_by_split: dict[str, list[KeptRows]] = {}
    for number, part in enumerate(parts):
        is_kept = marks.is_kept_of(number) if marks else None
        kept_by_split.setdefault(part.output_split, []).append(KeptRows(part, is_kept))
    splits = {}
    for split, kept in sorted(kept_by_split.items()):
        if weights and split == "train":
            splits[split] = write_interleaved(folder, split, kept, weights)
        else:
            splits[split] = write_in_order(folder, split, kept)

    # Describe what was written and where it comes from.
    fetched = {part.source: describe_source(part.fetched) for part in parts}
    selection = {"name": name, "rules": dataclasses.asdict(rules), "dropped": dropped, "examples": examples}
    test = splits.pop(TEST, None)
    return write_manifest(folder, source, fetched, splits, selection, test)


def count_dropped(parts: list[Part], marks: Marks | None, name: str) -> dict:
    """Return source → split → rule → dropped documents and characters. Raise DataError if a part has none left."""
    dropped: dict[str, dict] = {}
    for number, part in enumerate(parts):
        by_rule = {}
        if marks:
            by_rule = marks.count_dropped(number)
            reject_nothing_left(part, marks.is_kept_of(number), by_rule, name)
        dropped.setdefault(part.source, {})[part.output_split] = by_rule
    return dropped


def reject_nothing_left(part: Part, is_kept: np.ndarray, by_rule: dict, name: str) -> None:
    """Raise DataError, with the rule of `name` that drops most, if `is_kept` (n,) keeps no document of a part."""
    if is_kept.any():
        return
    rule = max(by_rule, key=lambda rule: by_rule[rule]["documents"])
    num_dropped = by_rule[rule]["documents"]
    lost = f"no document of split {part.output_split!r} of {part.source} is left"
    why = f"{rule} drops most of them, {num_dropped:,} of {len(is_kept):,}"
    raise DataError(f"presets.yaml: selections.{name}: {lost}; {why}; loosen that rule")


def write_in_order(folder: Path, split: str, kept: list[KeptRows]) -> dict:
    """Write the documents of parts, one part after the other, to the file of a split; return its entry."""
    names = [rows.part.source for rows in kept]
    in_order = (batch for number, rows in enumerate(kept) for batch in tag_rows(rows, number))
    return write_split(folder, split, in_order, names)


def write_interleaved(folder: Path, split: str, kept: list[KeptRows], weights: dict[str, float]) -> dict:
    """Write the documents of parts, interleaved by the weights of their sources, to the file of a split.

    Return its entry in the manifest. With several sources, the entry gives for each the number of passes over it, its
    fraction of the bytes, and its weight.
    """
    sources = [MixtureSource(rows.part.source, rows, rows.num_bytes()) for rows in kept]
    names = [source.name for source in sources]
    weights_in_order = [weights[name] for name in names]
    entry = write_split(folder, split, interleave(sources, weights_in_order), names)
    if len(sources) > 1:
        for source in sources:
            counts = entry["sources"][source.name]
            counts["passes"] = round(counts["utf8_bytes"] / source.num_bytes, 4)
            counts["fraction"] = round(counts["utf8_bytes"] / entry["utf8_bytes"], 4)
            counts["weight"] = round(weights[source.name] / sum(weights_in_order), 4)
    return entry


def describe_source(fetched: dict) -> dict:
    """Return a fetched source's entry in the manifest; the files are named where they were downloaded."""
    entry = {key: value for key, value in fetched.items() if key not in ("source", "column")}
    if entry["kind"] == "hub":
        return entry
    splits = {}
    for name, split in entry["splits"].items():
        splits[name] = {key: value for key, value in split.items() if key != "files"}
    return {**entry, "splits": splits}

"""Make data/raw of the fetched sources: filter their documents by the rules of a selection, mix them, write them.

Those of a mixture are mixed in order. lm.text.parts reads the documents, and lm.text.raw_files writes them.
"""

import dataclasses
import functools
from pathlib import Path

from lm.core.errors import DataError
from lm.text.mixture import MixtureSource, interleave, tag_rows
from lm.text.parts import KeptRows, Part, read_parts
from lm.text.raw_files import write_manifest, write_split
from lm.text.rules import Selection
from lm.text.selection import Marks, select, show_examples
from lm.text.slices import TEST


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

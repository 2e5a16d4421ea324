"""Stage resolve: the definition of data.source, with the presets of a mixture's parts → data/source.json.

python src/resolve.py --definition data/source.json

DVC tracks presets by name and cannot follow a list of names, so this stage reads all of presets.yaml. The stage fetch
depends on data/source.json, and runs only if that has changed.
"""

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Literal

import lm.core.environment  # noqa: F401 - notes who started this process

from lm.core.errors import ParamsError, command
from lm.core.files import output_lock, write_json
from lm.core.params import needed, read_section
from lm.text.slices import MixedSlice, Slice, check_weights, refuse_overlap

PARAMS, PRESETS = "params.yaml", "presets.yaml"


@dataclasses.dataclass(frozen=True)
class MixtureFetch:
    """The names of the sources that a mixture consists of."""

    kind: Literal["mixture"]
    parts: tuple[str, ...]

    def __post_init__(self):
        needed(self.parts, "parts", "empty", "at least one source")
        for name in self.parts:
            needed(re.fullmatch(r"\w[\w-]*", name), "parts", f"{name!r} in the list", "letters, digits, _ and -")
            needed(self.parts.count(name) == 1, "parts", f"a list with {name!r} twice", "each once, with a weight")


def kind_of(source: str) -> str:
    """Return the kind of a source."""
    return read_section(PRESETS, f"sources.{source}.fetch.kind", str)


def definition_of(source: str) -> dict:
    """Return what fetch needs to know about a source that is not a mixture."""
    return {"fetch": read_section(PRESETS, f"sources.{source}.fetch", dict)}


def definitions_of_parts(source: str) -> dict[str, dict]:
    """Return the definition and the slices of each part of a mixture. Raise ParamsError for what does not fit."""
    where = f"{PRESETS}: sources.{source}"
    parts = {}
    for name in read_section(PRESETS, f"sources.{source}.fetch", MixtureFetch).parts:
        if name not in read_section(PRESETS, "sources", dict):
            raise ParamsError(f"{where}.fetch.parts names {name!r}, which is not a source of {PRESETS}")
        if kind_of(name) == "mixture":
            raise ParamsError(f"{where}.fetch.parts names {name!r}, a mixture itself; name its parts instead")
        train = read_section(PRESETS, f"sources.{name}.train", Slice)
        validation = read_section(PRESETS, f"sources.{name}.validation", Slice)
        refuse_overlap(train, validation, f"{PRESETS}: sources.{name}")
        slices = {"train": dataclasses.asdict(train), "validation": dataclasses.asdict(validation)}
        parts[name] = definition_of(name) | slices
    # The weights are checked before anything is fetched; only the stages that read them depend on them.
    check_weights(read_section(PRESETS, f"sources.{source}.train", MixedSlice).weights, parts, where)
    return parts


@command
def main(argv: list[str]) -> None:
    """Write the definition of the selected source to --definition."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--definition", type=Path, required=True, help="JSON file to write")
    path = parser.parse_args(argv).definition

    # Look the source up, and the parts of a mixture.
    source = read_section(PARAMS, "data.source", str)
    kind = kind_of(source)
    parts = definitions_of_parts(source) if kind == "mixture" else {source: definition_of(source)}

    # Write them.
    with output_lock(path):
        try:
            write_json(path, {"source": source, "kind": kind, "parts": parts})
        except (TypeError, ValueError) as error:
            raise ParamsError(f"{PRESETS}: sources.{source}: a value fits into no JSON file ({error})") from None
    print(f"{path}: {source}, of kind {kind}" + (f": {', '.join(parts)}" if kind == "mixture" else ""))


if __name__ == "__main__":
    sys.exit(main())

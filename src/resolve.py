"""Stage resolve: check all parameters; the definition of data.source, and of a mixture's sources → data/source.json.

python src/resolve.py --definition data/source.json

DVC tracks presets by name and cannot follow a list of names, so this stage reads all of presets.yaml. The stage fetch
depends on data/source.json, and runs only if that has changed.
"""

import argparse
import dataclasses
import importlib
import re
import sys
from pathlib import Path
from typing import Literal

import lm.core.environment  # noqa: F401 - notes who started this process

from lm.core.errors import ParamsError, command
from lm.core.files import output_lock, write_json
from lm.core.params import find_problems, read_section, read_yaml, require
from lm.text.rules import Selection
from lm.text.slices import AnySlice, MixedSlice, Slice, check_weights, refuse_overlap
from lm.text.sources.kinds import SourceFetch
from lm.text.sources.local import LocalPath

PARAMS, PRESETS, RUNTIME = "params.yaml", "presets.yaml", "runtime.yaml"


@dataclasses.dataclass(frozen=True)
class MixtureFetch:
    """The names of the sources that a mixture consists of."""

    kind: Literal["mixture"]
    sources: tuple[str, ...]

    def __post_init__(self):
        require(self.sources, "sources", "empty", "at least one source")
        for name in self.sources:
            require(re.fullmatch(r"\w[\w-]*", name), "sources", f"{name!r} in the list", "letters, digits, _ and -")
            require(self.sources.count(name) == 1, "sources", f"a list with {name!r} twice", "each once, with a weight")


AnyFetch = SourceFetch | MixtureFetch


def check_parameters(source: str) -> None:
    """Raise ParamsError with all that any stage would refuse in its own sections, before text is fetched or tokenized.

    Neither these values nor the classes of later stages, which are loaded by name, are dependencies of this stage: none
    changes data/source.json. Where DVC skips it, the stage that reads a section refuses it, and train those of eval.
    """
    later = lambda module, name: getattr(importlib.import_module(module), name)  # noqa: E731
    sections = {
        "local": LocalPath,
        "train": later("lm.train.config", "TrainParams"),
        "eval": later("lm.evaluate.config", "EvalParams"),
    }
    names: dict[str, type] = dict.fromkeys(("selection.name", "tokenizer.name", "model.name"), str)
    problems = find_problems(PARAMS, names | sections)
    if not find_problems(PARAMS, names):
        selection, tokenizer, model = (read_yaml(PARAMS)[name.removesuffix(".name")]["name"] for name in names)
        problems += find_problems(PRESETS, {
            f"sources.{source}.fetch": AnyFetch, f"sources.{source}.train": AnySlice,
            f"sources.{source}.validation": Slice,
            f"sources.{source}.prompts": tuple[str, ...], f"selections.{selection}": Selection,
            f"tokenizers.{tokenizer}": later("make_tokenizer", "TokenizerParams"),
            f"models.{model}": later("lm.model.config", "ModelParams"),
        })  # fmt: skip
    runtime = {
        "tokenize": later("tokenize_split", "TokenizeRuntime"),
        "train": later("lm.train.config", "TrainRuntime"),
    }
    problems += find_problems(RUNTIME, runtime)
    if problems:
        raise ParamsError("\n".join(problems))


def definitions_of_sources(source: str, names: tuple[str, ...]) -> dict[str, dict]:
    """Return the definition and the slices of each source of a mixture. Raise ParamsError for what does not fit."""
    where = f"{PRESETS}: sources.{source}"
    sources = {}
    for name in names:
        presets = read_section(PRESETS, "sources", dict)
        if name not in presets:
            raise ParamsError(f"{where}.fetch.sources names {name!r}, which is not a source of {PRESETS}")
        fetch = read_section(PRESETS, f"sources.{name}.fetch", AnyFetch)
        if isinstance(fetch, MixtureFetch):
            raise ParamsError(f"{where}.fetch.sources names {name!r}, a mixture itself; name its sources instead")
        train = read_section(PRESETS, f"sources.{name}.train", Slice)
        validation = read_section(PRESETS, f"sources.{name}.validation", Slice)
        refuse_overlap(train, validation, f"{PRESETS}: sources.{name}")
        sections = {"fetch": fetch, "train": train, "validation": validation}
        sources[name] = {key: dataclasses.asdict(section) for key, section in sections.items()}
    # The weights are checked before anything is fetched; only the stages that read them depend on them.
    check_weights(read_section(PRESETS, f"sources.{source}.train", MixedSlice).weights, sources, where)
    return sources


@command
def main(argv: list[str]) -> None:
    """Write the definition of the selected source to --definition."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--definition", type=Path, required=True, help="JSON file to write")
    path = parser.parse_args(argv).definition

    # Check what all stages will read. Look the source up, and the sources of a mixture.
    source = read_section(PARAMS, "data.source", str)
    check_parameters(source)
    fetch = read_section(PRESETS, f"sources.{source}.fetch", AnyFetch)
    if isinstance(fetch, MixtureFetch):
        sources = definitions_of_sources(source, fetch.sources)
    else:
        sources = {source: {"fetch": dataclasses.asdict(fetch)}}

    with output_lock(path):
        write_json(path, {"source": source, "kind": fetch.kind, "sources": sources})
    print(f"{path}: {source}, of kind {fetch.kind}" + (f": {', '.join(sources)}" if fetch.kind == "mixture" else ""))


if __name__ == "__main__":
    sys.exit(main())

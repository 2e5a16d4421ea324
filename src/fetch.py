"""Stage fetch: a source of text, or each source of a mixture → data/raw (parquet files and manifest.json).

python src/fetch.py --raw data/raw

It depends on all of sources.yaml, because DVC cannot follow the list of a mixture's sources. As the first stage it
checks all parameters, so that a wrong one is found before text is fetched and tokenized.
"""

import argparse
import dataclasses
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.errors import ParamsError, command
from lm.core.files import atomic_folder, output_lock, write_json
from lm.core.params import find_problems, read_section, read_yaml
from lm.text.documents import MANIFEST, describe_in_mixture, sources_of
from lm.text.rules import Selection
from lm.text.slices import AnySlice, MixedSlice, Slice, check_weights, refuse_overlap
from lm.text.sources.kinds import AnyFetch, MixtureFetch, SourceFetch, fetch_source
from lm.text.sources.local import LocalPath, link_into_copy

PARAMS, PRESETS, SOURCES, RUNTIME = "params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"


@dataclasses.dataclass(frozen=True)
class MixedSource:
    """A source of a mixture: how it is fetched, and which parts of it the mixture takes."""

    fetch: SourceFetch
    train: Slice
    validation: Slice


def check_parameters(source: str) -> None:
    """Raise ParamsError with all that any stage would refuse in its own sections, before text is fetched or tokenized.

    Neither these values nor the classes of later stages, which are loaded by name, are dependencies of this stage: none
    changes data/raw. Where DVC skips it, the stage that reads a section refuses it, and train those of eval.
    """
    later = lambda module, name: getattr(importlib.import_module(module), name)  # noqa: E731
    sections = {
        "local": LocalPath,
        "train": later("lm.train.config", "TrainParams"),
        "eval": later("lm.evaluate.config", "EvalParams"),
    }
    names: dict[str, type] = dict.fromkeys(("selection.name", "tokenizer.name", "model.name"), str)
    problems = find_problems(PARAMS, names | sections)
    problems += find_problems(SOURCES, {
        f"sources.{source}.fetch": AnyFetch, f"sources.{source}.train": AnySlice,
        f"sources.{source}.validation": Slice, f"sources.{source}.prompts": tuple[str, ...],
    })  # fmt: skip
    if not find_problems(PARAMS, names):
        selection, tokenizer, model = (read_yaml(PARAMS)[name.removesuffix(".name")]["name"] for name in names)
        problems += find_problems(PRESETS, {
            f"selections.{selection}": Selection,
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


def read_mixture(source: str, names: tuple[str, ...]) -> dict[str, MixedSource]:
    """Return the sources of a mixture by name. Raise ParamsError for what does not fit."""
    where = f"{SOURCES}: sources.{source}"
    sources = {}
    for name in names:
        if name not in read_section(SOURCES, "sources", dict):
            raise ParamsError(f"{where}.fetch.sources names {name!r}, which is not a source of {SOURCES}")
        fetch = read_section(SOURCES, f"sources.{name}.fetch", AnyFetch)
        if isinstance(fetch, MixtureFetch):
            raise ParamsError(f"{where}.fetch.sources names {name!r}, a mixture itself; name its sources instead")
        train = read_section(SOURCES, f"sources.{name}.train", Slice)
        validation = read_section(SOURCES, f"sources.{name}.validation", Slice)
        refuse_overlap(train, validation, f"{SOURCES}: sources.{name}")
        sources[name] = MixedSource(fetch, train, validation)
    # The weights are checked before anything is fetched.
    check_weights(read_section(SOURCES, f"sources.{source}.train", MixedSlice).weights, sources, where)
    return sources


def fetch_mixture(source: str, sources: dict[str, MixedSource], local_path: Path, folder: Path) -> dict:
    """Fill `folder` with one folder for each source of the mixture, write the manifest and return it."""
    manifests = {}
    for name, mixed in sources.items():
        (folder / name).mkdir()
        manifest = fetch_source(name, mixed.fetch, local_path, folder / name)
        (folder / name / MANIFEST).unlink()
        slices = {"train": dataclasses.asdict(mixed.train), "validation": dataclasses.asdict(mixed.validation)}
        manifests[name] = describe_in_mixture(manifest, name) | slices
    manifest = {"format_version": 1, "source": source, "kind": "mixture", "sources": manifests}
    write_json(folder / MANIFEST, manifest)
    return manifest


def refuse_text_git_would_take(path: Path) -> None:
    """Raise ParamsError if `path` holds files that Git neither tracks nor ignores; `dvc exp push` would publish it."""
    git = ["git", "--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "--directory", "--", str(path)]
    listed = subprocess.run(git, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        pattern = shlex.quote("/" + re.sub(r"([*?[]| $)", r"\\\1", os.path.relpath(path)))
        problem = f"local.path is {path}, inside the repository, and Git does not ignore it"
        remedy = f"run `echo {pattern} >> .gitignore`, or move the text elsewhere"
        raise ParamsError(f"{PARAMS}: {problem}: an experiment would copy your text into Git; {remedy}")


@command
def main(argv: list[str]) -> None:
    """Fetch the text of data.source into the folder --raw, all of it or nothing."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--raw", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)

    # Check what all stages will read. Look the source up, and the sources of a mixture.
    source = read_section(PARAMS, "data.source", str)
    check_parameters(source)
    fetch = read_section(SOURCES, f"sources.{source}.fetch", AnyFetch)
    mixture = read_mixture(source, fetch.sources) if isinstance(fetch, MixtureFetch) else {}

    # Find the user's own text, and keep it out of Git.
    local_path = Path(read_section(PARAMS, "local", LocalPath).path)
    link_into_copy(local_path)
    refuse_text_git_would_take(local_path)

    # Fetch into a temporary folder; rename it when everything is there.
    with output_lock(args.raw), atomic_folder(args.raw) as folder:
        if isinstance(fetch, MixtureFetch):
            manifest = fetch_mixture(source, mixture, local_path, folder)
        else:
            manifest = fetch_source(source, fetch, local_path, folder)

    # Report what each split holds.
    for name, source in sources_of(manifest).items():
        for split, entry in source["splits"].items():
            place = f"{name}, {split}" if mixture else split
            dropped = ", ".join(f"{count:,} {why}" for why, count in entry["dropped_rows"].items() if count)
            counted = f"{entry['documents']:,} documents, {entry['characters']:,} characters"
            print(f"{place}: {counted}{f'; rows left out: {dropped}' if dropped else ''}")


if __name__ == "__main__":
    sys.exit(main())

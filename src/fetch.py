"""Stage fetch: the text of data.source → data/raw, a parquet file for each split and manifest.json.

python src/fetch.py --raw data/raw

It writes the documents that the run uses: filtered by the rules of selection.name, and interleaved if the source is a
mixture. Only `python src score_test` reads the split test, if the source has one.
The stage depends on all of sources.yaml, because DVC cannot follow the list of a mixture's sources.
"""

import argparse
import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

import numpy as np
import pyarrow.parquet as pq

from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.core.files import atomic_folder, output_lock, scratch_folder
from lm.core.git import git
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.core.params import read_section
from lm.core.paths import PARAMS, PRESETS, SOURCES
from lm.text.compose import compose
from lm.text.config import AnyFetch, LocalPath, MixtureFetch, Selection, SourceFetch
from lm.text.documents import UTF8_BYTES
from lm.text.mixture import missed_weights
from lm.text.parts import Part
from lm.text.selection import sum_by_rule
from lm.text.slices import TEST, MixedSlice, Slice, check_weights, reject_overlap, reject_test
from lm.text.sources.kinds import fetch_source
from lm.text.sources.local import link_into_copy


@dataclasses.dataclass(frozen=True)
class ChosenSource:
    """A source: how to fetch it, and its slices for training and validation."""

    fetch: SourceFetch
    train: Slice
    validation: Slice


def read_source(name: str) -> ChosenSource:
    """Return the source of this name, which is not a mixture."""
    fetch = read_section(SOURCES, f"sources.{name}.fetch", SourceFetch)
    train = read_section(SOURCES, f"sources.{name}.train", Slice)
    validation = read_section(SOURCES, f"sources.{name}.validation", Slice)
    reject_test(train, f"{SOURCES}: sources.{name}.train")
    reject_test(validation, f"{SOURCES}: sources.{name}.validation")
    return ChosenSource(fetch, train, validation)


def read_mixture(source: str, names: tuple[str, ...]) -> tuple[dict[str, ChosenSource], dict[str, float]]:
    """Return the sources of a mixture by name, and their weights. Raise ParamsError if they do not fit together."""
    where = f"{SOURCES}: sources.{source}"
    sources = {}
    for name in names:
        if name not in read_section(SOURCES, "sources", dict):
            raise ParamsError(f"{where}.fetch.sources names {name!r}, which is not a source of {SOURCES}")
        if isinstance(read_section(SOURCES, f"sources.{name}.fetch", AnyFetch), MixtureFetch):
            raise ParamsError(f"{where}.fetch.sources names {name!r}, a mixture itself; name its sources instead")
        sources[name] = read_source(name)
        reject_overlap(sources[name].train, sources[name].validation, f"{SOURCES}: sources.{name}")
    weights = read_section(SOURCES, f"sources.{source}.train", MixedSlice).weights
    check_weights(weights, sources, where)
    return sources, weights


def parts_of_source(name: str, source: ChosenSource, folder: Path, fetched: dict) -> list[Part]:
    """Return all splits of a source as parts: its validation split, then its test split, then the others."""
    splits = sorted(fetched["splits"], key=lambda split: (split != source.validation.split, split != TEST))
    return [Part(name, split, folder, fetched, Slice(split, 0, None)) for split in splits]


def parts_of_mixture(fetched: dict[str, tuple[ChosenSource, Path, dict]], weights: dict[str, float]) -> list[Part]:
    """Return the validation slices of all sources, their test splits, then the training slices with a weight."""
    validation = []
    test = []
    train = []
    for name, (source, folder, manifest) in fetched.items():
        validation.append(Part(name, "validation", folder, manifest, source.validation))
        if TEST in manifest["splits"]:
            test.append(Part(name, TEST, folder, manifest, Slice(TEST, 0, None)))
        if weights[name]:
            train.append(Part(name, "train", folder, manifest, source.train))
    return validation + test + train


def report(manifest: dict, folder: Path) -> None:
    """Print the contents of each split in `folder`, the rows that rules drop, and the weights that a mixture misses."""
    held_out = {TEST: manifest[TEST]} if TEST in manifest else {}
    for split, entry in (manifest["splits"] | held_out).items():
        sizes = pq.read_table(folder / entry["path"], columns=[UTF8_BYTES])[UTF8_BYTES].to_numpy()
        counts = f"{entry['documents']:,} documents, {entry['characters']:,} characters"
        say(f"{split}: {counts}; the median document has {np.median(sizes):,.0f} bytes")
        for name, source in entry.get("sources", {}).items():
            share = source["utf8_bytes"] / entry["utf8_bytes"]
            passes = source.get("passes", 1.0)
            say(f"{split}, {name}: {source['documents']:,} documents, {share:.1%} of the bytes, {passes:.2f} epochs")
    for name, source in manifest["sources"].items():
        for split, entry in source["splits"].items():
            dropped = [f"{count:,} {why}" for why, count in entry["dropped_rows"].items() if count]
            if dropped:
                say(f"{name}, {split}: rows left out: {', '.join(dropped)}")
    for rule, each in sum_by_rule(manifest["selection"]["dropped"]).items():
        say(f"{rule} drops {each['documents']:,} documents, {each['characters']:,} characters")
    for warning in missed_weights(manifest):
        say(f"warning: {warning}", file=sys.stderr)


def reject_text_git_would_take(path: Path) -> None:
    """Raise ParamsError if Git neither tracks nor ignores a file below `path`; `dvc exp push` would publish it.

    Raise it also if `path` is a link in place of a tracked folder. Warn if Git cannot list its files. Paths outside the
    repository are accepted.
    """
    untracked = ("ls-files", "--others", "--exclude-standard", "--directory")
    absolute = Path(os.path.abspath(path))
    place = absolute.parent.resolve() / absolute.name  # of the link itself, not of its target
    try:
        root = git("rev-parse", "--show-toplevel")
        if not root or not place.is_relative_to(root):
            return
        would_take = git("--literal-pathspecs", *untracked, "--", str(path))
        tracked = git("--literal-pathspecs", "ls-files", "--", str(path))
    except EnvironmentFailure as error:
        print(f"warning: whether Git ignores {path} is unknown: {error}", file=sys.stderr, flush=True)
        return
    if tracked and path.is_symlink():
        problem = f"local.path is {path}, a link in place of a folder that Git tracks, so that DVC would lose"
        remedy = f"run `rm {path} && git restore {path}`, and name the folder itself, {os.path.realpath(path)}"
        raise ParamsError(f"{PARAMS}: {problem} uncommitted edits in a stash of Git; {remedy}, as local.path")
    if would_take:
        pattern = shlex.quote("/" + re.sub(r"([*?[]| $)", r"\\\1", os.path.relpath(path)))
        problem = f"local.path is {path}, inside the repository, and Git does not ignore it"
        remedy = f"run `echo {pattern} >> .gitignore`, or move the text elsewhere"
        raise ParamsError(f"{PARAMS}: {problem}: an experiment would copy your text into Git; {remedy}")


@exit_with_status
def main(argv: list[str]) -> None:
    """Fetch the text of data.source into the folder --raw, all of it or nothing."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--raw", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)

    # Link the user's own text into a copy of the repository, which lacks it. Record the inputs of the stage.
    local_path = Path(read_section(PARAMS, "local", LocalPath).path)
    link_into_copy(local_path)
    inputs = StageInputs("fetch")

    # Read the rules and the source, or the sources of a mixture.
    source = read_section(PARAMS, "data.source", str)
    name = read_section(PARAMS, "selection.name", str)
    rules = read_section(PRESETS, f"selections.{name}", Selection)
    fetch = read_section(SOURCES, f"sources.{source}.fetch", AnyFetch)
    if isinstance(fetch, MixtureFetch):
        chosen, weights = read_mixture(source, fetch.sources)
    else:
        chosen = {source: read_source(source)}
        weights = None

    # Keep the user's own text out of Git.
    reject_text_git_would_take(local_path)

    say(f"fetching the text of {', '.join(chosen)}")

    # Fetch into temporary folders; data/raw appears when everything is there.
    with output_lock(args.raw), atomic_folder(args.raw) as folder, scratch_folder(args.raw) as fetched:
        found = {}
        for number, (each, section) in enumerate(chosen.items()):
            own = fetched / f"{number}"  # a name may contain any character
            own.mkdir()
            found[each] = section, own, fetch_source(each, section.fetch, local_path, own)

        # Filter, mix and write the documents.
        parts = parts_of_mixture(found, weights) if weights else parts_of_source(source, *found[source])
        manifest = compose(folder, source, parts, weights, name, rules)
        inputs.check_unchanged()
    report(manifest, args.raw)

"""Stage fetch: a source of text, or each part of a mixture → data/raw (parquet files and manifest.json).

python src/fetch.py --definition data/source.json --raw data/raw

The parts of the last mixture stay in .parts/, which DVC does not know, so that only those whose definition changed are
fetched again. Files are linked from there, or copied from another disk.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.errors import ParamsError, command
from lm.core.files import atomic_folder, output_lock, read_json, write_json
from lm.core.params import coerce, read_section
from lm.text.documents import MANIFEST, parts_of
from lm.text.parts import describe_part, is_whole, key_of, link_files, remove_others
from lm.text.sources.local import LocalFetch, LocalPath, fetch_local, link_into_copy
from lm.text.sources.stories.grammar import StoriesFetch, fetch_stories
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

PARAMS, PRESETS = "params.yaml", "presets.yaml"


def fetch_source(name: str, fetch: dict, local_path: Path, folder: Path) -> dict:
    """Fill `folder` from the source `name`, defined by `fetch`, a section of presets.yaml; return its manifest."""
    section = f"sources.{name}.fetch"
    read = lambda section_type: coerce(fetch, section_type, section, PRESETS)  # noqa: E731
    match fetch["kind"]:
        case "torch_headers":
            fetched = fetch_torch_headers(read(TorchHeadersFetch), folder)
        case "stories":
            fetched = fetch_stories(read(StoriesFetch), folder)
        case "local":
            fetched = fetch_local(read(LocalFetch), local_path, folder)
        case "hub":
            from lm.text.sources.hub import HubFetch, fetch_hub  # importing the hub's client takes a second

            fetched = fetch_hub(read(HubFetch), folder)
        case "datasets":
            from lm.text.sources.hub_datasets import DatasetsFetch, fetch_datasets

            fetched = fetch_datasets(read(DatasetsFetch), folder)
        case unknown:
            known = "torch_headers, stories, local, hub, datasets, mixture"
            raise ParamsError(f"{PRESETS}: {section}.kind is {unknown!r}; it must be one of {known}")
    manifest = {"format_version": 1, "source": name, **fetched}
    write_json(folder / MANIFEST, manifest)
    return manifest


def fetch_part(name: str, fetch: dict, local_path: Path, folder: Path, kept_parts: Path) -> dict:
    """Fill `folder` with a part of a mixture, from `kept_parts` if its definition is unchanged; return its manifest."""
    if fetch["kind"] == "local":  # its files may have changed
        folder.mkdir()
        return fetch_source(name, fetch, local_path, folder)
    kept = kept_parts / key_of(name, fetch)
    if is_whole(kept):
        print(f"{name}: unchanged, kept")
    else:
        with atomic_folder(kept) as fetched:
            fetch_source(name, fetch, local_path, fetched)
    link_files(kept, folder)
    return read_json(folder / MANIFEST)


def fetch_mixture(definition: dict, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with one folder for each part, write the manifest and return it."""
    # Experiments of `--queue` and `--temp` run in copies of the repository and share the parts.
    kept_parts = Path(os.environ.get("DVC_ROOT", ".")) / ".parts"
    manifests = {}
    with output_lock(kept_parts, wait=True):
        for name, part in definition["parts"].items():
            fetched = fetch_part(name, part["fetch"], local_path, folder / name, kept_parts)
            (folder / name / MANIFEST).unlink()
            manifests[name] = describe_part(fetched, name) | {"train": part["train"], "validation": part["validation"]}
        remove_others(kept_parts, [key_of(name, part["fetch"]) for name, part in definition["parts"].items()])
    manifest = {"format_version": 1, "source": definition["source"], "kind": "mixture", "parts": manifests}
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
    parser.add_argument("--definition", type=Path, required=True, help="what resolve wrote")
    parser.add_argument("--raw", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)

    # Find the user's own text, and keep it out of Git. Read what to fetch.
    local_path = Path(read_section(PARAMS, "local", LocalPath).path)
    link_into_copy(local_path)
    refuse_text_git_would_take(local_path)
    definition = read_json(args.definition)
    source, is_mixture = definition["source"], definition["kind"] == "mixture"

    # Fetch into a temporary folder; rename it when everything is there.
    with output_lock(args.raw), atomic_folder(args.raw) as folder:
        if is_mixture:
            manifest = fetch_mixture(definition, local_path, folder)
        else:
            manifest = fetch_source(source, definition["parts"][source]["fetch"], local_path, folder)

    # Report what each split holds.
    for name, part in parts_of(manifest).items():
        for split, entry in part["splits"].items():
            place = f"{name}, {split}" if is_mixture else split
            print(f"{place}: {entry['documents']:,} documents, {entry['characters']:,} characters")


if __name__ == "__main__":
    sys.exit(main())

"""Stage fetch: a source of text → data/raw (parquet files and manifest.json).

python src/fetch.py --raw data/raw
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from lm.core.errors import ParamsError, command
from lm.core.files import atomic_folder, output_lock, write_json
from lm.core.params import read_section
from lm.text.sources.local import LocalFetch, LocalPath, fetch_local, link_into_copy
from lm.text.sources.stories.grammar import StoriesFetch, fetch_stories
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

PARAMS, PRESETS = "params.yaml", "presets.yaml"


def fetch_source(name: str, local_path: Path, folder: Path) -> dict:
    """Fill `folder` from the source `name` and return the manifest."""
    kind = read_section(PRESETS, f"sources.{name}.fetch.kind", str)
    read = lambda section_type: read_section(PRESETS, f"sources.{name}.fetch", section_type)  # noqa: E731
    match kind:
        case "torch_headers":
            return fetch_torch_headers(read(TorchHeadersFetch), folder)
        case "stories":
            return fetch_stories(read(StoriesFetch), folder)
        case "local":
            return fetch_local(read(LocalFetch), local_path, folder)
        case "hub":
            from lm.text.sources.hub import HubFetch, fetch_hub  # importing the hub's client takes a second

            return fetch_hub(read(HubFetch), folder)
        case "datasets":
            from lm.text.sources.hub_datasets import DatasetsFetch, fetch_datasets

            return fetch_datasets(read(DatasetsFetch), folder)
    known = "torch_headers, stories, local, hub, datasets"
    raise ParamsError(f"{PRESETS}: sources.{name}.fetch.kind is {kind!r}; it must be one of {known}")


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
    parser.add_argument("--raw", type=Path, required=True)
    raw = parser.parse_args(argv).raw

    # Read the selected source; find the user's own text, and keep it out of Git.
    name = read_section(PARAMS, "data.source", str)
    local_path = Path(read_section(PARAMS, "local", LocalPath).path)
    link_into_copy(local_path)
    refuse_text_git_would_take(local_path)

    # Fetch into a temporary folder; rename it when everything is there.
    with output_lock(raw), atomic_folder(raw) as folder:
        manifest = {"format_version": 1, "source": name, **fetch_source(name, local_path, folder)}
        write_json(folder / "manifest.json", manifest)

    # Report what each split holds.
    for split, entry in manifest["splits"].items():
        print(f"{split}: {entry['documents']:,} documents, {entry['characters']:,} characters")


if __name__ == "__main__":
    sys.exit(main())

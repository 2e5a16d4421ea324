"""Stage fetch: a source of text, or each source of a mixture → data/raw (parquet files and manifest.json).

python src/fetch.py --definition data/source.json --raw data/raw

The sources of the last mixture stay in .sources/, which DVC does not know, so that only those whose definition changed
are fetched again. Files are linked from there, or copied from another disk.
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
from lm.text.documents import MANIFEST, sources_of
from lm.text.source_cache import describe_in_mixture, is_whole, key_of, link_files, remove_others
from lm.text.sources.kinds import SourceFetch, fetch_source
from lm.text.sources.local import LocalPath, link_into_copy

PARAMS, PRESETS = "params.yaml", "presets.yaml"


def fetch_into(name: str, fetch: dict, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with the source that resolve has described by `fetch`; return its manifest."""
    return fetch_source(name, coerce(fetch, SourceFetch, f"sources.{name}.fetch", PRESETS), local_path, folder)


def fetch_mixture(definition: dict, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with one folder for each source of the mixture, write the manifest and return it."""
    # Experiments of `--queue` and `--temp` run in copies of the repository and share the sources.
    cache = Path(os.environ.get("DVC_ROOT", ".")) / ".sources"
    keys = {name: key_of(name, source["fetch"]) for name, source in definition["sources"].items()}
    manifests = {}
    with output_lock(cache, wait=True):
        for name, source in definition["sources"].items():
            kept = cache / keys[name]
            if source["fetch"]["kind"] == "local":  # its files may have changed
                (folder / name).mkdir()
                fetch_into(name, source["fetch"], local_path, folder / name)
            else:
                if is_whole(kept):
                    print(f"{name}: unchanged, kept")
                else:
                    with atomic_folder(kept) as fetched:
                        fetch_into(name, source["fetch"], local_path, fetched)
                link_files(kept, folder / name)
            described = describe_in_mixture(read_json(folder / name / MANIFEST), name)
            (folder / name / MANIFEST).unlink()
            manifests[name] = described | {"train": source["train"], "validation": source["validation"]}
        remove_others(cache, keys.values())
    manifest = {"format_version": 1, "source": definition["source"], "kind": "mixture", "sources": manifests}
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
            manifest = fetch_into(source, definition["sources"][source]["fetch"], local_path, folder)

    # Report what each split holds.
    for name, source in sources_of(manifest).items():
        for split, entry in source["splits"].items():
            place = f"{name}, {split}" if is_mixture else split
            dropped = ", ".join(f"{count:,} {why}" for why, count in entry["dropped_rows"].items() if count)
            counted = f"{entry['documents']:,} documents, {entry['characters']:,} characters"
            print(f"{place}: {counted}{f'; rows left out: {dropped}' if dropped else ''}")


if __name__ == "__main__":
    sys.exit(main())

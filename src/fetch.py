"""Stage fetch: a source of text → data/raw (parquet files and manifest.json).

python src/fetch.py data/raw
"""

import subprocess
import sys
from pathlib import Path

from lm.core.errors import ParamsError, command
from lm.core.files import atomic_folder, output_lock, write_json
from lm.core.params import read_section
from lm.text.sources.local import LocalFetch, LocalPath, fetch_local
from lm.text.sources.stories.grammar import StoriesFetch, fetch_stories
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

PARAMS = "params.yaml"


def fetch_source(name: str, folder: Path) -> dict:
    """Fill `folder` from the source `name` by its kind and return the manifest."""
    kind = read_section(PARAMS, f"sources.{name}.fetch.kind", str)
    read = lambda section_type: read_section(PARAMS, f"sources.{name}.fetch", section_type)  # noqa: E731
    match kind:
        case "torch_headers":
            return fetch_torch_headers(read(TorchHeadersFetch), folder)
        case "stories":
            return fetch_stories(read(StoriesFetch), folder)
        case "local":
            return fetch_local(read(LocalFetch), Path(read_section(PARAMS, "local", LocalPath).path), folder)
        case "hub":
            from lm.text.sources.hub import HubFetch, fetch_hub  # the hub's client takes a second to import

            return fetch_hub(read(HubFetch), folder)
        case "datasets":
            from lm.text.sources.hub_datasets import DatasetsFetch, fetch_datasets

            return fetch_datasets(read(DatasetsFetch), folder)
    known = "torch_headers, stories, local, hub, datasets"
    raise ParamsError(f"{PARAMS}: sources.{name}.fetch.kind is {kind!r}; it must be one of {known}")


def refuse_text_git_would_take(path: Path) -> None:
    """Raise ParamsError if `path` holds files that Git neither tracks nor ignores.

    `dvc exp run` adds such files of a dependency to the experiment's commit, and `dvc exp push` would publish them.
    Folders outside the repository are safe, and so is a folder that is no Git repository: Git lists nothing there.
    """
    command = ["git", "ls-files", "--others", "--exclude-standard", "--directory", "--", str(path)]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        raise ParamsError(
            f"{PARAMS}: local.path is {path}, inside the repository, and Git does not ignore it: an experiment would "
            f"copy your text into Git; run `echo '/{path}' >> .gitignore`, or move the text elsewhere"
        )


@command
def main(argv: list[str]) -> None:
    """Fetch data.source into argv[0], which appears whole or not at all."""
    raw = Path(argv[0])
    name = read_section(PARAMS, "data.source", str)
    refuse_text_git_would_take(Path(read_section(PARAMS, "local", LocalPath).path))
    with output_lock(raw), atomic_folder(raw) as folder:
        manifest = {"format_version": 1, "source": name, **fetch_source(name, folder)}
        write_json(folder / "manifest.json", manifest)
    for split, found in manifest["splits"].items():
        print(f"{split}: {found['documents']:,} documents, {found['characters']:,} characters")


if __name__ == "__main__":
    sys.exit(main())

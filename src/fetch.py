"""Stage fetch: a source of text → data/raw (parquet files and manifest.json).

    python src/fetch.py data/raw
"""

import sys
from pathlib import Path

from lm.errors import ParamsError, command
from lm.files import atomic_folder, output_lock, write_json
from lm.params import read_section
from lm.sources.hub import HubFetch, fetch_hub
from lm.sources.hub_datasets import DatasetsFetch, fetch_datasets
from lm.sources.local import LocalFetch, LocalPath, fetch_local
from lm.sources.stories import StoriesFetch, fetch_stories
from lm.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

PARAMS = "params.yaml"

SOURCES = {
    "torch_headers": (TorchHeadersFetch, fetch_torch_headers),
    "stories": (StoriesFetch, fetch_stories),
    "local": (LocalFetch, lambda fetch, folder: fetch_local(fetch, local_path(), folder)),
    "hub": (HubFetch, fetch_hub),
    "datasets": (DatasetsFetch, fetch_datasets),
}


def local_path() -> Path:
    """Where the person's own text lies."""
    return Path(read_section(PARAMS, "local", LocalPath).path)


@command
def main(argv: list[str]) -> None:
    """Fetch data.source into argv[0], which appears whole or not at all."""
    raw = Path(argv[0])
    name = read_section(PARAMS, "data.source", str)
    kind = read_section(PARAMS, f"sources.{name}.fetch.kind", str)
    if kind not in SOURCES:
        raise ParamsError(f"{PARAMS}: sources.{name}.fetch.kind is {kind!r}; it must be one of {', '.join(SOURCES)}")
    fetch_type, fetch_source = SOURCES[kind]
    fetch = read_section(PARAMS, f"sources.{name}.fetch", fetch_type)
    with output_lock(raw), atomic_folder(raw) as folder:
        manifest = {"format_version": 1, "source": name, **fetch_source(fetch, folder)}
        write_json(folder / "manifest.json", manifest)
    for split, found in manifest["splits"].items():
        print(f"{split}: {found['documents']:,} documents, {found['characters']:,} characters")


if __name__ == "__main__":
    sys.exit(main())

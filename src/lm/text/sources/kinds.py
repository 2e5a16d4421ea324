"""The kinds of sources, each a section `fetch` of presets.yaml, and what brings their text."""

from pathlib import Path

from lm.core.files import write_json
from lm.text.documents import MANIFEST
from lm.text.sources.hub import HubFetch, fetch_hub
from lm.text.sources.hub_datasets import DatasetsFetch, fetch_datasets
from lm.text.sources.local import LocalFetch, fetch_local
from lm.text.sources.stories.grammar import StoriesFetch, fetch_stories
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

SourceFetch = TorchHeadersFetch | StoriesFetch | LocalFetch | HubFetch | DatasetsFetch


def fetch_source(name: str, fetch: SourceFetch, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with the text of the source `name` and return its manifest; kind local reads `local_path`."""
    match fetch:
        case TorchHeadersFetch():
            fetched = fetch_torch_headers(fetch, folder)
        case StoriesFetch():
            fetched = fetch_stories(fetch, folder)
        case LocalFetch():
            fetched = fetch_local(fetch, local_path, folder)
        case HubFetch():
            fetched = fetch_hub(fetch, folder)
        case DatasetsFetch():
            fetched = fetch_datasets(fetch, folder)
    manifest = {"format_version": 1, "source": name, **fetched}
    write_json(folder / MANIFEST, manifest)
    return manifest

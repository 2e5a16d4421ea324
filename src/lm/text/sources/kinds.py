"""Fetch a source of any kind."""

from pathlib import Path

from lm.text.config import DatasetsFetch, HubFetch, LocalFetch, SourceFetch, TorchHeadersFetch
from lm.text.sources.hub import fetch_hub
from lm.text.sources.hub_datasets import fetch_datasets
from lm.text.sources.local import fetch_local
from lm.text.sources.torch_headers import fetch_torch_headers


def fetch_source(name: str, fetch: SourceFetch, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with the text of the source `name` and return its manifest; kind local reads `local_path`."""
    match fetch:
        case TorchHeadersFetch():
            fetched = fetch_torch_headers(fetch, folder)
        case LocalFetch():
            fetched = fetch_local(fetch, local_path, folder)
        case HubFetch():
            fetched = fetch_hub(fetch, folder)
        case DatasetsFetch():
            fetched = fetch_datasets(fetch, folder)
    return {"source": name, **fetched}

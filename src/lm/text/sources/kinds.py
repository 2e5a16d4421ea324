"""The kinds of sources, each a section `fetch` of sources.yaml, and the functions that fetch them."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from lm.core.params import require
from lm.text.sources.hub import HubFetch, fetch_hub
from lm.text.sources.hub_datasets import DatasetsFetch, fetch_datasets
from lm.text.sources.local import LocalFetch, fetch_local
from lm.text.sources.torch_headers import TorchHeadersFetch, fetch_torch_headers

SourceFetch = TorchHeadersFetch | LocalFetch | HubFetch | DatasetsFetch


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


def fetch_source(name: str, fetch: SourceFetch, local_path: Path, folder: Path) -> dict:
    """Fill `folder` with the text of the source `name` and return what it holds; kind local reads `local_path`."""
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

"""Dataset repositories that are not parquet (JSON lines, CSV, text, …), read by `datasets`.

The files are downloaded and verified as lm.sources.hub does it; `datasets` prepares their rows in
its own cache at the resolved commit, and the text column is written as parquet. A repository's own
code is never run.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import RemoteEntryNotFoundError

from lm.core.errors import DataError, EnvironmentFailure
from lm.text.parquet import describe_split, write_documents
from lm.text.sources.hub import check_repository, check_splits, download, explained, patiently, resolve_commit

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

ROWS_PER_READ = 1000


@dataclasses.dataclass(frozen=True)
class DatasetsFetch:
    """A dataset repository at `revision`; `config` null is its default one.

    `splits` maps our split to the set's own, or to a part of it such as "train[:95%]".
    """

    kind: Literal["datasets"]
    repo: str
    revision: str
    config: str | None
    splits: dict[str, str]
    column: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)
        check_splits("splits", self.splits)


def fetch_datasets(fetch: DatasetsFetch, folder: Path) -> dict:
    """Write the text column of each split below `folder` and return the manifest.

    Raises DataError where the set has no such config, split or column, EnvironmentFailure and
    IntegrityError as lm.sources.hub.download does.
    """
    commit = resolve_commit(fetch.repo, fetch.revision, "dataset")
    with _one_sentence(fetch, commit):
        builder = _cached_builder(fetch, commit) or _prepared_builder(fetch, commit)
        for split, source_split in fetch.splits.items():
            texts = _texts(builder.as_dataset(split=source_split), fetch)
            write_documents(folder / split / "0000.parquet", texts)
    return {
        "kind": fetch.kind,
        "repo": fetch.repo,
        "revision": fetch.revision,
        "commit": commit,
        "config": fetch.config,
        "column": "text",
        "splits": {split: describe_split(folder, split, "text", [fetch.repo]) for split in fetch.splits},
    }


def _cached_builder(fetch: DatasetsFetch, commit: str) -> "DatasetBuilder | None":
    """Rows that `datasets` has prepared at exactly this commit, found without any network call."""
    import datasets

    offline, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        builder = datasets.load_dataset_builder(fetch.repo, fetch.config)
    except (OSError, ValueError):
        return None
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    return builder if builder.hash == commit else None


def _prepared_builder(fetch: DatasetsFetch, commit: str) -> "DatasetBuilder":
    """Download and verify the set's files at the commit and prepare its rows in the cache."""
    import datasets

    readme = hf_hub_url(fetch.repo, "README.md", repo_type="dataset", revision=commit)
    with contextlib.suppress(RemoteEntryNotFoundError):
        patiently(lambda: get_hf_file_metadata(readme))  # `datasets` takes minutes to give up a dead hub
    builder = datasets.load_dataset_builder(fetch.repo, fetch.config, revision=commit)
    if builder.hash != commit:  # `datasets` offers any cached commit where the hub is out of reach
        raise EnvironmentFailure(f"{fetch.repo}: found commit {builder.hash}, needed: {commit}; run again")
    prefix = f"hf://datasets/{fetch.repo}@{commit}/"
    for urls in builder.config.data_files.values():
        for url in urls:
            if url.startswith(prefix):
                download(fetch.repo, commit, url.removeprefix(prefix), "dataset")
    builder.download_and_prepare()
    return builder


def _texts(rows: "Dataset", fetch: DatasetsFetch) -> Iterator[str | None]:
    """Yield the text column, which must be there and hold strings, row by row."""
    if fetch.column not in rows.column_names:
        columns = ", ".join(rows.column_names)
        raise DataError(f"{fetch.repo}: has no column {fetch.column!r}; its columns are {columns}")
    kind = getattr(rows.features[fetch.column], "dtype", "a list or structure")
    if kind not in ("string", "large_string"):
        raise DataError(f"{fetch.repo}: column {fetch.column!r} holds {kind}, not strings")
    for batch in rows.select_columns([fetch.column]).iter(ROWS_PER_READ):
        yield from batch[fetch.column]


@contextlib.contextmanager
def _one_sentence(fetch: DatasetsFetch, commit: str) -> Iterator[None]:
    """Keep `datasets` quiet off a terminal, and turn what it raises into one sentence."""
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with explained(fetch.repo, "dataset", f"its files at commit {commit}"):
            yield
    except (DatasetsError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"{fetch.repo}: {reason}") from None

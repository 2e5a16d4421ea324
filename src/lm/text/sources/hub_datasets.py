"""Read dataset repositories in formats other than parquet with `datasets`, verified like those of hub; run no code."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.core.errors import DataError, EnvironmentFailure
from lm.text.config import DatasetsFetch
from lm.text.parquet import describe_split, write_documents

ROWS_PER_READ = 1000


def fetch_datasets(fetch: DatasetsFetch, folder: Path) -> dict:
    """Write the text column of each split below `folder` and return the manifest. Raise DataError if it is missing."""
    from lm.text.sources.hub_client import resolve_commit

    commit = resolve_commit(fetch.repo, fetch.revision, "dataset")
    with _one_sentence(fetch, commit):
        builder = _prepared_builder(fetch, commit)
        for split, source_split in fetch.splits.items():
            write_documents(folder / split / "0000.parquet", _texts(builder.as_dataset(split=source_split), fetch))
    origin = {"kind": fetch.kind, "repo": fetch.repo, "revision": fetch.revision, "commit": commit}
    splits = {split: describe_split(folder, split, "text", [fetch.repo]) for split in fetch.splits}
    return {**origin, "config": fetch.config, "column": "text", "splits": splits}


def _prepared_builder(fetch: DatasetsFetch, commit: str) -> Any:
    """Download and verify the files at the commit, prepare the rows in the cache and return the DatasetBuilder."""
    import datasets

    from lm.text.sources.hub_client import download, errors, hf, retry

    readme = hf.hf_hub_url(fetch.repo, "README.md", repo_type="dataset", revision=commit)
    with contextlib.suppress(errors.RemoteEntryNotFoundError):
        retry(lambda: hf.get_hf_file_metadata(readme))  # fail at once, with our sentence: `datasets` tries for minutes
    builder = datasets.load_dataset_builder(fetch.repo, fetch.config, revision=commit)
    if builder.hash != commit:  # without the Hub, `datasets` takes any cached commit
        raise EnvironmentFailure(f"{fetch.repo}: found commit {builder.hash}; it must be {commit}; run again")
    prefix = f"hf://datasets/{fetch.repo}@{commit}/"
    for url in itertools.chain.from_iterable((builder.config.data_files or {}).values()):
        if url.startswith(prefix):
            download(fetch.repo, commit, url.removeprefix(prefix), "dataset")
    builder.download_and_prepare()
    return builder


def _texts(rows, fetch: DatasetsFetch) -> Iterator[str | None]:
    """Yield the text of each row of a datasets.Dataset. Raise DataError if `column` is missing or not of strings."""
    if fetch.column not in rows.column_names:
        problem = f"has no column {fetch.column!r}; its columns are {', '.join(rows.column_names)}"
        raise DataError(f"{fetch.repo}: {problem}")
    dtype = getattr(rows.features[fetch.column], "dtype", "a list or structure")
    if dtype not in ("string", "large_string"):
        raise DataError(f"{fetch.repo}: column {fetch.column!r} holds {dtype}, not strings")
    for batch in rows.select_columns([fetch.column]).iter(ROWS_PER_READ):
        yield from batch[fetch.column]


@contextlib.contextmanager
def _one_sentence(fetch: DatasetsFetch, commit: str) -> Iterator[None]:
    """Silence `datasets` without a terminal, and turn its exceptions into a DataError with one sentence."""
    import datasets
    from datasets.exceptions import DatasetsError

    from lm.text.sources.hub_client import explain_hub_errors

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with explain_hub_errors(fetch.repo, "dataset", f"its files at commit {commit}"):
            yield
    except (DatasetsError, ValueError, RuntimeError) as error:
        raise DataError(f"{fetch.repo}: {' '.join(str(error.__cause__ or error).split())}") from None

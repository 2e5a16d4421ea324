"""Parquet files of a dataset repository on the Hugging Face hub, at one commit."""

from pathlib import Path, PurePosixPath

from lm.text.config import HubFetch
from lm.text.parquet import describe_split, open_parquet


def fetch_hub(fetch: HubFetch, folder: Path) -> dict:
    """Link the files of the Hub's cache into folder/<split> in the listed order, and return the manifest."""
    from lm.text.sources.hub_client import download, resolve_commit  # importing the Hub's client takes a second

    commit = resolve_commit(fetch.repo, fetch.revision, "dataset")
    for split, paths in fetch.files.items():
        split_folder = folder / split
        split_folder.mkdir()
        for index, path in enumerate(paths):
            cached = download(fetch.repo, commit, path, "dataset")
            open_parquet(cached, fetch.column, f"{fetch.repo}: {path}")  # fail before the next download
            link = split_folder / f"{index:04d}-{PurePosixPath(path).name}"
            link.symlink_to(cached.resolve())

    splits = {}
    for split, paths in fetch.files.items():
        names = [f"{fetch.repo}: {path}" for path in paths]
        splits[split] = describe_split(folder, split, fetch.column, names)
    return {
        "kind": fetch.kind,
        "repo": fetch.repo,
        "revision": fetch.revision,
        "commit": commit,
        "column": fetch.column,
        "splits": splits,
    }

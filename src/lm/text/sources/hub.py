"""Parquet files of a dataset repository on the Hugging Face hub, at one commit."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

from lm.core.params import require
from lm.text.parquet import describe_split, open_parquet


@dataclasses.dataclass(frozen=True)
class HubFetch:
    """The parquet files of each split in a dataset repository at `revision` (a commit, branch or tag)."""

    kind: Literal["hub"]
    repo: str
    revision: str
    files: dict[str, tuple[str, ...]]
    column: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)
        check_splits("files", self.files)
        for split, paths in self.files.items():
            name = f"files.{split}"
            are_unique = len(paths) > 0 and len(paths) == len(set(paths))
            require(are_unique, name, list(paths), "at least one path, none twice")
            for path in paths:
                require(is_path_inside(path), name, repr(path), "a path inside the repository")
                require(path.endswith(".parquet"), name, repr(path), ".parquet, or kind: datasets")


def is_path_inside(path: str) -> bool:
    """Return whether a path is relative, in its shortest form, and without "..", as the Hub writes paths."""
    absolute = PurePosixPath("/", path)
    return str(absolute) == f"/{path}" and ".." not in absolute.parts


def check_repository(repo: str, revision: str) -> None:
    """Raise ValueError if `repo` is not owner/name or `revision` is empty."""
    is_name = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo) and "--" not in repo and ".." not in repo
    require(is_name, "repo", repr(repo), "owner/name")
    require(revision.strip(), "revision", "empty", "a 40-digit commit, or a branch or tag")


def check_splits(key: str, splits: Iterable[str]) -> None:
    """Raise ValueError if no split is given, or if the name of a split cannot name a folder."""
    are_names = splits and all(re.fullmatch(r"\w[\w-]*", split) for split in splits)
    require(are_names, f"{key}", list(splits), "at least one split, named with letters and digits")


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

"""The sections about text in sources.yaml, presets.yaml and params.yaml, without pyarrow."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Literal

from lm.core.params import FRACTION, Range, at_least, require

MAX_NGRAM_WORDS = 100
MAX_PERMUTATIONS = 4096

NgramWords = Annotated[int, Range(lambda value: 1 <= value <= MAX_NGRAM_WORDS, f"1 to {MAX_NGRAM_WORDS}")]
# Hashes per document, 4 bytes each; the estimate's standard error is 0.5 / √ of it at most.
NumPermutations = Annotated[int, Range(lambda value: 16 <= value <= MAX_PERMUTATIONS, f"16 to {MAX_PERMUTATIONS}")]
Limit = Annotated[int | None, at_least(1, ", or null for off")]
Fraction = Annotated[float | None, Range(lambda value: 0 <= value <= 1, "from 0 to 1, or null for off")]
Globs = str | tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Two documents are near-duplicates if the Jaccard similarity of their word n-grams is at least `threshold`."""

    threshold: Annotated[float, FRACTION]
    ngram_words: NgramWords
    num_permutations: NumPermutations
    rule: Annotated[int, Range(lambda value: value in (1, 2, 3), "1, 2 or 3")]


# The selection of documents.


@dataclasses.dataclass(frozen=True)
class NearDuplicateRule:
    """Parameters of lm.text.near_duplicates, with its rule 2; a threshold of None switches it off."""

    threshold: Annotated[float | None, FRACTION]
    ngram_words: NgramWords
    num_permutations: NumPermutations


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rules in the order in which they are applied; None or False switches a rule off."""

    min_chars: Limit
    max_chars: Limit
    max_line_chars: Limit
    min_alphanumeric_fraction: Fraction
    max_repeated_line_fraction: Fraction
    exact_duplicates: bool
    near_duplicates: NearDuplicateRule

    def __post_init__(self):
        least = self.min_chars
        most = self.max_chars
        is_ordered = least is None or most is None or least <= most
        require(is_ordered, "min_chars", least, f"at most max_chars, which is {most}")


# The sources.


@dataclasses.dataclass(frozen=True)
class SplitParams:
    """The sizes of validation and test, and how much of a cluster may occur in other clusters."""

    # fraction of the characters
    validation_fraction: Annotated[float, Range(lambda value: 0 < value < 1, "between 0 and 1")]
    # documents that no stage reads; None: no test split
    test_documents: Annotated[int | None, at_least(1, ", or null for no test split")]
    # fraction of a cluster's n-grams
    max_shared_fraction: Annotated[float, Range(lambda value: 0 <= value <= 1, "0 to 1")]
    near_duplicates: NearDuplicates


@dataclasses.dataclass(frozen=True)
class TorchHeadersFetch:
    """The version of torch, the SHA-256 over path\\0text\\0 of its headers in path order, a wheel of it, the split."""

    kind: Literal["torch_headers"]
    torch_version: str
    sha256: str
    wheel: str | None
    split: SplitParams


@dataclasses.dataclass(frozen=True)
class LocalPath:
    """The section `local` of params.yaml: the path of the text, inside or outside the repository."""

    path: str


@dataclasses.dataclass(frozen=True)
class LocalFetch:
    """The user's own text: files below local.path (the globs `include` and `exclude`), their format, their split."""

    kind: Literal["local"]
    include: Globs
    exclude: Globs | None  # None: no file
    column: str
    encoding: str
    separator: str | None
    split: SplitParams | None

    def __post_init__(self):
        for name, globs in (("include", self.include), ("exclude", self.exclude)):
            for glob in as_tuple(globs):
                require(is_glob_below(glob), name, repr(glob), "a glob below local.path such as '**/*.txt'")
        require(is_text_encoding(self.encoding), "encoding", repr(self.encoding), "one of Python's, such as utf-8")
        require(self.separator != "", "separator", "empty", "a string, or null for one document per file")


def as_tuple(globs: Globs | None) -> tuple[str, ...]:
    """Return one glob or several as a tuple."""
    return (globs,) if isinstance(globs, str) else globs or ()


def is_glob_below(glob: str) -> bool:
    """Return whether a glob names files below a folder, as pathlib reads it."""
    parts = PurePosixPath(glob).parts
    return bool(parts) and not {"/", ".."} & set(parts) and not any("**" in part and part != "**" for part in parts)


def is_text_encoding(name: str) -> bool:
    """Return whether Python has an encoding of text of this name."""
    try:
        b"text".decode(name, errors="replace")
    except (LookupError, ValueError):  # such as hex, which encodes bytes
        return False
    return True


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


@dataclasses.dataclass(frozen=True)
class DatasetsFetch:
    """A dataset repository; `splits` maps names to its splits or their slices such as "train[:95%]"."""

    kind: Literal["datasets"]
    repo: str
    revision: str
    config: str | None  # null is the default configuration
    splits: dict[str, str]
    column: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)
        check_splits("splits", self.splits)


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


SourceFetch = TorchHeadersFetch | LocalFetch | HubFetch | DatasetsFetch
AnyFetch = SourceFetch | MixtureFetch

"""The user's own text: a file or a folder becomes a split for training, for validation and perhaps for test.

lm.text.sources.text_files reads the documents of each file.
"""

import dataclasses
import itertools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from lm.core.errors import DataError, EnvironmentFailure
from lm.core.paths import repository_root
from lm.text.config import Globs, LocalFetch, SplitParams, as_tuple
from lm.text.parquet import describe_split, write_documents
from lm.text.sources.not_text import DOUBTFUL, is_hidden, reason_to_leave_out
from lm.text.sources.text_files import TextFile, suffix_of
from lm.text.splits import MAX_OVERSHOOT, MAX_SHARE, Chosen, Split, choose_split

MAX_LISTED = 10  # unreadable files that a message lists
OTHER_ENCODINGS = "set sources.yaml:sources.local.fetch.encoding to theirs (files in UTF-8 stay UTF-8)"
OTHER_UTF_8 = "are UTF-8 and were read so, not in sources.local.fetch.encoding"
MAX_NAMED = 3  # damaged files that a message names
CELL_CHARS = 32_767  # the most that a cell of Excel holds
MAX_SHARE_DIFFERENCE = 0.2  # between the shares of the files of a suffix in two splits
CUT_WHERE = (
    "at chapters or articles into at least 50 documents, as files or by sources.yaml:sources.local.fetch.separator"
)
CUT = f"cut long texts {CUT_WHERE}"


def link_into_copy(path: Path) -> None:
    """Link the files below a relative `path` into DVC's copy of the repository, which lacks files that Git ignores."""
    root = repository_root()
    if path.is_absolute() or root == Path():
        return
    for file in (root / path).rglob("*"):
        link = path / file.relative_to(root / path)
        if (file.is_symlink() or file.is_file()) and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)


def fetch_local(fetch: LocalFetch, path: Path, folder: Path) -> dict:
    """Write the documents below `folder` in path order and return the manifest.

    With `split`, clusters of near-duplicates are chosen for validation and test by the SHA-256 of their texts,
    the same ones on every machine and for all file names. Without it the only split is `text`, cut by the slices.
    """
    files = find_files(path, fetch.include, fetch.exclude)
    findings = Findings()
    chars_by_suffix: dict[str, Counter[str]] = {}
    if fetch.split is None:
        splits = ("text",)
        write_documents(folder / "text/0000.parquet", (text for _, text in _documents(files, fetch, findings)))
    else:
        chosen = _choose_split(files, fetch, fetch.split)
        splits = chosen.names
        for split in splits:
            # The training split counts the findings and includes the null and empty documents.
            is_train = split == "train"
            documents = _documents(files, fetch, findings if is_train else Findings())
            chars_by_suffix[split] = Counter()
            of_split = _of_split(documents, chosen, split, chars_by_suffix[split])
            write_documents(folder / split / "0000.parquet", of_split)
    findings.warn(len(files), fetch)
    _warn_of_other_suffixes(chars_by_suffix)
    return {
        "kind": fetch.kind,
        "path": str(path),
        "encoding": fetch.encoding,
        "split": fetch.split and dataclasses.asdict(fetch.split),
        "input_files": len(files),
        "replaced_characters": sum(file["replaced_characters"] for file in findings.damaged),
        "damaged_files": findings.damaged,
        "utf_8_files": len(findings.files[OTHER_UTF_8]),
        "characters_by_suffix": chars_by_suffix,
        "column": "text",
        "splits": {split: describe_split(folder, split, "text", [str(path)]) for split in splits},
    }


class Findings:
    """Surprises in the user's files, found while reading them."""

    def __init__(self):
        self.damaged: list[dict] = []  # files with characters that became U+FFFD, or with NULs
        self.num_text_files = 0  # files without rows
        self.num_separated_files = 0  # of these, the files that the separator divides
        self.num_cell_limit = 0  # texts as long as the longest of a table of Excel
        self.files: defaultdict[str, list[Path]] = defaultdict(list)  # problem → its files

    def add(self, file: TextFile, num_documents: int) -> None:
        """Count a file that was read."""
        if file.num_replaced or file.num_nuls:
            counts = {"replaced_characters": file.num_replaced, "nul_characters": file.num_nuls}
            self.damaged.append({"path": str(file.path), **counts})
        for has_problem, problem in (
            (file.is_other_utf_8, OTHER_UTF_8),
            (file.is_empty, "hold no text"),
            (file.is_doubtful, DOUBTFUL),
        ):
            if has_problem:
                self.files[problem].append(file.path)
        if not file.has_rows:
            self.num_text_files += 1
            self.num_separated_files += num_documents > 1

    def warn(self, num_files: int, fetch: LocalFetch) -> None:
        """Print a warning for each kind of surprise in the files."""
        for kind, problem in (
            ("replaced_characters", f"are not {fetch.encoding} and became U+FFFD; {OTHER_ENCODINGS}"),
            ("nul_characters", "are NUL, as a crash or a full disk leaves them; repair the files"),
        ):
            damaged = {file["path"]: file[kind] for file in self.damaged if file[kind]}
            if damaged:
                names = ", ".join(list(damaged)[:MAX_NAMED])
                others = f" and {len(damaged) - MAX_NAMED} more" if len(damaged) > MAX_NAMED else ""
                where = f"{sum(damaged.values())} characters in {len(damaged)} of {num_files} files"
                listed = f"in {names}{others} (damaged_files in data/raw/manifest.json)"
                print(f"warning: {where} {problem}; {listed}", file=sys.stderr)
        for problem, files in self.files.items():
            print(f"warning: {len(files)} of {num_files} files {problem}; first {files[0]}", file=sys.stderr)
        if self.num_cell_limit:
            where = f"{self.num_cell_limit} texts have exactly {CELL_CHARS:,} characters"
            print(f"warning: {where}, the most that a cell of Excel holds; their ends may be missing", file=sys.stderr)
        separator = fetch.separator
        if separator and self.num_text_files and not self.num_separated_files:
            where = f"which occurs in none of {self.num_text_files} files"
            remedy = "each is one document; correct the separator"
            print(f"warning: sources.local.fetch.separator is {separator!r}, {where}; {remedy}", file=sys.stderr)


def find_files(path: Path, include: Globs, exclude: Globs | None = None) -> list[Path]:
    """Return the files in path order, without hidden ones; print how many others are left out, and why.

    Raise DataError if no file is left, or for a link that DVC does not follow.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"local.path is {path}, which does not exist; put text there or change the path")

    matching = _matching(path, include) - _matching(path, exclude)
    hashed = _files_that_dvc_hashes(path)
    files = []
    left_out: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if is_hidden(parts):
            continue
        reason = reason_to_leave_out(parts, file)
        if not reason:
            _reject_link(file)
        if file not in matching or not file.is_file():
            continue
        if not reason and file not in hashed:
            reason = "DVC does not hash them (.dvcignore, or a DVC project inside), so that no change would be seen"
        if reason:
            left_out[reason].append(file)
        else:
            files.append(file)

    for reason, found in left_out.items():
        where = f"{len(found)} files are left out because {reason}, first {found[0]}"
        print(f"warning: {where}; to read them, rename or move them", file=sys.stderr)
    if not files:
        what = f"{include!r} without {exclude!r}" if exclude else f"{include!r}"
        raise DataError(f"{path}: no file matches {what} (sources.local.fetch.include); {_other_files(path, include)}")
    return files


def _matching(path: Path, globs: Globs | None) -> set[Path]:
    """Return the paths below a folder that one of the globs matches."""
    return {file for glob in as_tuple(globs) for file in path.glob(glob)}


def _files_that_dvc_hashes(folder: Path) -> set[Path]:
    """Return the files below a folder whose changes make DVC run the stage again."""
    from dvc.fs import localfs  # slow to import, and used for the user's own text only
    from dvc.ignore import DvcIgnoreFilter

    found = DvcIgnoreFilter(localfs, os.getcwd()).find(localfs, os.path.abspath(folder))
    return {folder / os.path.relpath(file, folder) for file in found}


def _other_files(path: Path, include: Globs) -> str:
    """Return the remedy for a folder in which no file matches a glob."""
    suffixes = {suffix_of(file) or "no suffix" for file in path.rglob("*") if file.is_file()}
    if not suffixes:
        return "put text there"
    reads_subfolders = "" if "/" in str(include) else f"; **/{include} reads subfolders, too"
    return f"it has files with {', '.join(sorted(suffixes)[:MAX_LISTED])}{reads_subfolders}"


def _reject_link(file: Path) -> None:
    """Raise DataError if an entry of a folder links to a folder, or to nothing."""
    if file.is_symlink() and file.is_dir():
        raise DataError(f"{file}: links to the folder {file.resolve()}; set local.path to that folder, or copy it")
    if not file.exists():
        raise DataError(f"{file}: links to nothing, or in a circle; remove it")


def _of_split(
    documents: Iterator[tuple[str, str | None]], chosen: Split, name: str, chars_by_suffix: Counter[str]
) -> Iterator[str | None]:
    """Yield the documents of a split, and count their characters by the suffix of their files.

    Null and empty documents belong to training.
    """
    for suffix, text in documents:
        if (chosen.name_of(text) if text else "train") == name:
            chars_by_suffix[suffix] += len(text or "")
            yield text


def _warn_of_other_suffixes(chars_by_suffix: dict[str, Counter[str]]) -> None:
    """Warn if the share of a suffix differs much between the training split and another one."""
    suffixes = sorted(set().union(*chars_by_suffix.values()))
    for split, chars in chars_by_suffix.items():
        for suffix in suffixes:
            share = chars[suffix] / chars.total()
            train_share = chars_by_suffix["train"][suffix] / chars_by_suffix["train"].total()
            if abs(share - train_share) > MAX_SHARE_DIFFERENCE:
                name = f"{suffix} files" if suffix else "files without a suffix"
                found = f"{name} have {train_share:.0%} of the characters of train, but {share:.0%} of {split}"
                remedy = "make a source for each kind of text, and mix them (docs/data.md#mixtures)"
                print(f"warning: {found}; {remedy}", file=sys.stderr)
                break


def _choose_split(files: list[Path], fetch: LocalFetch, params: SplitParams) -> Split:
    """Choose the documents of validation and test; warn if the split is not as requested."""
    documents = (text for _, text in _documents(files, fetch, Findings()) if text)
    first_two = list(itertools.islice(documents, 2))
    if not first_two:
        raise DataError(f"local.path: no document of {len(files)} files has text; put text there")
    if len(first_two) == 1:
        found = "the text is one document, and two are needed: one to train on, one to validate"
        raise DataError(f"local.path: {found}; cut it {CUT_WHERE}")
    split = choose_split(itertools.chain(first_two, documents), params)
    if split is None:
        found = (
            f"all documents of {len(files)} files are near-duplicates of each other, and one is needed for validation"
        )
        raise DataError(f"local.path: {found}; add other text")

    fraction = params.validation_fraction
    actual = split.validation_fraction
    if not fraction / MAX_OVERSHOOT <= actual <= fraction * MAX_OVERSHOOT:
        found = f"validation has {actual:.2%} of the characters, not {fraction:.2%} (validation_fraction)"
        why = f"the longest of {split.num_clusters} clusters of near-duplicates has {split.longest_fraction:.1%}"
        print(f"warning: {found}, because {why}; {CUT}", file=sys.stderr)
    _warn_of_few("validation", split.validation, params)
    if split.test:
        _warn_of_few("test", split.test, params)
    return split


def _warn_of_few(name: str, chosen: Chosen, params: SplitParams) -> None:
    """Warn if one cluster of a split decides its score, or if its clusters share much with others."""
    if chosen.longest_share > MAX_SHARE:
        found = f"the longest of {chosen.num_clusters} clusters of near-duplicates in {name}"
        problem = f"has {chosen.longest_share:.0%} of its characters, so few documents decide the score"
        print(f"warning: {found} {problem}; add text, or {CUT}", file=sys.stderr)
    if chosen.num_shared:
        limit = f"{params.max_shared_fraction:.0%} of their {params.near_duplicates.ngram_words}-word n-grams"
        found = f"{chosen.num_shared} clusters of near-duplicates in {name} share more than {limit}"
        print(f"warning: {found} with others (max_shared_fraction), because too few share less", file=sys.stderr)


def _documents(files: list[Path], fetch: LocalFetch, findings: Findings) -> Iterator[tuple[str, str | None]]:
    """Yield every document, null and empty ones too, as (suffix of its file, text); add to `findings`.

    Raise DataError at the end if files cannot be read, with the first problem of each of the first ten files.
    """
    problems: list[str] = []
    for path in tqdm(files, unit=" files", desc="read", disable=None, leave=False):
        file = TextFile(path, fetch.column, fetch.separator, fetch.encoding)
        num_documents = 0
        try:
            for text in file.documents():
                num_documents += 1
                findings.num_cell_limit += file.has_rows and len(text or "") == CELL_CHARS
                if not problems:  # after a problem, the rest is read only to find others
                    yield suffix_of(path), text
        except DataError as error:
            problems.append(str(error))
        except MemoryError:
            raise EnvironmentFailure(f"{path}: does not fit into memory; cut it into smaller files") from None
        findings.add(file, num_documents)
    if len(problems) == 1:
        raise DataError(f"{problems[0]}, or leave it out by sources.yaml:sources.local.fetch.exclude")
    if problems:
        raise DataError("\n".join(_list_problems(problems, len(files))))


def _list_problems(problems: list[str], num_files: int) -> list[str]:
    """Return the first problems, a line each, with their remedies; a remedy that all share is named once."""
    listed = problems[:MAX_LISTED]
    remedies = {problem.partition("; ")[2] for problem in problems}
    remedy = "correct them"
    if len(remedies) == 1:
        listed = [problem.partition("; ")[0] for problem in listed]
        remedy = remedies.pop() or remedy
    what_to_do = f"{remedy}, or leave them out by sources.yaml:sources.local.fetch.exclude"
    return [*listed, f"local.path: {len(problems)} of {num_files} files cannot be read; {what_to_do}"]

"""The user's own text: a file or a folder, plain or compressed, becomes a train and a validation split.

.parquet, .csv, .tsv and .jsonl files have one document per row (`column`). A .json file has one per item of its array,
or one per line. Any other file is one document, or several if `separator` is set. Text is UTF-8, or UTF-16 with a
byte-order mark. Invalid bytes and lone surrogates become U+FFFD and are counted (in parquet files they are refused).
Binary files are refused, whatever their names.
"""

import codecs
import contextlib
import csv
import dataclasses
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa
from tqdm import tqdm

from lm.core.errors import DataError, EnvironmentFailure
from lm.core.params import require
from lm.core.paths import repository_root
from lm.text.parquet import describe_split, iter_batches, write_documents
from lm.text.splits import MAX_OVERSHOOT, SplitParams, choose_validation, in_batches, text_sha256

REPLACEMENT = "\ufffd"
MAX_UNREADABLE_FRACTION = 0.1  # of a file's characters: U+FFFD for invalid bytes, and NUL
BINARY_START_BYTES = 8000  # a file with a NUL among its first bytes is binary, as for Git
MAX_PIECE_BYTES = 2**31 - 1  # of a line, or of a file without lines: a document of Arrow cannot be larger
TOO_LARGE = f"more than {MAX_PIECE_BYTES:,} bytes, more than a document can have; cut it into smaller files"
MAX_LISTED = 10  # files that cannot be read
CODECS = {".gz": "gzip", ".zst": "zstd"}
JSON_LINES = (".jsonl", ".ndjson")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_MAGIC = b"PAR1"
SPLIT_AT_BLANK_LINES = """`dvc exp run -S data.source=local -S 'sources.yaml:sources.local.fetch.separator="\\n\\n"'`"""
csv.field_size_limit(MAX_PIECE_BYTES)


@dataclasses.dataclass(frozen=True)
class LocalPath:
    """The section `local` of params.yaml: the path of the text, inside or outside the repository."""

    path: str


@dataclasses.dataclass(frozen=True)
class LocalFetch:
    """Which files below local.path are read (`include`, a glob), how, and what is for validation."""

    kind: Literal["local"]
    include: str
    column: str
    separator: str | None
    split: SplitParams | None

    def __post_init__(self):
        parts = PurePosixPath(self.include).parts
        is_below = parts and not {"/", ".."} & set(parts) and not any("**" in part and part != "**" for part in parts)
        require(is_below, "include", repr(self.include), "a glob below local.path such as '**/*.txt'")
        require(self.separator != "", "separator", "empty", "a string, or null for one document per file")


def link_into_copy(path: Path) -> None:
    """Link the files below a relative `path` into the repository's copy of `--queue`, which lacks what Git ignores."""
    root = repository_root().resolve()
    if path.is_absolute() or root == Path.cwd():
        return
    for file in (root / path).rglob("*"):
        link = path / file.relative_to(root / path)
        if (file.is_symlink() or file.is_file()) and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)


def fetch_local(fetch: LocalFetch, path: Path, folder: Path) -> dict:
    """Write the documents below `folder` in path order and return the manifest.

    With `split`, clusters of near-duplicates are chosen for validation by the SHA-256 of their texts,
    the same ones on every machine and for all file names. Without it the only split is `text`, cut by the slices.
    """
    files, findings = find_files(path, fetch.include), Findings()
    if fetch.split is None:
        splits = ("text",)
        write_documents(folder / "text/0000.parquet", _documents(files, fetch, findings))
    else:
        splits, chosen = ("train", "validation"), _choose_validation(files, fetch, fetch.split)
        train = (text for text in _documents(files, fetch, findings) if not text or text_sha256(text) not in chosen)
        write_documents(folder / "train/0000.parquet", train)
        again = _documents(files, fetch, Findings())  # the first pass has counted
        validation = (text for text in again if text and text_sha256(text) in chosen)
        write_documents(folder / "validation/0000.parquet", validation)
    findings.warn(len(files), fetch.separator)
    counts = {"input_files": len(files), "replaced_characters": findings.replaced.total()}
    described = {split: describe_split(folder, split, "text", [str(path)]) for split in splits}
    return {"kind": fetch.kind, "path": str(path), **counts, "column": "text", "splits": described}


@dataclasses.dataclass
class Findings:
    """What a pass over the files has found that a person should know."""

    replaced: Counter = dataclasses.field(default_factory=Counter)  # path → characters that became U+FFFD
    text_files: int = 0  # files without rows
    separated_files: int = 0  # of these, the files that the separator divides

    def warn(self, num_files: int, separator: str | None) -> None:
        """Print a warning for characters that are not UTF-8, and for a separator that divides no file."""
        if self.replaced:
            where = f"{self.replaced.total()} characters in {len(self.replaced)} of {num_files} files"
            problem = f"are not UTF-8 and became U+FFFD, first in {next(iter(self.replaced))}; save them as UTF-8"
            print(f"warning: {where} {problem}", file=sys.stderr)
        if separator and self.text_files and not self.separated_files:
            found = f"sources.local.fetch.separator is {separator!r}, which occurs in none of {self.text_files} files"
            print(f"warning: {found}; each is one document; correct the separator", file=sys.stderr)


def find_files(path: Path, include: str) -> list[Path]:
    """Return the files in path order, without those whose names, or those of their folders, begin with a dot or _.

    Arrow and Spark leave out the same names, which programs give to files of their own: _SUCCESS, _metadata,
    __pycache__. Raise DataError if there is no file, or if one is not a regular file.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"local.path is {path}, which does not exist; put text there or change the path")
    begins_with = lambda start, file: any(part.startswith(start) for part in file.relative_to(path).parts)  # noqa: E731
    without_dot = [file for file in path.rglob("*") if not begins_with(".", file)]
    visible = [file for file in without_dot if not begins_with("_", file)]
    for file in visible:
        if problem := _problem_of(file):
            raise DataError(f"{file}: {problem}")
    matching = {file for file in path.glob(include) if file.is_file()}
    files = sorted(set(visible) & matching)
    if not files:
        raise DataError(f"{path}: no file matches {include!r} (sources.local.fetch.include); put text there")
    if left_out := sorted((set(without_dot) - set(visible)) & matching):
        found = f"{len(left_out)} files are left out, as their names or folders begin with _, first {left_out[0]}"
        print(f"warning: {found}; to read them, rename them", file=sys.stderr)
    return files


def _problem_of(file: Path) -> str | None:
    """Return why DVC or this stage cannot take an entry of a folder, None if it can."""
    if any("\udc80" <= character <= "\udcff" for character in file.name):  # how Python reads other bytes
        return f"the name {os.fsencode(file.name)!r} is not UTF-8; rename it"
    if file.is_file() or (file.is_dir() and not file.is_symlink()):
        return None
    if file.is_dir():
        return f"links to the folder {file.resolve()}; set local.path to that folder, or copy it"
    if not file.exists():
        return "links to nothing, or in a circle; remove it"
    return "is a pipe or a device, needed: a file; remove it"


def _choose_validation(files: list[Path], fetch: LocalFetch, params: SplitParams) -> frozenset[bytes]:
    """Return the digests of the documents for validation; warn if the split is not as it was asked for."""
    split = choose_validation(in_batches(filter(None, _documents(files, fetch, Findings()))), params)
    if split is None:
        found = f"all documents of {len(files)} files are one, or near-duplicates, and one is needed for validation"
        remedy = f"add files, or make each paragraph a document with {SPLIT_AT_BLANK_LINES}"
        raise DataError(f"local.path: {found}; {remedy}")
    fraction, actual = params.validation_fraction, split.actual_fraction
    if not fraction / MAX_OVERSHOOT <= actual <= fraction * MAX_OVERSHOOT:
        found = f"validation has {actual:.2%} of the characters, not {fraction:.2%} (validation_fraction)"
        why = f"the longest of {split.num_clusters} clusters of near-duplicates has {split.longest_fraction:.1%}"
        remedy = f"to make each paragraph a document, run {SPLIT_AT_BLANK_LINES}"
        print(f"warning: {found}, as {why}; {remedy}", file=sys.stderr)
    if split.num_shared:
        limit = f"{params.max_shared_fraction:.0%} of their {params.near_duplicates.ngram_words}-word n-grams"
        found = f"{split.num_shared} clusters of near-duplicates in validation share more than {limit}"
        print(f"warning: {found} with others (max_shared_fraction), as too few share less", file=sys.stderr)
    return split.digests


def _documents(files: list[Path], fetch: LocalFetch, findings: Findings) -> Iterator[str | None]:
    """Yield every document, null and empty ones too; count what is found in `findings`.

    Raise DataError at the end if files cannot be read, with the first problem of each of the first ten.
    """
    problems = []
    for path in tqdm(files, unit=" files", desc="read", disable=None, leave=False):
        num_documents = 0
        try:
            for text in read_documents(path, fetch.column, fetch.separator, findings.replaced):
                num_documents += 1
                if not problems:  # else the rest is read only for its problems
                    yield text
        except DataError as error:
            problems.append(str(error))
        except MemoryError:
            raise EnvironmentFailure(f"{path}: does not fit into memory; cut it into smaller files") from None
        if not _has_rows(path):
            findings.text_files += 1
            findings.separated_files += num_documents > 1
    if len(problems) == 1:
        raise DataError(f"{problems[0]}, or leave it out with sources.local.fetch.include")
    if problems:
        remedy = "correct or remove them, or leave them out with sources.local.fetch.include"
        count = f"{len(problems)} of {len(files)} files cannot be read; {remedy}"
        raise DataError("\n".join([*problems[:MAX_LISTED], f"local.path: {count}"]))


def _format_of(path: Path) -> str:
    """Return the suffix of a file in small letters, without that of its compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in CODECS]
    return suffixes[-1] if suffixes else ""


def _has_rows(path: Path) -> bool:
    """Return whether a file has rows, which are its documents, and so no separator."""
    return _format_of(path) in (".parquet", ".json", *JSON_LINES, *DELIMITERS)


def read_documents(path: Path, column: str, separator: str | None, replaced: Counter) -> Iterator[str | None]:
    """Yield the documents of one file. Raise DataError with the file and the place if it cannot be read."""
    suffix = _format_of(path)
    if suffix == ".parquet":
        for batch in iter_batches(path, [column]):
            yield from batch.column(0).to_pylist()
        return
    _refuse_binary(path)
    with _open(path) as file:
        if suffix in JSON_LINES or (suffix == ".json" and _holds_json_lines(path)):
            yield from _read_json_lines(path, file, column, replaced)
        elif suffix in DELIMITERS:
            yield from _read_table(path, file, column, DELIMITERS[suffix], replaced)
        elif suffix == ".json":
            yield from _read_json(path, file, column, replaced)
        else:
            text = _plain_text(path, _read_whole(path, file), replaced)
            yield from text.split(_unescape(separator)) if separator else [text]


def _unescape(separator: str) -> str:
    r"""Return the separator with \n, \r and \t, as a shell passes them, as characters, and its line ends as LF."""
    for escaped, character in ((r"\n", "\n"), (r"\r", "\r"), (r"\t", "\t")):
        separator = separator.replace(escaped, character)
    return separator.replace("\r\n", "\n")


def _refuse_binary(path: Path) -> None:
    """Raise DataError if a file, decompressed, is not text: by Git's rule, it has a NUL in its first bytes."""
    with _open(path) as file:
        start = file.read(BINARY_START_BYTES)
    if start.startswith(PARQUET_MAGIC):
        raise DataError(f"{path}: is a parquet file; give it a name that ends in .parquet, not compressed")
    if b"\0" in start and _encoding(start) != "utf-16":
        problem = f"is not text but binary, with a NUL at byte {start.index(0)}"
        remedy = "convert it to parquet or JSONL, a saved dataset with its method to_parquet, or to UTF-8"
        raise DataError(f"{path}: {problem}; {remedy}")


def _read_json_lines(path: Path, file: io.BufferedReader, column: str, replaced: Counter) -> Iterator[str | None]:
    """Yield the document of each line that is not blank."""
    for number, line in enumerate(_lines(path, file, replaced), 1):
        if line.strip():
            row = _parse_json(path, f"line {number}", line, column)
            yield _json_text(path, f"line {number}", row, column, replaced)


def _holds_json_lines(path: Path) -> bool:
    """Return whether the first line of a .json file that is not blank is a whole object or string."""
    with _open(path) as file:
        first_line = next((line for line in _lines(path, file, Counter()) if line.strip()), "")
    try:
        return isinstance(json.loads(first_line), (dict, str))
    except (ValueError, RecursionError):
        return False


def _read_json(path: Path, file: io.BufferedReader, column: str, replaced: Counter) -> Iterator[str | None]:
    """Yield the document of each item of an array, or of the one object with `column`; none of an empty file."""
    text = _plain_text(path, _read_whole(path, file), replaced)
    if not text.strip():
        return
    place = "the array" if text.lstrip().startswith("[") else "the file"
    value = _parse_json(path, place, text, column)
    if isinstance(value, dict) and column in value:
        value = [value]
    if not isinstance(value, list):
        needed = f"needed: an array, or lines, of strings or of objects with {column!r}"
        raise DataError(f"{path}: holds one JSON {type(value).__name__} and no rows, {needed}; convert it")
    for number, item in enumerate(value, 1):
        yield _json_text(path, f"item {number}", item, column, replaced)


def _read_table(
    path: Path, file: io.BufferedReader, column: str, delimiter: str, replaced: Counter
) -> Iterator[str | None]:
    """Yield the document of each row below the names of the columns; none of an empty file."""
    lines = (line.replace("\r\n", "\n") for line in _lines(path, file, replaced))
    table = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        names = list(table.fieldnames or ())
        if not names and not any(line.strip() for line in lines):
            return
        if column not in names:
            raise DataError(_no_column(path, "the first line", column, names))
        if names.count(column) > 1:
            raise DataError(f"{path}: several columns are named {column!r}; rename all but one")
        for row in table:
            if None in row:  # where DictReader puts the fields that have no name
                found = f"has {len(names) + len(row[None])} fields, the first line names {len(names)}"
                remedy = f'put texts that hold {delimiter!r} into quotation marks: "…"'
                raise DataError(f"{path}: line {table.reader.line_num} {found}; {remedy}")
            yield row[column]
    except csv.Error as error:
        raise DataError(f"{path}: line {table.reader.line_num}: {error}; correct or remove the file") from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes, decompressed by its suffix. Raise DataError if it is truncated or damaged."""
    codec = CODECS.get(path.suffix.lower())
    with open(path, "rb") as file:
        try:
            yield io.BufferedReader(pa.input_stream(file, compression=codec)) if codec else file
        except OSError as error:
            if not codec:
                raise
            raise DataError(f"{path}: not a whole {path.suffix} file ({error}); replace or remove it") from None


def _plain_text(path: Path, content: bytes, replaced: Counter) -> str:
    """Return the text of a file with LF line ends. Raise DataError if most of it is not text."""
    own = Counter()
    text = _decode(path, content, _encoding(content), own).replace("\r\n", "\n")
    _refuse_unreadable(path, own.total() + text.count("\0"), len(text))
    replaced.update(own)
    return text


def _refuse_unreadable(path: Path, num_unreadable: int, num_chars: int) -> None:
    """Raise DataError if too many of a file's characters are not UTF-8, or NUL."""
    if num_unreadable > MAX_UNREADABLE_FRACTION * num_chars:
        problem = f"{num_unreadable} of {num_chars} characters are not UTF-8, or NUL"
        raise DataError(f"{path}: {problem}; save the file as UTF-8, or remove it from local.path")


def _encoding(start: bytes) -> str:
    """Return the encoding by the byte-order mark at the start of a file, which decoding removes."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _decode(path: Path, content: bytes, encoding: str, replaced: Counter) -> str:
    """Decode bytes; replace invalid ones by U+FFFD and count them under the file, if there are any."""
    text = content.decode(encoding, errors="replace")
    if REPLACEMENT in text:
        count = text.count(REPLACEMENT) - content.decode(encoding, errors="ignore").count(REPLACEMENT)
        replaced.update({str(path): count} if count else {})
    return text


def _lines(path: Path, file: io.BufferedReader, replaced: Counter) -> Iterator[str]:
    """Yield the decoded lines of a file; UTF-16 is read whole. Raise DataError at the end if most is not text."""
    own, num_chars, num_nuls = Counter(), 0, 0
    encoding = _encoding(file.peek(2))
    if encoding == "utf-16":
        lines = io.StringIO(_decode(path, _read_whole(path, file), encoding, own))
    else:
        lines = (_decode(path, line, encoding, own) for line in iter(lambda: _read_line(path, file), b""))
    for line in lines:
        num_chars += len(line)
        num_nuls += line.count("\0")
        yield line
    _refuse_unreadable(path, own.total() + num_nuls, num_chars)
    replaced.update(own)


def _read_line(path: Path, file: io.BufferedReader) -> bytes:
    """Return the next line of a file, empty at its end. Raise DataError if it is too long for a document."""
    if len(line := file.readline(MAX_PIECE_BYTES + 1)) > MAX_PIECE_BYTES:
        raise DataError(f"{path}: a line has {TOO_LARGE}")
    return line


def _read_whole(path: Path, file: io.BufferedReader) -> bytes:
    """Return all bytes of a file. Raise DataError if they are too many, as a small compressed file may hide."""
    content = bytearray()
    while block := file.read(1 << 20):
        content += block
        if len(content) > MAX_PIECE_BYTES:
            raise DataError(f"{path}: has {TOO_LARGE}")
    return bytes(content)


def _parse_json(path: Path, place: str, text: str, column: str) -> Any:
    """Return a JSON value. Raise DataError if the text is not JSON, or if an object has `column` twice."""

    def make_object(pairs: list[tuple[str, Any]]) -> dict:
        """Return an object as a dict, which would keep the last of equal keys."""
        if sum(key == column for key, _ in pairs) > 1:
            raise ValueError(f"an object has {column!r} twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=make_object)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {place} is not JSON ({error}); correct or remove it") from None


def _json_text(path: Path, place: str, row: Any, column: str, replaced: Counter) -> str | None:
    """Return a string, or the string or null in `column` of an object, without lone surrogates, unknown to UTF-8."""
    if isinstance(row, dict) and column not in row:
        raise DataError(_no_column(path, place, column, row))
    text = row[column] if isinstance(row, dict) else row
    if not (isinstance(text, str) or (text is None and isinstance(row, dict))):
        raise DataError(f"{path}: {place} holds {type(text).__name__}, needed: a string, or one in {column!r}")
    return text and _decode(path, text.encode("utf-16", "surrogatepass"), "utf-16", replaced)


def _no_column(path: Path, place: str, column: str, names: Iterable[str]) -> str:
    """Return the sentence that names the columns there are, and the parameter that selects one."""
    return f"{path}: {place} has no {column!r} but {', '.join(names)}; set sources.local.fetch.column to one of them"

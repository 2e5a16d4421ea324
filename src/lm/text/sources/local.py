"""The user's own text: a file or a folder, plain or compressed, becomes a train and a validation split.

.parquet, .csv, .tsv and .jsonl files have one document per row (`column`), and a .json array one per item. Any other
file is one document, or several if `separator` is set. Text is UTF-8, or UTF-16 with a byte-order mark. Invalid bytes
and lone surrogates become U+FFFD and are counted (in parquet files they are refused).
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
from lm.text.parquet import describe_split, iter_batches, write_documents
from lm.text.splits import MAX_OVERSHOOT, SplitParams, choose_validation, digest, in_batches

REPLACEMENT = "\ufffd"
MAX_UNREADABLE_FRACTION = 0.1  # of a file's characters: U+FFFD for invalid bytes, and NUL
MAX_PIECE_BYTES = 2**31 - 1  # of a line, or of a file without lines: a document of Arrow cannot be larger
TOO_LARGE = f"more than {MAX_PIECE_BYTES:,} bytes, more than a document can have; cut it into smaller files"
MAX_LISTED = 10  # files that cannot be read
CODECS = {".gz": "gzip", ".zst": "zstd"}
SPLIT_AT_BLANK_LINES = """`dvc exp run -S data.source=local -S 'presets.yaml:sources.local.fetch.separator="\\n\\n"'`"""
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
    root = Path(os.environ.get("DVC_ROOT", ".")).resolve()
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
    files, replaced = find_files(path, fetch.include), Counter()
    if fetch.split is None:
        splits = ("text",)
        write_documents(folder / "text/0000.parquet", _documents(files, fetch, replaced))
    else:
        splits, chosen = ("train", "validation"), _choose_validation(files, fetch, fetch.split)
        train = (text for text in _documents(files, fetch, replaced) if not text or digest(text) not in chosen)
        write_documents(folder / "train/0000.parquet", train)
        again = _documents(files, fetch, Counter())  # replaced characters were counted in the first pass
        validation = (text for text in again if text and digest(text) in chosen)
        write_documents(folder / "validation/0000.parquet", validation)
    if replaced:
        where = f"{replaced.total()} characters in {len(replaced)} of {len(files)} files"
        problem = f"are not UTF-8 and became U+FFFD, first in {next(iter(replaced))}; save them as UTF-8"
        print(f"warning: {where} {problem}", file=sys.stderr)
    counts = {"input_files": len(files), "replaced_characters": replaced.total()}
    described = {split: describe_split(folder, split, "text", [str(path)]) for split in splits}
    return {"kind": fetch.kind, "path": str(path), **counts, "column": "text", "splits": described}


def find_files(path: Path, include: str) -> list[Path]:
    """Return the visible files in path order. Raise DataError if there are none, or if one is not a regular file."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"local.path is {path}, which does not exist; put text there or change the path")
    is_hidden = lambda file: any(p.startswith(".") for p in file.relative_to(path).parts)  # noqa: E731
    visible = [file for file in path.rglob("*") if not is_hidden(file)]
    for file in visible:
        if problem := _problem_of(file):
            raise DataError(f"{file}: {problem}")
    files = sorted(set(visible) & {file for file in path.glob(include) if file.is_file()})
    if not files:
        raise DataError(f"{path}: no file matches {include!r} (sources.local.fetch.include); put text there")
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
    split = choose_validation(in_batches(filter(None, _documents(files, fetch, Counter()))), params)
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


def _documents(files: list[Path], fetch: LocalFetch, replaced: Counter) -> Iterator[str | None]:
    """Yield every document, null and empty ones too; count the replaced characters of each file.

    Raise DataError at the end if files cannot be read, with the first problem of each of the first ten.
    """
    problems = []
    for path in tqdm(files, unit=" files", desc="read", disable=None, leave=False):
        try:
            for text in read_documents(path, fetch.column, fetch.separator, replaced):
                if not problems:  # else the rest is read only for its problems
                    yield text
        except DataError as error:
            problems.append(str(error))
        except MemoryError:
            raise EnvironmentFailure(f"{path}: does not fit into memory; cut it into smaller files") from None
    if len(problems) == 1:
        raise DataError(f"{problems[0]}, or leave it out with sources.local.fetch.include")
    if problems:
        remedy = "correct or remove them, or leave them out with sources.local.fetch.include"
        count = f"{len(problems)} of {len(files)} files cannot be read; {remedy}"
        raise DataError("\n".join([*problems[:MAX_LISTED], f"local.path: {count}"]))


def read_documents(path: Path, column: str, separator: str | None, replaced: Counter) -> Iterator[str | None]:
    """Yield the documents of one file. Raise DataError with the file and the place if it cannot be read."""
    suffix = ([""] + [suffix for suffix in path.suffixes if suffix.lower() not in CODECS])[-1].lower()
    if suffix == ".parquet":
        for batch in iter_batches(path, [column]):
            yield from batch.column(0).to_pylist()
        return
    with _open(path) as file:
        if suffix in (".jsonl", ".ndjson"):
            lines = enumerate(_lines(path, file, replaced), 1)
            rows = ((f"line {i}", _parse_json(path, f"line {i}", line)) for i, line in lines if line.strip())
            yield from (_json_text(path, place, row, column, replaced) for place, row in rows)
        elif suffix in (".csv", ".tsv"):
            lines = (line.replace("\r\n", "\n") for line in _lines(path, file, replaced))
            table = csv.DictReader(lines, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
            try:
                names = list(table.fieldnames or ())
                if column not in names:
                    raise DataError(_no_column(path, "the first line", column, names))
                if names.count(column) > 1:
                    raise DataError(f"{path}: several columns are named {column!r}; rename all but one")
                yield from (row[column] for row in table)
            except csv.Error as error:
                raise DataError(f"{path}: line {table.reader.line_num}: {error}; correct or remove the file") from None
        else:
            text = _plain_text(path, _read_whole(path, file), replaced)
            if suffix == ".json" and text.lstrip().startswith("["):
                items = enumerate(_parse_json(path, "the array", text), 1)
                yield from (_json_text(path, f"item {i}", item, column, replaced) for i, item in items)
            else:
                yield from text.split(separator.replace(r"\n", "\n")) if separator else [text]


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
    unreadable = own.total() + text.count("\0")
    if unreadable > MAX_UNREADABLE_FRACTION * len(text):
        problem = f"{unreadable} of {len(text)} characters are not UTF-8, or NUL"
        raise DataError(f"{path}: {problem}; save the file as UTF-8, or remove it from local.path")
    replaced.update(own)
    return text


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
    """Return the decoded lines of a file; UTF-16 is read whole."""
    encoding = _encoding(file.peek(2))
    if encoding == "utf-16":
        return io.StringIO(_decode(path, _read_whole(path, file), encoding, replaced))
    lines = iter(lambda: _read_line(path, file), b"")
    return (_decode(path, line, encoding, replaced) for line in lines)


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


def _parse_json(path: Path, place: str, text: str) -> Any:
    """Return a JSON value. Raise DataError if the text is not JSON."""
    try:
        return json.loads(text)
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

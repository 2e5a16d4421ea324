"""Read the documents of a file of own text, plain or compressed.

.parquet, .csv, .tsv and .jsonl files have one document per row (`column`). A .json file has one per item of its array,
or one per line; so has any other file whose content is JSON. Any other file is one document, or several if `separator`
is set. Text is UTF-8, or UTF-16 with a byte-order mark. Invalid bytes and lone surrogates become U+FFFD and are counted
(in parquet files they are rejected). Binary files are rejected, whatever their names, and so is what
lm.text.sources.not_text knows.
"""

import codecs
import contextlib
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lm.core.errors import DataError, names_file
from lm.text.parquet import iter_batches
from lm.text.sources.not_text import is_unnamed_html, reason_to_reject

REPLACEMENT = "\ufffd"
MAX_UNREADABLE_FRACTION = 0.1  # of a file's characters: U+FFFD for invalid bytes, and NUL
BINARY_START_BYTES = 8000  # a file with a NUL among its first bytes is binary, as for Git
MAX_PIECE_BYTES = 2**31 - 1  # of a line, or of a file without lines: a document of Arrow cannot be larger
TOO_LARGE = f"more than {MAX_PIECE_BYTES:,} bytes, more than a document can have; cut it into smaller files"
CODECS = {".gz": "gzip", ".zst": "zstd"}
JSON_LINES = (".jsonl", ".ndjson", ".jsonlines", ".ldjson")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_MAGIC = b"PAR1"
# The number of a part after the suffix that tells the format: a.jsonl-00000-of-00002, a.csv.1
PART = re.compile(r"(\.(?:jsonl|ndjson|jsonlines|ldjson|json|csv|tsv|parquet))[-._]\d+(?:-of-\d+)?")
csv.field_size_limit(MAX_PIECE_BYTES)


class TextFile:
    """A file, the column of its texts if it has rows, and the separator of its documents if it has none."""

    def __init__(self, path: Path, column: str, separator: str | None):
        self.path = path
        self.column = column
        self.separator = _unescape(separator) if separator else None
        self.num_replaced = 0  # characters that became U+FFFD
        self._num_chars = self._num_nuls = 0  # of the text that was decoded
        self.is_unnamed_html = False
        self.kind = _kind(path)  # .jsonl of x.JSONL.gz; the content may correct it

    @property
    def has_rows(self) -> bool:
        """Return True if each row of the file is a document, so that no separator divides it."""
        return self.kind in (".parquet", ".json", *JSON_LINES, *DELIMITERS)

    def documents(self) -> Iterator[str | None]:
        """Yield the documents, None for null. Raise DataError with the file and the place if it cannot be read."""
        with open(self.path, "rb") as file:  # not decompressed, as a pointer in place of a compressed file is not
            self._reject_known(file.read(BINARY_START_BYTES))
        if self.kind == ".parquet":
            for batch in iter_batches(self.path, [self.column]):
                yield from batch.column(0).to_pylist()
            return

        with self._open() as file:
            start = file.read(BINARY_START_BYTES)
        self._reject_binary(start)
        self._reject_known(start)
        if not self.has_rows:
            self.kind = self._kind_of_json(start)
            self.is_unnamed_html = is_unnamed_html(self.kind, _decode_start(start))

        if self.kind in JSON_LINES or (self.kind == ".json" and self._holds_json_lines()):
            yield from self._json_lines()
        elif self.kind == ".json":
            yield from self._json_items()
        elif self.kind in DELIMITERS:
            yield from self._table(DELIMITERS[self.kind])
        else:
            text = self._whole_text()
            yield from text.split(self.separator) if self.separator else [text]
        self._reject_unreadable()

    # The formats.

    def _json_lines(self) -> Iterator[str | None]:
        for number, line in enumerate(self._lines(), 1):
            if line.strip():
                place = f"line {number}"
                yield self._text_of(self._parse(line, place), place)

    def _json_items(self) -> Iterator[str | None]:
        """Yield the document of each item of an array, or of the one object with the column; none of an empty file."""
        text = self._whole_text()
        if not text.strip():
            return
        value = self._parse(text, "the array" if text.lstrip().startswith("[") else "the file")
        if isinstance(value, dict) and self.column in value:
            value = [value]
        if not isinstance(value, list):
            needed = f"it must hold an array, or lines, of strings or of objects with {self.column!r}"
            raise self._error(f"holds one JSON {type(value).__name__} and no rows; {needed}: convert it")
        for number, item in enumerate(value, 1):
            yield self._text_of(item, f"item {number}")

    def _holds_json_lines(self) -> bool:
        """Return whether the first line of a .json file that is not blank is a whole object or string."""
        with self._open() as file:
            lines = (line.strip() for line in io.TextIOWrapper(file, _encoding(file.peek(2)), errors="replace"))
            first_line = next(filter(None, lines), "")
        try:
            return isinstance(json.loads(first_line), (dict, str))
        except (ValueError, RecursionError):
            return False

    def _kind_of_json(self, start: bytes) -> str:
        """Return `.jsonl` or `.json` if a file of another name holds JSON lines or one JSON value, else its kind."""
        if not _decode_start(start).startswith(("{", "[")):
            return self.kind
        if self._holds_json_lines():
            return ".jsonl"
        with self._open() as file:
            content = _read(file, self.path)
        try:
            json.loads(content.decode(_encoding(content), errors="replace"))
        except (ValueError, RecursionError):
            return self.kind
        return ".json"

    def _plain_rows(self) -> Iterator[str | None]:
        """Yield the document of each line of a TSV whose lines have equally many fields: what stands between tabs.

        Quotation marks are text, but for a field that only a writer of CSV makes, with doubled marks inside.
        """
        names = []
        are_all_quoted = False
        index = 0
        for line in self._lines():
            fields = line.removesuffix("\n").split("\t")
            if not line.strip():
                continue
            if not names:
                are_all_quoted = all(_is_quoted(field) for field in fields)
                names = [_unquote(field, are_all_quoted) for field in fields]
                index = self._index_of_column(names)
                continue
            yield _unquote(fields[index], are_all_quoted)

    def _is_plain_tsv(self) -> bool:
        """Return whether all lines of a TSV have as many tabs as the first one, so that no field holds a line end."""
        reader = TextFile(self.path, self.column, None)  # counts the characters for itself
        counts = {line.count("\t") for line in reader._lines() if line.strip()}
        return len(counts) == 1 and counts != {0}

    def _table(self, delimiter: str) -> Iterator[str | None]:
        """Yield the document of each row below the names of the columns; none of an empty file."""
        if delimiter == "\t" and self._is_plain_tsv():
            yield from self._plain_rows()
            return
        lines = self._lines()
        table = csv.DictReader(lines, delimiter=delimiter, strict=True)
        try:
            names = list(table.fieldnames or ())
            if not names and not any(line.strip() for line in lines):
                return
            self._index_of_column(names)
            for row in table:
                if None in row:  # DictReader collects surplus fields under this key
                    found = f"has {len(names) + len(row[None])} fields, the first line names {len(names)}"
                    remedy = f'put texts that hold {delimiter!r} into quotation marks: "…"'
                    raise self._error(f"line {table.reader.line_num} {found}; {remedy}")
                if delimiter == "\t" and any(_may_be_rows(field, names) for field in row.values()):
                    found = "several lines up to it are one field, as it is between quotation marks"
                    raise self._error(f"line {table.reader.line_num}: {found}; write the rows as JSONL")
                yield row[self.column]
        except csv.Error as error:
            remedy = "correct the quotation marks, or write the rows as JSONL"
            raise self._error(f"line {table.reader.line_num}: {error}; {remedy}") from None

    def _index_of_column(self, names: list[str]) -> int:
        """Return the place of the column in the first line of a table. Raise DataError if it is not there once."""
        if self.column not in names:
            raise self._no_column("the first line", names)
        if names.count(self.column) > 1:
            raise self._error(f"several columns are named {self.column!r}; rename all but one")
        return names.index(self.column)

    def _parse(self, text: str, place: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._error(f"{place} is not JSON ({error}); correct or remove it") from None

    def _text_of(self, row: Any, place: str) -> str | None:
        """Return a string, or the string or null in the column of an object."""
        if isinstance(row, dict) and self.column not in row:
            raise self._no_column(place, row)
        text = row[self.column] if isinstance(row, dict) else row
        is_null = text is None and isinstance(row, dict)
        if not (isinstance(text, str) or is_null):
            raise self._error(f"{place} holds {type(text).__name__}; it must hold a string, or one in {self.column!r}")
        if not text:
            return text
        # JSON may hold lone surrogates, which UTF-8 does not have.
        return self._decode(text.encode("utf-16", "surrogatepass"), "utf-16")

    # Bytes and characters.

    @contextlib.contextmanager
    def _open(self) -> Iterator[io.BufferedReader]:
        """Open the file for reading bytes, decompressed by its suffix."""
        codec = CODECS.get(self.path.suffix.lower())
        with names_file(self.path), open(self.path, "rb") as file:
            if not codec:
                yield file
                return
            try:
                yield io.BufferedReader(pa.input_stream(file, compression=codec))
            except OSError as error:
                problem = f"not a whole {self.path.suffix} file ({error}); replace or remove it"
                raise self._error(problem) from None

    def _reject_known(self, start: bytes) -> None:
        """Raise DataError if the file is known to be something else than text for people."""
        reason = reason_to_reject(self.path, _decode_start(start))
        if reason:
            raise self._error(reason)

    def _reject_binary(self, start: bytes) -> None:
        """Raise DataError if the file, decompressed, is not text: by Git's rule, it has a NUL in its first bytes."""
        if start.startswith(PARQUET_MAGIC):
            raise self._error("is a parquet file; give it a name that ends in .parquet, not compressed")
        if b"\0" in start and _encoding(start) != "utf-16":
            problem = f"is not text but binary, with a NUL at byte {start.index(0)}"
            remedy = "convert it to parquet or JSONL, a saved dataset with its method to_parquet, or to UTF-8"
            raise self._error(f"{problem}; {remedy}")

    def _lines(self) -> Iterator[str]:
        """Yield the lines with their ends, LF or CRLF as LF; a file in UTF-16 is read whole."""
        with self._open() as file:
            encoding = _encoding(file.peek(2))
            if encoding == "utf-16":
                yield from io.StringIO(self._decode_text(_read(file, self.path), encoding))
                return
            while line := file.readline(MAX_PIECE_BYTES + 1):
                if len(line) > MAX_PIECE_BYTES:
                    raise self._error(f"a line has {TOO_LARGE}")
                yield self._decode_text(line, encoding)

    def _whole_text(self) -> str:
        with self._open() as file:
            content = _read(file, self.path)
        return self._decode_text(content, _encoding(content))

    def _decode_text(self, content: bytes, encoding: str) -> str:
        """Decode a part of the file, with LF line ends, and count its characters."""
        text = self._decode(content, encoding)
        self._num_chars += len(text)
        self._num_nuls += text.count("\0")
        return text.replace("\r\n", "\n")

    def _decode(self, content: bytes, encoding: str) -> str:
        """Decode bytes; replace invalid ones by U+FFFD and count them."""
        text = content.decode(encoding, errors="replace")
        if REPLACEMENT in text:
            in_the_file = content.decode(encoding, errors="ignore").count(REPLACEMENT)
            self.num_replaced += text.count(REPLACEMENT) - in_the_file
        return text

    def _reject_unreadable(self) -> None:
        """Raise DataError if too many of the file's characters are not UTF-8, or NUL."""
        num_unreadable = self.num_replaced + self._num_nuls
        if num_unreadable > MAX_UNREADABLE_FRACTION * self._num_chars:
            problem = f"{num_unreadable} of {self._num_chars} characters are not UTF-8, or NUL"
            raise self._error(f"{problem}; save the file as UTF-8, or remove it from local.path")

    # Errors.

    def _error(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}")

    def _no_column(self, place: str, names: Iterable[str]) -> DataError:
        remedy = "set sources.local.fetch.column to one of them"
        return self._error(f"{place} has no {self.column!r} but {', '.join(names)}; {remedy}")


def _kind(path: Path) -> str:
    """Return the suffix in small letters, without that of a compression and the number of a part; maybe ""."""
    kinds = [suffix for suffix in Path(path.name.lower()).suffixes if suffix not in CODECS]
    part = PART.fullmatch("".join(kinds[-2:])) or PART.fullmatch("".join(kinds[-1:]))
    if part:
        return part[1]
    return kinds[-1] if kinds else ""


def _is_quoted(field: str) -> bool:
    """Return whether a field could be one between the quotation marks of CSV."""
    return len(field) > 1 and field[0] == field[-1] == '"' and '"' not in field[1:-1].replace('""', "")


def _unquote(field: str, are_all_quoted: bool) -> str:
    """Return a field of a TSV without the marks of CSV, if all fields have them, or if it has doubled ones inside."""
    if _is_quoted(field) and (are_all_quoted or '""' in field[1:-1]):
        return field[1:-1].replace('""', '"')
    return field


def _may_be_rows(field: str | None, names: list[str]) -> bool:
    """Return whether a field of a TSV may be several rows, which two marks at the beginning and the end have joined."""
    return field is not None and "\n" in field and ("\t" in field or len(names) == 1)


def _unescape(separator: str) -> str:
    r"""Return the separator with \n, \r and \t, as a shell passes them, as characters, and its line ends as LF."""
    for escaped, character in ((r"\n", "\n"), (r"\r", "\r"), (r"\t", "\t")):
        separator = separator.replace(escaped, character)
    return separator.replace("\r\n", "\n")


def _encoding(start: bytes) -> str:
    """Return the encoding by the byte-order mark at the start of a file, which decoding removes."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _decode_start(start: bytes) -> str:
    """Return the first characters of a file, without a byte-order mark and white space at the beginning."""
    return start.decode(_encoding(start), errors="replace").lstrip()


def _read(file: io.BufferedReader, path: Path) -> bytes:
    """Return all bytes of a file. Raise DataError if they are too many, as a small compressed file may hide."""
    content = file.read(MAX_PIECE_BYTES + 1)
    if len(content) > MAX_PIECE_BYTES:
        raise DataError(f"{path}: has {TOO_LARGE}")
    return content

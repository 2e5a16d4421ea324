"""Read the documents of a file of own text, plain or compressed.

.parquet, .csv, .tsv and .jsonl files have one document per row (`column`). A .json file, and any other file whose
content is JSON, has one per item of its array or one per line. Any other file is one document, or several if
`separator` is set.

A byte-order mark gives the encoding of a file, otherwise `encoding` does; text that can only be UTF-8 is read as UTF-8.
Invalid bytes and lone surrogates become U+FFFD; these and NUL are counted. Invalid bytes in parquet files are rejected.
Binary files are rejected whatever their names are, and so are files that lm.text.sources.not_text recognizes.
"""

import codecs
import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lm.core.errors import DataError, names_file
from lm.text.parquet import iter_batches
from lm.text.sources.json_rows import begins_json_lines, is_json, read_json_items, read_json_lines
from lm.text.sources.not_text import is_doubtful, reason_to_reject
from lm.text.sources.tables import begins_table, read_table

REPLACEMENT = "\ufffd"
MAX_DAMAGED_FRACTION = 0.1  # of a file's characters: U+FFFD for invalid bytes, and NUL
START_BYTES = 8000  # a file with a NUL among its first bytes is binary, as for Git
MAX_PIECE_BYTES = 2**31 - 1  # of a line, or of a file without lines: a document of Arrow cannot be larger
TOO_LARGE = f"more than {MAX_PIECE_BYTES:,} bytes, more than a document can have; cut it into smaller files"
CODECS = {".gz": "gzip", ".zst": "zstd"}
JSON_LINES = (".jsonl", ".ndjson", ".jsonlines", ".ldjson")
TABLES = (".csv", ".tsv")
PARQUET_MAGIC = b"PAR1"
UTF_8 = "utf-8-sig"  # removes a byte-order mark
# The mark of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: UTF_8,
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MIN_UTF_8_BYTES = 32  # fewer could be a few Chinese characters in UTF-16 or GB 18030
ENCODING = "sources.yaml:sources.local.fetch.encoding"
OTHER_ENCODING = f"convert it to UTF-8 (iconv), or set {ENCODING} to its encoding"
# The number of a part, after the suffix of the format: a.jsonl-00000-of-00002, a.csv.1
PART = re.compile(r"(\.(?:jsonl|ndjson|jsonlines|ldjson|json|csv|tsv|parquet))[-._]\d+(?:-of-\d+)?")


class TextFile:
    """A file, the column of its texts if it has rows, the separator of its documents if it has none, its encoding."""

    def __init__(self, path: Path, column: str, separator: str | None, encoding: str):
        self.path = path
        self.column = column
        self.separator = _unescape(separator) if separator else None
        self.encoding = UTF_8 if codecs.lookup(encoding).name == "utf-8" else encoding
        self._count_from_zero()
        self.is_doubtful = False
        self.is_other_utf_8 = False  # in spite of `encoding`
        self.has_rows = True  # each is a document, so that no separator divides it

    @property
    def is_empty(self) -> bool:
        """Return whether no text was read."""
        return self._num_chars == 0

    def documents(self) -> Iterator[str | None]:
        """Yield the documents, None for null. Raise DataError with the file and the place if it cannot be read."""
        suffix = suffix_of(self.path)
        try:
            with open(self.path, "rb") as file:  # as stored: a pointer in place of a compressed file is plain text
                self._reject_known(file.read(START_BYTES).decode(UTF_8, errors="replace"))
            if suffix != ".parquet":
                yield from self._documents_of_text(suffix)
        except DataError as error:
            raise self._error(str(error)) from None
        if suffix == ".parquet":
            for batch in iter_batches(self.path, [self.column]):
                for text in batch.column(0).to_pylist():
                    self._count(text or "")
                    yield text
        self._reject_damaged()

    def _documents_of_text(self, suffix: str) -> Iterator[str | None]:
        """Yield the documents of a file that is not parquet; its suffix, or else its content, says how it is read."""
        # Recognize the file by its start.
        with self._open() as file:
            start = file.read(START_BYTES)
        mark = next((mark for mark in BYTE_ORDER_MARKS if start.startswith(mark)), None)
        if mark is not None:
            self.encoding = BYTE_ORDER_MARKS[mark]
        elif self.encoding != UTF_8 and can_only_be_utf_8(self._whole_content(), self.encoding):
            self.encoding = UTF_8
            self.is_other_utf_8 = True
        beginning = start.decode(self.encoding, errors="replace")
        self._reject_binary(start, beginning)
        self._reject_known(beginning)

        self.is_doubtful = is_doubtful(suffix, beginning.lstrip())

        # Read rows.
        if suffix in TABLES:
            yield from read_table(self._lines(), self.column, suffix)
            return
        may_be_json = suffix == ".json" or beginning.lstrip().startswith(("{", "["))
        if suffix in JSON_LINES or (may_be_json and begins_json_lines(self._lines())):
            self._count_from_zero()
            yield from map(self._without_surrogates, read_json_lines(self._lines(), self.column))
            return
        if suffix == ".json" or (may_be_json and is_json(self._whole_text())):
            self._count_from_zero()
            yield from map(self._without_surrogates, read_json_items(self._whole_text(), self.column))
            return

        # Read plain text.
        if begins_table(beginning, self.column):
            problem = f"begins like a table with a column {self.column!r}, but is not named so"
            raise DataError(f"{problem}; let its name end in .csv or .tsv")
        self._count_from_zero()
        self.has_rows = False
        text = self._whole_text()
        yield from text.split(self.separator) if self.separator else [text]

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
                # gzip reads the zeros after the end that tapes and devices add; pyarrow does not.
                of_gzip = codec == "gzip"
                stream = gzip.GzipFile(fileobj=file) if of_gzip else pa.input_stream(file, compression=codec)
                yield io.BufferedReader(stream)
            except (OSError, EOFError, zlib.error) as error:
                if "too much memory" in str(error):
                    raise DataError("needs a long window; unpack it with `zstd -d --long=31`") from None
                raise DataError(f"not a whole {self.path.suffix} file ({error}); replace or remove it") from None

    def _lines(self) -> Iterator[str]:
        """Yield the lines with their ends, LF or CRLF as LF; a file that is not UTF-8 is read whole."""
        if self.encoding != UTF_8:
            yield from io.StringIO(self._whole_text())
            return
        with self._open() as file:
            while line := file.readline(MAX_PIECE_BYTES + 1):
                if len(line) > MAX_PIECE_BYTES:
                    raise DataError(f"a line has {TOO_LARGE}")
                yield self._decode(line)

    def _whole_content(self) -> bytes:
        """Return all bytes, decompressed. Raise DataError if there are too many, even from a small compressed file."""
        with self._open() as file:
            content = file.read(MAX_PIECE_BYTES + 1)
        if len(content) > MAX_PIECE_BYTES:
            raise DataError(f"has {TOO_LARGE}")
        return content

    def _whole_text(self) -> str:
        """Return the text, LF or CRLF as LF."""
        return self._decode(self._whole_content())

    def _decode(self, content: bytes) -> str:
        """Decode a part of the file, with LF line ends; count its characters."""
        text = content.decode(self.encoding, errors="replace")
        self._count(text)
        self._count_replaced(text, content, self.encoding)
        return text.replace("\r\n", "\n")

    def _without_surrogates(self, text: str | None) -> str | None:
        """Replace lone surrogates, which JSON may hold and UTF-8 does not have."""
        if not text:
            return text
        self.num_nuls += text.count("\0")
        content = text.encode("utf-16", "surrogatepass")
        valid = content.decode("utf-16", errors="replace")
        self._count_replaced(valid, content, "utf-16")
        return valid

    def _count_from_zero(self) -> None:
        """Reset the counts; a part of the file may have been read only to recognize it."""
        self.num_replaced = 0  # characters that became U+FFFD
        self.num_nuls = 0
        self._num_chars = 0  # of the text that was decoded

    def _count(self, text: str) -> None:
        self._num_chars += len(text)
        self.num_nuls += text.count("\0")

    def _count_replaced(self, text: str, content: bytes, encoding: str) -> None:
        """Count the characters of a decoded text that are U+FFFD in place of invalid bytes."""
        if REPLACEMENT in text:
            in_the_file = content.decode(encoding, errors="ignore").count(REPLACEMENT)
            self.num_replaced += text.count(REPLACEMENT) - in_the_file

    # Errors.

    def _error(self, problem: str) -> DataError:
        return DataError(f"{self.path}: {problem}")

    def _reject_known(self, beginning: str) -> None:
        """Raise DataError if the file is recognized as something other than text."""
        reason = reason_to_reject(self.path, beginning.lstrip())
        if reason:
            raise DataError(reason)

    def _reject_binary(self, start: bytes, beginning: str) -> None:
        """Raise DataError if the file, decompressed, is not text: by Git's rule, it has a NUL in its first bytes."""
        if start.startswith(PARQUET_MAGIC):
            raise DataError("is a parquet file; give it a name that ends in .parquet, not compressed")
        if "\0" not in beginning:
            return
        found = f"is not text but binary, or UTF-16 without a mark, or cut off, with a NUL at byte {start.find(0)}"
        remedy = f"convert it, such as a saved dataset with to_parquet, or set {ENCODING} to utf-16-le or utf-16-be"
        raise DataError(f"{found}; {remedy}")

    def _reject_damaged(self) -> None:
        """Raise DataError if too many of the file's characters are not in its encoding, or NUL."""
        num_damaged = self.num_replaced + self.num_nuls
        if num_damaged > MAX_DAMAGED_FRACTION * self._num_chars:
            encoding = self.encoding.removesuffix("-sig")
            problem = f"{num_damaged} of {self._num_chars} characters are not {encoding}, or NUL"
            raise self._error(f"{problem}; {OTHER_ENCODING}")


def can_only_be_utf_8(content: bytes, encoding: str) -> bool:
    """Return whether bytes that should be in `encoding` are valid UTF-8 and give another text as UTF-8."""
    try:
        text = content.decode(UTF_8)
    except UnicodeDecodeError:
        return False
    if "\0" in text:  # UTF-16
        return False
    has_letters_of_two_bytes = len(bytes(range(256)).decode(encoding, errors="replace")) < 256
    if has_letters_of_two_bytes and len(content) < MIN_UTF_8_BYTES:
        return False
    has_ascii = b"a b".decode(encoding, errors="replace") == "a b"
    return not (has_ascii and text.isascii())


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case, without a compression suffix or the number of a part; "" without a suffix."""
    suffixes = [suffix for suffix in Path(path.name.lower()).suffixes if suffix not in CODECS]
    part = PART.fullmatch("".join(suffixes[-2:])) or PART.fullmatch("".join(suffixes[-1:]))
    if part:
        return part[1]
    return suffixes[-1] if suffixes else ""


def _unescape(separator: str) -> str:
    r"""Return the separator with \n, \r and \t, as a shell passes them, as characters, and its line ends as LF."""
    for escaped, character in ((r"\n", "\n"), (r"\r", "\r"), (r"\t", "\t")):
        separator = separator.replace(escaped, character)
    return separator.replace("\r\n", "\n")

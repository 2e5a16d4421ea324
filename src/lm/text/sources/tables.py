"""Read the texts in a column of a CSV or TSV.

The delimiter is the one of DELIMITERS that divides the first line into most fields; if two tie, the suffix decides.
Quotation marks around a field are not part of it. A table with other quotation marks is rejected.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator

from lm.core.errors import DataError

DELIMITERS = (",", "\t", ";", "|")
NAMED_DELIMITER = re.compile(f"sep=([{''.join(DELIMITERS)}])", re.IGNORECASE)
QUOTE_TSV = """if marks are text, put each field into marks: `sed 's/"/""/g; s/[^\\t]*/"&"/g'`"""
csv.field_size_limit(2**31 - 1)


def read_table(lines: Iterable[str], column: str, suffix: str) -> Iterator[str | None]:
    """Yield the text of each row below the column names, None where the row is too short.

    `suffix`: .csv or .tsv. Raise DataError with the line.
    """
    # Read to the line with the names; Excel may write the delimiter on a line before it. Lines may end in CR alone.
    lines = itertools.chain.from_iterable(io.StringIO(line, newline=None) if "\r" in line else [line] for line in lines)
    head = _read_to_text(lines)
    named = NAMED_DELIMITER.fullmatch(head[-1].rstrip("\n")) if head else None
    if named:
        head = _read_to_text(lines)
    if not head:
        return
    usual = "\t" if suffix == ".tsv" else ","
    delimiter = named[1] if named else max((usual, *DELIMITERS), key=lambda each: len(_fields(head[-1], each)))

    # Read the rows. Fields between quotation marks may hold delimiters and line ends.
    table = csv.reader(itertools.chain(head, lines), delimiter=delimiter, strict=True)
    try:
        names = next(filter(None, table))
        index = _index_of(column, names, delimiter)
        for row in table:
            place = f"line {table.line_num}"
            if len(row) > len(names):
                found = f"has {len(row)} fields, the first line names {len(names)}"
                raise DataError(f'{place} {found}; put texts that hold {delimiter!r} into quotation marks: "…"')
            if delimiter == "\t" and any("\n" in field and ("\t" in field or len(names) == 1) for field in row):
                raise DataError(f"{place}: several lines up to it are one field between quotation marks; {QUOTE_TSV}")
            if row:
                yield row[index] if index < len(row) else None
    except csv.Error as error:
        remedy = QUOTE_TSV if delimiter == "\t" else "correct the quotation marks, or write the rows as JSONL"
        raise DataError(f"line {table.line_num}: {error}; {remedy}") from None


def begins_table(text: str, column: str) -> bool:
    """Return whether the first line of a text names columns, `column` among them, and the second has as many fields."""
    first_line, _, rest = text.replace("\r\n", "\n").replace("\r", "\n").partition("\n")
    second_line = rest.partition("\n")[0]
    for delimiter in DELIMITERS:
        names = _fields(first_line, delimiter)
        are_names = len(names) > 1 and all(re.fullmatch(r"\w[\w .-]*", name) for name in names)
        if are_names and column in names and len(_fields(second_line, delimiter)) == len(names):
            return True
    return False


def _fields(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _read_to_text(lines: Iterator[str]) -> list[str]:
    """Return the next lines up to one that is not blank, which comes last; [] if all are blank."""
    head = []
    for line in lines:
        head.append(line)
        if line.strip():
            return head
    return []


def _index_of(column: str, names: list[str], delimiter: str) -> int:
    """Return the index of a column. Raise DataError unless exactly one column has this name."""
    if column not in names:
        found = f"the first line, cut at {delimiter!r}, has no {column!r} but {', '.join(names)}"
        raise DataError(f"{found}; set sources.yaml:sources.local.fetch.column to one of them")
    if names.count(column) > 1:
        raise DataError(f"several columns are named {column!r}; rename all but one")
    return names.index(column)

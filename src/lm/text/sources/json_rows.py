"""Read the texts of JSON: one a line, or one an item of an array."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lm.core.errors import DataError

COLUMN = "sources.yaml:sources.local.fetch.column"
MISSING = object()  # what an object without the field has


def read_json_lines(lines: Iterable[str], column: str) -> Iterator[str | None]:
    """Yield the text of each line that is not blank: a string, or what an object has in `column`, maybe None.

    Raise DataError with the line.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"line {number}"
            yield _text_of(_parse(line, place), column, place)


def read_json_items(text: str, column: str) -> Iterator[str | None]:
    """Yield the text of each item of an array, or of one object with the column; none of a blank file.

    Raise DataError with the item.
    """
    if not text.strip():
        return
    value = _parse(text, "the array" if text.lstrip().startswith("[") else "the file")
    if isinstance(value, dict) and _field_of(value, column) is not MISSING:
        value = [value]
    if not isinstance(value, list):
        needed = f"it must hold an array, or lines, of strings or of objects with {column!r}"
        raise DataError(f"holds one JSON {type(value).__name__} and no rows; {needed}: convert it")
    for number, item in enumerate(value, 1):
        yield _text_of(item, column, f"item {number}")


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def begins_json_lines(lines: Iterable[str]) -> bool:
    """Return whether the first line that is not blank is a whole object or string."""
    first_line = next((line for line in lines if line.strip()), "")
    return first_line.lstrip().startswith(("{", '"')) and is_json(first_line)


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}); correct or remove it") from None


def _text_of(row: Any, column: str, place: str) -> str | None:
    """Return a string, or the string or null in the column of an object."""
    value = row
    if isinstance(row, dict):
        value = _field_of(row, column)
        if value is None:
            return None
        if value is MISSING or isinstance(value, dict):
            found = list(_paths_of_texts(row))
            problem = f"{place} has no text in {column!r}"
            if not found:
                remedy = "convert each row, such as the messages of a chat, to one string"
                raise DataError(f"{problem} nor in another field; {remedy}")
            raise DataError(f"{problem} but {', '.join(found)}; set {COLUMN} to one of them")
    if not isinstance(value, str):
        kind = type(value).__name__
        if isinstance(row, dict):
            raise DataError(f"{place} holds {kind} in {column!r}; convert each row to one string")
        raise DataError(f"{place} holds {kind}; it must hold a string, or an object with one in {column!r}")
    return value


def _field_of(row: dict, column: str) -> Any:
    """Return a field by its name, or by its dotted path; of an object that is null, null; or MISSING."""
    if column in row:
        return row[column]
    value: Any = row
    for key in column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _paths_of_texts(row: dict, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of the fields that hold a string."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _paths_of_texts(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            yield f"{prefix}{name}"

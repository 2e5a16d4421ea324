"""Read texts from JSON: one per line, or one per item of an array."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lm.core.errors import DataError

COLUMN = "sources.yaml:sources.local.fetch.column"
EXAMPLE = "a chat by the lines in docs/data.md#your-own-text"
MISSING = object()  # stands for the value of an absent field


def read_json_lines(lines: Iterable[str], column: str) -> Iterator[str | None]:
    """Yield the text of each nonblank line: a string, or the value of `column` in an object, which may be None.

    Raise DataError with the line, at the end if some lines lack the column.
    """
    places = ((f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return _texts_of(((place, _parse(line, place)) for place, line in places), column, "lines")


def read_json_items(text: str, column: str) -> Iterator[str | None]:
    """Yield the text of each item of an array, or of one object with the column; nothing for a blank file.

    Raise DataError with the item, at the end if some items lack the column.
    """
    if not text.strip():
        return
    value = _parse(text, "the array" if text.lstrip().startswith("[") else "the file")
    if isinstance(value, dict) and _field_of(value, column) is not MISSING:
        value = [value]
    if not isinstance(value, list):
        needed = f"it must hold an array, or lines, of strings or of objects with {column!r}"
        raise DataError(f"holds one JSON {type(value).__name__} and no rows; {needed}: convert it")
    yield from _texts_of(((f"item {number}", item) for number, item in enumerate(value, 1)), column, "items")


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


def _texts_of(rows: Iterable[tuple[str, Any]], column: str, unit: str) -> Iterator[str | None]:
    """Yield the text of each row, given with its place. Raise DataError at the end if rows lack the column."""
    num_rows = 0
    has_text = False
    num_lacking = 0  # rows without the column
    first_lacking = found = ""  # the place of the first one, and its fields with text
    for place, row in rows:
        num_rows += 1
        value = _field_of(row, column) if isinstance(row, dict) else row
        if value is MISSING or isinstance(value, dict):
            if not num_lacking:
                first_lacking = place
                found = ", ".join(_paths_of_texts(row))
            num_lacking += 1
        elif value is None or isinstance(value, str):
            has_text |= value is not None
            yield value
        else:
            held = f"{place} holds {type(value).__name__}"
            if isinstance(row, dict):
                raise DataError(f"{held} in {column!r}; convert each row to one string")
            raise DataError(f"{held}; it must hold a string, or an object with one in {column!r}")
    if not num_lacking:
        return

    if has_text:
        problem = f"{num_lacking} of {num_rows} {unit} have no text in {column!r}, first {first_lacking}"
        raise DataError(f"{problem}, which has {found or 'none'}; add it to these, or null in it to leave them out")
    problem = f"{first_lacking} has no text in {column!r}"
    if not found:
        raise DataError(f"{problem} nor in another field; make each row one string, such as {EXAMPLE}")
    raise DataError(f"{problem} but {found}; set {COLUMN} to one of them")


def _field_of(row: dict, column: str) -> Any:
    """Return a field by its name or dotted path: None inside an object that is null, MISSING if it is absent."""
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

"""YAML sections as frozen dataclasses: typed, complete, without unknown keys.

The reader is DVC's (YAML 1.2), so that `1e-05` is a number for both. A dataclass gives the type of each key (int,
float, str, bool, `X | None`, `Literal`, `tuple[X, ...]`, `dict`, `dict[str, X]`, another dataclass, or `A | B`: the one
with more of the keys) and checks the ranges in `__post_init__` with `needed`.
"""

import dataclasses
import difflib
import math
import types
import typing
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError

from lm.core.errors import ParamsError, UserError
from lm.core.files import regular

Section = typing.TypeVar("Section")
MAX_VALUES = 100_000  # in a file; a few lines with aliases can stand for billions
NEEDED = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false", dict: "a mapping"}


def read_yaml(path: Path | str) -> dict:
    """Read a YAML mapping. Raise ParamsError, with the file and the line, if that fails."""
    try:
        text = regular(path).read_text(encoding="utf-8")
        value = YAML(typ="safe").load(text)
    except FileNotFoundError:
        raise ParamsError(f"{path}: missing; run the command at the repository's root") from None
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1
        raise ParamsError(f"{path}: line {line}: {error.problem.split(' with ')[0]}; keep one of them") from None
    except (OSError, UserError):
        raise
    except Exception as error:  # ruamel.yaml raises many types, also for a date or a depth that cannot be
        raise ParamsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ParamsError(f"{path}: the top level must be a mapping")
    if _count(value, {}) > MAX_VALUES:
        raise ParamsError(f"{path}: its aliases (*name) stand for more than {MAX_VALUES:,} values")
    return value


def _count(value, known: dict[int, int]) -> int:
    """Return how many values a value holds, counting one behind an alias each time; a circle counts as too many."""
    if id(value) not in known:
        known[id(value)] = MAX_VALUES + 1  # what this value is while it is counted: inside itself
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        known[id(value)] = 1 + sum(_count(item, known) for item in items)
    return known[id(value)]


def read_section(path: Path | str, name: str, section_type: type[Section]) -> Section:
    """Return the section `name` (dots descend: "sources.stories.fetch") as `section_type`."""
    value, walked = read_yaml(path), []
    for key in name.split("."):
        walked.append(key)
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(map(str, value)) if isinstance(value, dict) else "no keys"
            raise ParamsError(f"{path}: {'.'.join(walked)} is missing; there are: {known}")
        value = value[key]
    return coerce(value, section_type, name, str(path))


def coerce(value, wanted, name: str, where: str) -> typing.Any:
    """Return `value` as the type `wanted`. Raise ParamsError with `where` and `name` if it has another type."""
    if dataclasses.is_dataclass(wanted):
        return _dataclass(value, wanted, name, where)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return coerce(value, _nearest(value, [each for each in arguments if each is not type(None)]), name, where)
    if origin is typing.Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise ParamsError(f"{where}: {name} is {value!r}; it must be one of {', '.join(arguments)}")
    if origin is tuple and isinstance(value, list):
        return tuple(coerce(item, arguments[0], f"{name}[{i}]", where) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: coerce(item, arguments[1], f"{name}.{key}", where) for key, item in value.items()}
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted in (int, str, bool, dict) and type(value) is wanted:
        return value
    raise ParamsError(f"{where}: {name} is {value!r}, not {NEEDED.get(wanted, 'a list or mapping as needed')}")


def _nearest(value, types_: list) -> typing.Any:
    """Return the type of a union that shares most keys with `value`; the first one of several."""
    keys = set(value) if isinstance(value, dict) else set()
    return max(types_, key=lambda each: len(keys & set(getattr(each, "__dataclass_fields__", ()))))


def _dataclass(value, wanted, name: str, where: str):
    """Build a dataclass from a mapping that has every field and no other key; check its ranges."""
    if not isinstance(value, dict):
        raise ParamsError(f"{where}: {name} is {value!r}, not a mapping")
    fields = typing.get_type_hints(wanted)
    if unknown := [key for key in value if key not in fields]:
        nearest = difflib.get_close_matches(str(unknown[0]), fields, n=1, cutoff=0.0)[0]
        raise ParamsError(f"{where}: {name}.{unknown[0]} is unknown; the nearest valid name is {name}.{nearest}")
    if missing := [key for key in fields if key not in value]:
        raise ParamsError(f"{where}: {name}.{missing[0]} is missing; give it a value")
    typed = {key: coerce(value[key], field_type, f"{name}.{key}", where) for key, field_type in fields.items()}
    try:
        return wanted(**typed)
    except ValueError as error:
        raise ParamsError(f"{where}: {name}.{error}") from None


def needed(ok: object, name: str, actual, requirement: str) -> None:
    """Raise ValueError("name is actual, needed: requirement") unless `ok`; for a section's `__post_init__`."""
    if not ok:
        raise ValueError(f"{name} is {actual}, needed: {requirement}")

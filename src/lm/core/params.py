"""YAML sections as frozen dataclasses: typed, complete, without unknown keys. All errors are reported at once.

The reader is DVC's (YAML 1.2), so that `1e-05` is a number for both. A dataclass gives the type of each key: int,
float, str, bool, `X | None`, `Literal`, `tuple[X, ...]`, `dict`, `dict[str, X]`, another dataclass, or `A | B`: the one
of the same `kind`, else the one with more of the keys. A range stands beside the type: `Annotated[int, at_least(1)]`.
Conditions on several keys are checked in `__post_init__` with `require`.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError

from lm.core.errors import ParamsError, names_file

Section = typing.TypeVar("Section")
NEEDED = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false", dict: "a mapping"}


class Range(typing.NamedTuple):
    """A condition on a number, and the words that describe it."""

    holds: Callable[[float], bool]
    requirement: str


def at_least(least: float, also: str = "") -> Range:
    """Return the range from `least` on; `also` ends the requirement, such as ", or null for off"."""
    return Range(lambda value: value >= least, f"at least {least}{also}")


def above(limit: float, also: str = "") -> Range:
    """Return the range above `limit`; `also` ends the requirement."""
    return Range(lambda value: value > limit, f"above {limit}{also}")


FRACTION = Range(lambda value: 0 < value <= 1, "above 0, at most 1")
SEED = Range(lambda value: 0 <= value < 2**63, "from 0 to below 2^63")


def read_yaml(path: Path | str) -> dict:
    """Read a YAML mapping. Raise ParamsError, with the file and the line, if that fails."""
    try:
        with names_file(path):
            text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ParamsError(f"{path}: missing; run the command at the repository's root") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not valid YAML: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> dict:
    """Return the mapping in a YAML text. Raise ParamsError, with `where` and the line, if there is none."""
    try:
        value = YAML(typ="safe").load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1
        raise ParamsError(f"{where}: line {line}: {error.problem.split(' with ')[0]}; keep one of them") from None
    except Exception as error:  # ruamel.yaml raises many types, for impossible dates or deep nesting too
        raise ParamsError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ParamsError(f"{where}: the top level must be a mapping")
    return value


def read_section(path: Path | str, name: str, section_type: type[Section] | types.UnionType) -> Section:
    """Return the section `name` (dots descend: "sources.local.fetch") as `section_type`."""
    return _section_of(read_yaml(path), path, name, section_type)


def find_problems(path: Path | str, sections: Mapping[str, typing.Any]) -> list[str]:
    """Return a sentence for each value that is wrong in the sections of a file, given by name → type, each once."""
    content = read_yaml(path)
    problems = []
    for name, section_type in sections.items():
        try:
            _section_of(content, path, name, section_type)
        except ParamsError as error:
            problems += str(error).splitlines()
    return list(dict.fromkeys(problems))


def _section_of(value, path: Path | str, name: str, section_type: type[Section] | types.UnionType) -> Section:
    """Return the section `name` of the content of a file as `section_type`."""
    walked = []
    for key in name.split("."):
        walked.append(key or "''")
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(map(str, value)) if isinstance(value, dict) else "no keys"
            raise ParamsError(f"{path}: {'.'.join(walked)} is missing; there are: {known}")
        value = value[key]
    return coerce(value, section_type, name, str(path))


def coerce(value, wanted, name: str, where: str) -> typing.Any:
    """Return `value` as the type `wanted`. Raise ParamsError with a line for each value of another type or range."""
    problems: list[str] = []
    typed = _typed(value, wanted, name, problems)
    if problems:
        raise ParamsError("\n".join(f"{where}: {problem}" for problem in problems))
    return typed


def _typed(value, wanted, name: str, problems: list[str]) -> typing.Any:
    """Return `value` as the type `wanted`; append a sentence to `problems` for each error."""
    origin = typing.get_origin(wanted)
    if dataclasses.is_dataclass(wanted):
        return _dataclass(value, wanted, name, problems)
    if origin is typing.Annotated:
        return _in_range(value, wanted, name, problems)
    if origin in (types.UnionType, typing.Union):
        return _union(value, wanted, name, problems)
    if origin is typing.Literal:
        return _choice(value, wanted, name, problems)
    if origin is tuple:
        return _tuple(value, wanted, name, problems)
    if origin is dict:
        return _mapping(value, wanted, name, problems)
    return _plain(value, wanted, name, problems)


def _plain(value, wanted, name: str, problems: list[str]) -> typing.Any:
    """Read an int, float, str, bool or dict; an int is accepted for a float, and a bool is not an int."""
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted is not float and type(value) is wanted:
        return value
    problems.append(f"{name} is {value!r}, not {NEEDED[wanted]}")
    return None


def _in_range(value, wanted, name: str, problems: list[str]) -> typing.Any:
    """Read an `Annotated[X, Range]`; null, where X allows it, is in every range."""
    kind, *ranges = typing.get_args(wanted)
    num_problems = len(problems)
    typed = _typed(value, kind, name, problems)
    if typed is None or len(problems) > num_problems:
        return typed
    problems += [f"{name} is {typed}; it must be {each.requirement}" for each in ranges if not each.holds(typed)]
    return typed


def _choice(value, wanted, name: str, problems: list[str]) -> str | None:
    """Read a `Literal` of strings."""
    choices = typing.get_args(wanted)
    if isinstance(value, str) and value in choices:
        return value
    problems.append(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
    return None


def _tuple(value, wanted, name: str, problems: list[str]) -> tuple | None:
    """Read a `tuple[X, ...]`, a list in YAML."""
    if not isinstance(value, list):
        problems.append(f"{name} is {value!r}, not a list")
        return None
    kind = typing.get_args(wanted)[0]
    return tuple(_typed(item, kind, f"{name}[{i}]", problems) for i, item in enumerate(value))


def _mapping(value, wanted, name: str, problems: list[str]) -> dict | None:
    """Read a `dict[str, X]`."""
    if not isinstance(value, dict):
        problems.append(f"{name} is {value!r}, not a mapping")
        return None
    _, kind = typing.get_args(wanted)
    return {key: _typed(item, kind, f"{name}.{key}", problems) for key, item in value.items()}


def _union(value, wanted, name: str, problems: list[str]) -> typing.Any:
    """Read an `X | None`, or a union of dataclasses: the one of this `kind`, else that with more of the keys."""
    members = typing.get_args(wanted)
    if value is None and type(None) in members:
        return None
    members = [each for each in members if each is not type(None)]

    # A member whose field `kind` is a Literal is chosen by it.
    by_kind = {kind: each for each in members for kind in _kinds(each)}
    if by_kind and isinstance(value, dict) and "kind" in value:
        kind = value["kind"]
        if not isinstance(kind, str) or kind not in by_kind:
            problems.append(f"{name}.kind is {kind!r}; it must be one of {', '.join(by_kind)}")
            return None
        return _typed(value, by_kind[kind], name, problems)

    # A list is read by the tuple member. Otherwise the member with most of the keys is chosen; if several tie, the
    # first.
    if isinstance(value, list):
        members = [each for each in members if typing.get_origin(each) is tuple] or members
    keys = value if isinstance(value, dict) else {}
    nearest = max(members, key=lambda each: sum(field in keys for field in _field_types(each)))
    return _typed(value, nearest, name, problems)


def _field_types(wanted) -> dict[str, typing.Any]:
    """Return name → type of the fields of a dataclass, {} for another type."""
    return typing.get_type_hints(wanted, include_extras=True) if dataclasses.is_dataclass(wanted) else {}


def _kinds(wanted) -> tuple[str, ...]:
    """Return the values of a dataclass's field `kind`, () without such a field."""
    return typing.get_args(_field_types(wanted).get("kind"))


def _dataclass(value, wanted, name: str, problems: list[str]) -> typing.Any:
    """Build a dataclass from a mapping that has every field and no other key; its `__post_init__` checks the rest."""
    if not isinstance(value, dict):
        problems.append(f"{name} is {value!r}, not a mapping")
        return None
    num_problems = len(problems)
    fields = _field_types(wanted)

    # Compare the names.
    for key in value:
        if key not in fields:
            nearest = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.0)[0]
            problems.append(f"{name}.{key} is unknown; the nearest valid name is {name}.{nearest}")
    problems += [f"{name}.{key} is missing; give it a value" for key in fields if key not in value]

    # Read the values.
    present = [key for key in fields if key in value]
    typed = {key: _typed(value[key], fields[key], f"{name}.{key}", problems) for key in present}
    if len(problems) > num_problems:
        return None
    try:
        return wanted(**typed)
    except ValueError as error:
        problems += [f"{name}.{line}" for line in str(error).splitlines()]
        return None


def require(ok: object, name: str, actual, requirement: str) -> None:
    """Raise ValueError("name is actual; it must be requirement") unless `ok`; for a section's `__post_init__`."""
    if not ok:
        raise ValueError(f"{name} is {actual}; it must be {requirement}")

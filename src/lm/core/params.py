"""YAML sections as frozen dataclasses: typed, complete, without unknown keys. All that is wrong is reported at once.

The reader is DVC's (YAML 1.2), so that `1e-05` is a number for both. A dataclass gives the type of each key: int,
float, str, bool, `X | None`, `Literal`, `tuple[X, ...]`, `dict`, `dict[str, X]`, another dataclass, or `A | B`: the one
of the same `kind`, else the one with more of the keys. A range stands beside the type: `Annotated[int, at_least(1)]`.
What depends on several keys is checked in `__post_init__` with `require`.
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

from lm.core.errors import ParamsError, UserError

Section = typing.TypeVar("Section")
NEEDED = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false", dict: "a mapping"}


class Range(typing.NamedTuple):
    """What a number must satisfy, and the words for it."""

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
        text = Path(path).read_text(encoding="utf-8")
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
    return value


def read_section(path: Path | str, name: str, section_type: type[Section] | types.UnionType) -> Section:
    """Return the section `name` (dots descend: "sources.local.fetch") as `section_type`."""
    return _section_of(read_yaml(path), path, name, section_type)


def find_problems(path: Path | str, sections: Mapping[str, typing.Any]) -> list[str]:
    """Return a sentence for each value that is wrong in the sections of a file, given by name → type, each once."""
    content, problems = read_yaml(path), []
    for name, section_type in sections.items():
        try:
            _section_of(content, path, name, section_type)
        except ParamsError as error:
            problems += str(error).splitlines()
    return list(dict.fromkeys(problems))


def _section_of(value, path: Path | str, name: str, section_type: type[Section] | types.UnionType) -> Section:
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
    """Return `value` as the type `wanted`; append to `problems` what is wrong with it."""
    if dataclasses.is_dataclass(wanted):
        return _dataclass(value, wanted, name, problems)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Annotated:
        count = len(problems)
        typed = _typed(value, arguments[0], name, problems)
        for each in arguments[1:]:
            if len(problems) == count and typed is not None and not each.holds(typed):
                problems.append(f"{name} is {typed}, needed: {each.requirement}")
        return typed
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _union(value, [each for each in arguments if each is not type(None)], name, problems)
    if origin is typing.Literal:
        if isinstance(value, str) and value in arguments:
            return value
        problems.append(f"{name} is {value!r}; it must be one of {', '.join(arguments)}")
        return None
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(item, arguments[0], f"{name}[{i}]", problems) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _typed(item, arguments[1], f"{name}.{key}", problems) for key, item in value.items()}
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted in (int, str, bool, dict) and type(value) is wanted:
        return value
    problems.append(f"{name} is {value!r}, not {NEEDED.get(wanted, 'a list or mapping as needed')}")
    return None


def _union(value, members: list, name: str, problems: list[str]) -> typing.Any:
    """Return `value` as the member that has its `kind`, or else as the first one that shares most keys with it."""
    keys = set(value) if isinstance(value, dict) else set()
    hints = [typing.get_type_hints(each) if dataclasses.is_dataclass(each) else {} for each in members]
    kinds = [kind for each in hints for kind in typing.get_args(each.get("kind"))]
    if kinds and "kind" in keys:
        if value["kind"] not in kinds:
            problems.append(f"{name}.kind is {value['kind']!r}; it must be one of {', '.join(kinds)}")
            return None
        members = [members[kinds.index(value["kind"])]]
    nearest = max(members, key=lambda each: len(keys & set(getattr(each, "__dataclass_fields__", ()))))
    return _typed(value, nearest, name, problems)


def _dataclass(value, wanted, name: str, problems: list[str]):
    """Build a dataclass from a mapping that has every field and no other key; check its ranges."""
    if not isinstance(value, dict):
        problems.append(f"{name} is {value!r}, not a mapping")
        return None
    count, fields = len(problems), typing.get_type_hints(wanted, include_extras=True)
    for key in value:
        if key in fields:
            continue
        nearest = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.0)[0]
        problems.append(f"{name}.{key} is unknown; the nearest valid name is {name}.{nearest}")
    problems += [f"{name}.{key} is missing; give it a value" for key in fields if key not in value]
    typed = {k: _typed(value[k], kind, f"{name}.{k}", problems) for k, kind in fields.items() if k in value}
    if len(problems) > count:
        return None
    try:
        return wanted(**typed)
    except ValueError as error:
        problems += [f"{name}.{line}" for line in str(error).splitlines()]


def require(ok: object, name: str, actual, requirement: str) -> None:
    """Raise ValueError("name is actual, needed: requirement") unless `ok`; for a section's `__post_init__`."""
    if not ok:
        raise ValueError(f"{name} is {actual}, needed: {requirement}")

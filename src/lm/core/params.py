"""params.yaml → one frozen dataclass per section: typed, complete, nothing unknown.

The file is read with YAML 1.2's scalars, as DVC reads it, so that `1e-05` is a number in both.
A section's dataclass states the type of every key (int, float, str, bool, `X | None`,
`tuple[X, ...]`, `dict[str, X]`, a nested dataclass) and checks its ranges in `__post_init__`,
raising ValueError with "name is …, needed: …".
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from pathlib import Path

import yaml

from lm.core.errors import ParamsError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2 and without duplicate keys."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        if repeated:
            raise ParamsError(f"{node.start_mark.name}: {repeated[0]} stands twice; keep one of them")
        return super().construct_mapping(node, deep)


_SCALARS = {
    "null": (r"~|null|Null|NULL|", [*"~nN", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
# PyYAML's own constructor reads 010 as an octal number; YAML 1.2 and DVC do not.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_yaml(path: Path | str) -> dict:
    """Read a YAML mapping; ParamsError names the file and the line of what is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            value = yaml.load(file, _Loader)
    except FileNotFoundError:
        raise ParamsError(f"{path}: missing; run the command at the repository's root") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ParamsError(f"{path}: holds no mapping at its top level")
    return value


def read_section(path: Path | str, name: str, section_type):
    """Return the section `name` (dots descend: "sources.stories.fetch") as `section_type`."""
    value = read_yaml(path)
    walked = []
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(value) if isinstance(value, dict) else "no keys"
            raise ParamsError(f"{path}: {'.'.join([*walked, key])} is missing; there are: {known}")
        walked.append(key)
        value = value[key]
    return coerce(value, section_type, name, str(path))


def coerce(value, wanted, name: str, where: str):
    """Return `value` as the type `wanted`, or raise ParamsError naming `where` and `name`."""
    if dataclasses.is_dataclass(wanted):
        return _dataclass(value, wanted, name, where)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return coerce(value, next(a for a in arguments if a is not type(None)), name, where)
    if origin is typing.Literal:
        if value in arguments and isinstance(value, str):
            return value
        raise ParamsError(f"{where}: {name} is {value!r}; it must be one of {', '.join(map(str, arguments))}")
    if origin is tuple and isinstance(value, list):
        return tuple(coerce(item, arguments[0], f"{name}[{i}]", where) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: coerce(item, arguments[1], f"{name}.{key}", where) for key, item in value.items()}
    if wanted is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if wanted in (int, str, bool) and type(value) is wanted:
        return value
    kinds = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}
    raise ParamsError(f"{where}: {name} is {value!r}, not {kinds.get(wanted, 'a list or mapping as needed')}")


def needed(ok: bool, name: str, found, requirement: str) -> None:
    """Raise the ValueError that a section's `__post_init__` owes for a value out of range."""
    if not ok:
        raise ValueError(f"{name} is {found}, needed: {requirement}")


def _dataclass(value, wanted, name: str, where: str):
    """Build a dataclass from a mapping; every field present, no other key, ranges checked."""
    if not isinstance(value, dict):
        raise ParamsError(f"{where}: {name} is {value!r}, not a mapping")
    fields = typing.get_type_hints(wanted)
    for key in value:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.0)
            raise ParamsError(f"{where}: {name}.{key} is unknown; the nearest valid name is {name}.{near[0]}")
    missing = [key for key in fields if key not in value]
    if missing:
        raise ParamsError(f"{where}: {name}.{missing[0]} is missing; give it a value")
    typed = {key: coerce(value[key], kind, f"{name}.{key}", where) for key, kind in fields.items()}
    try:
        return wanted(**typed)
    except ValueError as error:
        raise ParamsError(f"{where}: {name}.{error}") from None

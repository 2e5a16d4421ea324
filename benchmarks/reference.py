"""Describe every parameter and every command: the tables of docs/reference.md, which pages.py writes.

Types and ranges come from the typed sections, and meanings from the comments beside the values in the YAML
files. A parameter without a comment and an argument without a help text are rejected.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import re
import runpy
import sys
import typing
from collections.abc import Iterator
from unittest import mock

from harness import ROOT
from lm.core.numerics import DeviceChoice
from lm.core.params import read_yaml
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.text.rules import Selection
from lm.text.slices import MixedSlice
from lm.text.sources.kinds import AnyFetch
from lm.text.sources.local import LocalPath
from lm.tokenizer.config import TokenizerParams, TokenizeRuntime
from lm.train.config import TrainParams, TrainRuntime

WORDS = {int: "integer", float: "number", str: "string", bool: "true or false"}
SOURCE = {"fetch": AnyFetch, "train": MixedSlice, "prompts": tuple[str, ...]}  # validation is like train
FILES: dict[str, dict[str, typing.Any]] = {  # name → type; NAME is that of a preset
    "params.yaml": {
        "data": {"source": str}, "selection": {"name": str}, "tokenizer": {"name": str, "path": str},
        "model": {"name": str}, "local": LocalPath, "train": TrainParams, "eval": EvalParams,
    },
    "presets.yaml": {
        "selections": {"NAME": Selection}, "tokenizers": {"NAME": TokenizerParams},
        "models": {"NAME": ModelParams},
    },
    "sources.yaml": {"sources": {"NAME": SOURCE}},
    "runtime.yaml": {"device": DeviceChoice, "tokenize": TokenizeRuntime, "train": TrainRuntime},
}  # fmt: skip


def parameters(file: str) -> list[tuple[str, str, str, str]]:
    """Return for each parameter of a file its name, its type, its value or that of each preset, and its meaning."""
    # Gather the places that have a parameter, such as the presets.
    comments = comments_of(file)
    places: dict[str, list[Place]] = {}
    for place in leaves(read_yaml(ROOT / file), FILES[file]):
        places.setdefault(place.name, []).append(place)

    rows = []
    for name, own in places.items():
        meanings = [comments[place.path] for place in own if place.path in comments]
        if not meanings:
            sys.exit(f"error: {file}: {name}: without a comment; write one that says what it means")
        kinds = list(dict.fromkeys(place.kind for place in own if place.kind))
        heading = f"`{name}` ({', '.join(kinds)})" if kinds else f"`{name}`"
        values = [show(place.value) for place in own]
        # Of models the value of each; of sources each value once, because too many have the same.
        if not name.startswith("models") or len(set(values)) == 1:
            values = list(dict.fromkeys(values))
        rows.append((heading, in_words(own[0].type), " / ".join(values), meanings[0]))
    return rows


def comments_of(file: str) -> dict[str, str]:
    """Return the comment beside each key of a YAML file, by the key's path."""
    walked = []
    comments = {}
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"((?:  )*)([\w-]+):(?:.*?\s# (.*))?", line):
            walked[len(match[1]) // 2 :] = [match[2]]
            if match[3]:
                comments[".".join(walked)] = match[3]
    return comments


class Place(typing.NamedTuple):
    """One value of a parameter, with its place in the file."""

    name: str  # dotted, with NAME in place of the name of a preset
    path: str  # dotted keys, as in the file
    kind: str  # the section's `kind`, "" if it has none
    type: typing.Any
    value: typing.Any


def leaves(value, wanted, name="", path="", kind="") -> Iterator[Place]:
    """Yield each parameter below `value`, which is of the type `wanted`."""
    sections = [each for each in (wanted, *typing.get_args(wanted)) if dataclasses.is_dataclass(each)]
    is_section = isinstance(value, dict) and (sections or isinstance(wanted, dict))
    if not is_section or type(None) in typing.get_args(wanted):
        yield Place(name, path, kind, wanted, value)
    if not is_section:
        return
    if isinstance(wanted, dict):
        types = wanted
    else:
        kind = value.get("kind", kind)
        types = fields_of(sections, kind)
    for key, below in value.items():
        own = key if key in types else "NAME"
        if own in types and key != "kind":
            yield from leaves(below, types[own], f"{name}.{own}".strip("."), f"{path}.{key}".strip("."), kind)


def fields_of(sections: list[type], kind: str) -> dict[str, typing.Any]:
    """Return the fields, name → type, of the first section of this kind; a section without kinds counts as any."""
    for section in sections:
        fields = typing.get_type_hints(section, include_extras=True)
        if "kind" not in fields or kind in typing.get_args(fields["kind"]):
            return fields
    raise ValueError(f"no section is of the kind {kind}: {sections}")


def in_words(wanted) -> str:
    """Return a type and its range: `integer, at least 1`."""
    origin = typing.get_origin(wanted)
    members = typing.get_args(wanted)
    if origin is typing.Annotated:
        words = in_words(members[0])
        requirement = members[1].requirement
        if "null" in requirement:
            words = words.removesuffix(" or null")
        return f"{words}, {requirement}"
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in members)
    if type(None) in members:
        return f"{in_words(members[0])} or null"
    if origin is tuple:
        kind, *ranges = in_words(members[0]).split(", ")
        return ", each ".join([f"list of {kind}s", *ranges])
    return WORDS.get(wanted, "mapping")


def show(value) -> str:
    """Return a value as YAML writes it, with at most 20 characters; a list or a mapping with content is not shown."""
    if value and isinstance(value, list | dict):
        return "…"
    text = json.dumps(value, ensure_ascii=False).strip('"')
    if len(text) > 20:
        text = text[:12] + "…"
    return f"`{text}`"


class Command(typing.NamedTuple):
    """A command: its name, and the first line of its docstring."""

    name: str
    does: str


def commands() -> dict[str, list[Command]]:
    """Return goal → its commands, as src/__main__.py groups them."""
    sys.path.append(str(ROOT))  # for `import extras.…`
    by_goal = runpy.run_path(str(ROOT / "src" / "__main__.py"))["TOOLS_BY_GOAL"]
    return {goal: [describe(name, module) for name, module in tools.items()] for goal, tools in by_goal.items()}


def describe(name: str, module: str) -> Command:
    """Return the command that the `main` of a module is."""
    reject_unexplained(parser_of(module))
    return Command(name, sys.modules[module].__doc__.partition("\n")[0])


def parser_of(module: str) -> argparse.ArgumentParser:
    """Return the parser that the `main` of a module builds."""
    main = importlib.import_module(module).main
    parsers = []

    def stop(parser, *_):
        parsers.append(parser)
        raise SystemExit

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop), contextlib.suppress(SystemExit):
        main([])
    return parsers[0]


def reject_unexplained(parser: argparse.ArgumentParser) -> None:
    """Exit with a message if an argument of a command, or of one of its subcommands, lacks a help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                reject_unexplained(subparser)
        elif not action.help:
            sys.exit(f"error: {parser.prog}: {action.dest} has no help text")

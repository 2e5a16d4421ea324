"""Parameters by dotted name: their differences, the presets that are selected, and an editor that keeps comments."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

SELECTORS = {
    "data.source": "sources",
    "selection.name": "selections",
    "tokenizer.name": "tokenizers",
    "model.name": "models",
}
MISSING = "(none)"


def flatten(section: dict, prefix: str = "") -> dict[str, object]:
    """Return the leaves of nested mappings by dotted name: {"a": {"b": 1}} → {"a.b": 1}."""
    leaves = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            leaves |= flatten(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


class Difference(NamedTuple):
    """A name with its committed value and its value now; MISSING where one of them lacks it."""

    name: str
    committed: Any
    now: Any


def differences(committed: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the names whose values differ, in the order of `committed`, then of `now`."""
    names = dict.fromkeys([*committed, *now])
    found = (Difference(name, committed.get(name, MISSING), now.get(name, MISSING)) for name in names)
    return [each for each in found if each.committed != each.now]


def selected_presets(params: dict, presets: dict) -> dict[str, dict]:
    """Return the chosen entry of each section of presets.yaml and sources.yaml: {"models.tiny": {…}, …}."""
    chosen = {book: flatten(params)[selector] for selector, book in SELECTORS.items()}
    return {f"{book}.{name}": presets[book][name] for book, name in chosen.items()}


def preset_names_left_out(params: dict) -> dict:
    """Rename models.tiny.n_layer to models.*.n_layer, so that two presets are compared field by field."""
    renamed = {}
    for name, value in params.items():
        for selector, book in SELECTORS.items():
            chosen = f"{book}.{params.get(selector)}."
            if name.startswith(chosen):
                name = f"{book}.*.{name.removeprefix(chosen)}"
        renamed[name] = value
    return renamed


class NullRepresenter(RoundTripRepresenter):
    """Write null as `null`; ruamel.yaml would leave the value empty."""


NullRepresenter.add_representer(
    type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def comment_keeping_yaml() -> YAML:
    """Return the reader and writer that keeps comments, quotes and the order of keys."""
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = 1 << 20  # never break a line
    editor.Representer = NullRepresenter
    return editor

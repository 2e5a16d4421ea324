"""The keys and types of JSON documents, as docs/json.md gives them and as a document has them."""

import json
import re

from support import ROOT

ROW = re.compile(r"^\| `([\w.\[\]]+)` \| ([\w ]+) \|", re.M)
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", dict: "object"}


def documented(schema: str) -> dict[str, set[str]]:
    """Return key → types of the table below the heading of a schema."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {schema}\n")[1].split("\n## ")[0]
    return {key: set(types.split(" or ")) for key, types in ROW.findall(section)}


def read_document(text: str) -> dict:
    """Read standard output as one JSON document with finite numbers."""

    def reject(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=reject)


def check_document(document: dict) -> set[str]:
    """Check that a document has exactly the documented keys, with their types; return the keys that it has."""
    found: set[str] = set()
    _check_object(document, "", documented(document["schema"]), found)
    return found


def _check_object(value: dict, prefix: str, keys: dict[str, set[str]], found: set[str]) -> None:
    """Check the members of an object whose keys begin with a prefix, and add their keys to `found`."""
    names = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
    assert value.keys() == {name for name in names if name.isidentifier()}, prefix

    for name, member in value.items():
        key = prefix + name
        types = keys[key]
        found.add(key)
        if types == {"any"}:
            continue
        if types == {"list of strings"}:
            assert all(isinstance(each, str) for each in member), (key, member)
        elif types == {"list"}:
            for each in member:
                _check_object(each, f"{key}[].", keys, found)
        else:
            is_number = isinstance(member, int) and "number" in types
            assert TYPES[type(member)] in types or is_number, (key, member, types)
            if isinstance(member, dict):
                _check_object(member, f"{key}.", keys, found)

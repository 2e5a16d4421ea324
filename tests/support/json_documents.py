"""The keys and types of JSON documents, as docs/json.md gives them and as a document has them."""

import json
import re

from support import ROOT

# A row of a table: one or several keys, types, meaning.
ROW = re.compile(r"^\| (`[\w.\[\]`, ]+`) \| ([\w ]+) \|", re.M)
TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
}


def section_of(heading: str) -> str:
    """Return the section of docs/json.md with this heading."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def documented_of_tables(schema: str, is_of_scores: bool = False) -> dict[str, set[str]]:
    """Return key → types of a document about tables of losses, or of scores."""
    (row,) = re.findall(rf"^\| `{schema}` \| (.*) \|$", section_of("Of tables"), re.M)
    left_out = re.findall(r"`([^`]+)`", row)
    if is_of_scores:
        left_out.append("documents.utf8_bytes")
    of_tables = {}
    for key, types in documented(schema).items():
        is_left_out = any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in left_out)
        if not is_left_out:
            of_tables[key.replace("bits_per_byte", "score") if is_of_scores else key] = types
    return of_tables


def documented(schema: str) -> dict[str, set[str]]:
    """Return key → types of the table below the heading of a schema."""
    types_of = {}
    for keys, types in ROW.findall(section_of(schema)):
        for key in re.findall(r"[\w.\[\]]+", keys):
            types_of[key] = set(types.split(" or "))

    # The keys of each interval.
    for key, types in list(types_of.items()):
        if types == {"interval"}:
            types_of[key], prefix = {"object"}, key
        elif types == {"list of intervals"}:
            types_of[key], prefix = {"list"}, f"{key}[]"
        else:
            continue
        types_of |= {f"{prefix}.{name}": types for name, types in documented("interval").items()}
    return types_of


def read_document(text: str) -> dict:
    """Read standard output as one JSON document with finite numbers."""

    def reject(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=reject)


def check_document(document: dict, types_of: dict[str, set[str]] | None = None) -> set[str]:
    """Check that a document has exactly the documented keys, with their types; return the keys that it has."""
    found: set[str] = set()
    _check_object(document, "", types_of or documented(document["schema"]), found)
    return found


def _check_object(value: dict, prefix: str, types_of: dict[str, set[str]], found: set[str]) -> None:
    """Check the members of an object whose keys begin with a prefix, and add their keys to `found`."""
    below = [key.removeprefix(prefix) for key in types_of if key.startswith(prefix)]
    members = {name for name in below if name.isidentifier()}
    assert value.keys() == members, prefix

    for name, member in value.items():
        key = prefix + name
        found.add(key)
        _check_member(member, key, types_of, found)


def _check_member(member, key: str, types_of: dict[str, set[str]], found: set[str]) -> None:
    """Check the value of a key, and what is in it."""
    types = types_of[key]
    if types == {"any"}:
        return
    (first, *_) = types
    if first.startswith("list of "):
        (type_of_each,) = [type_ for type_, name in TYPES.items() if f"list of {name}s" == first]
        assert all(isinstance(each, type_of_each) for each in member), (key, member)
        return
    if types == {"list"}:
        for each in member:
            _check_object(each, f"{key}[].", types_of, found)
        return

    is_whole_number = isinstance(member, int) and "number" in types
    assert TYPES[type(member)] in types or is_whole_number, (key, member, types)
    if isinstance(member, dict):
        _check_object(member, f"{key}.", types_of, found)

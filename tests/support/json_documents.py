"""The keys and types of JSON documents, as a schema gives them, and as a document has them."""

import json

from support import ROOT

TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
}


def documented_of_tables(schema: str, is_of_scores: bool = False) -> dict[str, set[str]]:
    """Return key → types of a document about tables of losses, or of scores: the keys that its schema requires."""
    types_of = _keys_of(*_read_schema(schema), only_required=True)
    if is_of_scores:
        del types_of["documents.utf8_bytes"]
        types_of = {key.replace("bits_per_byte", "score"): types for key, types in types_of.items()}
    return types_of


def documented(schema: str) -> dict[str, set[str]]:
    """Return key → types of all keys of a schema, such as `groups[].name`."""
    return _keys_of(*_read_schema(schema))


def _read_schema(schema: str) -> tuple[dict, dict]:
    """Return the JSON Schema of a document, such as reprolm.compare/2, and its definitions."""
    name = schema.removeprefix("reprolm.").replace("/", "-")
    content = json.loads((ROOT / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    assert content["properties"]["schema"] == {"const": schema}
    return content, content.get("$defs", {})


def _keys_of(node: dict, definitions: dict, prefix: str = "", only_required: bool = False) -> dict[str, set[str]]:
    """Return key → types of the members of an object, and of those below them."""
    types_of = {}
    if "$ref" in node:
        definition = definitions[node["$ref"].removeprefix("#/$defs/")]
        types_of |= _keys_of(definition, definitions, prefix, only_required)
    for name, member in node.get("properties", {}).items():
        if only_required and name not in node["required"]:
            continue
        key = prefix + name
        types_of[key] = _types_of(member)
        types_of |= _keys_of(member, definitions, f"{key}.", only_required)
        types_of |= _keys_of(member.get("items", {}), definitions, f"{key}[].", only_required)
    return types_of


def _types_of(member: dict) -> set[str]:
    """Return the types of a member; `list` of objects, `list of strings` and so on, `any` if it may be anything."""
    if "$ref" in member:
        return {"object"}
    if "const" in member:
        return {"string"}
    if member.get("type") == "array":
        type_of_each = member["items"].get("type", "object")
        return {"list" if type_of_each == "object" else f"list of {type_of_each}s"}
    types = member.get("type", "string" if "enum" in member else "any")
    return {types} if isinstance(types, str) else set(types)


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

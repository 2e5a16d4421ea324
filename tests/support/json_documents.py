"""JSON documents against their schemas, in `schemas`."""

import json

from support import ROOT

TYPES = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "object": dict,
    "array": list,
}


def read_schema(name: str) -> dict:
    """Return the JSON Schema of documents such as reprolm.compare/2."""
    file = name.removeprefix("reprolm.").replace("/", "-")
    return json.loads((ROOT / "schemas" / f"{file}.json").read_text())


def check_document(document: dict, only_required: bool = False) -> None:
    """Check that a document has all keys of its schema, or all required ones, and no other; and their types."""
    schema = read_schema(document["schema"])
    check_value(document, schema, schema.get("$defs", {}), only_required)


def check_value(value, schema: dict, definitions: dict, only_required: bool) -> None:
    """Check a value of a document, and what is in it."""
    base = definitions.get(schema.get("$ref", "").removeprefix("#/$defs/"), {})
    types = schema.get("type", [*TYPES])
    names = [types] if isinstance(types, str) else types
    assert isinstance(value, tuple(TYPES[name] for name in names)), (value, schema)
    assert value in schema.get("enum", [value]), (value, schema)

    members = base.get("properties", {}) | schema.get("properties", {})
    if isinstance(value, dict) and members:
        required = {*base.get("required", []), *schema.get("required", [])}
        assert value.keys() == (required if only_required else members.keys()), schema
        for name, member in value.items():
            check_value(member, members[name], definitions, only_required)
    if isinstance(value, list):
        for each in value:
            check_value(each, schema.get("items", {}), definitions, only_required)

"""JSON on standard output, for programs. docs/json.md describes the documents, and a test compares them with it."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np


def print_json(schema: str, content: Mapping[str, object]) -> None:
    """Print one JSON document that begins with the name of its schema."""
    document = plain({"schema": schema, **content})
    print(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def plain(value):
    """Return a value made of JSON's types; a number that is not finite becomes None, any other object its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)

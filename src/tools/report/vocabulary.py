"""Tables of the data card on how the vocabulary fits the text."""


def vocabulary_tables(found: dict) -> dict[str, list[tuple]]:
    """Return the rows of both tables, given the entry `tokenizer` of data/audit/details.json; {} if there is none.

    `groups`: tokens and bytes per token by script, then by part of the validation text. `facts`: name and value.
    """
    if not found:
        return {}
    groups = [*found["scripts"].items(), *found.get("validation_parts", {}).items()]
    longest = ", ".join(repr(each["text"]) for each in found["longest"])
    unused = f"{found['unused_entries']:,} ({found['unused_fraction']:.1%})"
    return {
        "groups": [(name.replace("_", " "), group["tokens"], group["bytes_per_token"]) for name, group in groups],
        "facts": [
            ("entries that the training text does not use", unused),
            ("tokens of one byte", f"{found['single_byte_fraction']:.1%}"),
            ("longest tokens", longest),
        ],
    }

"""Tables of the report about the text: how the vocabulary fits it, and which documents were dropped."""


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


def dropped_rows(documents: dict) -> list[tuple]:
    """Return part, split, rule, documents, fraction of the documents and characters of each rule, from the details."""
    return [
        (part, split, rule, dropped["documents"], dropped["documents"] / found["documents"], dropped["characters"])
        for part, splits in documents.items()
        for split, found in splits.items()
        for rule, dropped in found["dropped"].items()
    ]


def describe_example(example: dict) -> list[tuple[str, str]]:
    """Return (title, beginning) of a dropped document, then of the document that it repeats if it is a duplicate."""
    value = f", {example['value']:,.4g}" if "value" in example else ""
    documents = [(value, example)]
    if "repeats" in example:
        documents.append((", which it repeats", example["repeats"]))
    place = "{part}, {split}, document {document:,}: {characters:,} characters"
    return [(place.format(**each) + fact, each["text"]) for fact, each in documents]

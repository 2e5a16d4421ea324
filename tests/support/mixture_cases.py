"""A data/raw that holds a source or a mixture, as fetch leaves it."""

from pathlib import Path

from lm.core.files import write_json
from lm.text.documents import describe_in_mixture, read_manifest
from lm.text.parquet import describe_split, write_documents

WHOLE = {"start_char": 0, "num_chars": None}


def write_source(raw: Path, source: str = "s", per_file: int = 1000, **splits: list[str | None]) -> dict:
    """Write the documents of each split, `per_file` in each file, as a plain source; return its manifest."""
    for split, texts in splits.items():
        for number, start in enumerate(range(0, len(texts), per_file)):
            write_documents(raw / split / f"{number:04d}.parquet", texts[start : start + per_file])
    described = {split: describe_split(raw, split, "text") for split in splits}
    manifest = {"format_version": 1, "source": source, "kind": "local", "column": "text", "splits": described}
    write_json(raw / "manifest.json", manifest)
    return manifest


def write_mixture(raw: Path, sources: dict[str, dict[str, list[str]]], per_file: int = 1000, **slices) -> dict:
    """Write the documents of each source's splits, `per_file` in each file; return the manifest of the mixture.

    `slices` has {split: slice} of the sources whose slices are not the whole splits.
    """
    manifests = {}
    for name, splits in sources.items():
        manifest = write_source(raw / name, name, per_file, **splits)
        (raw / name / "manifest.json").unlink()
        whole = {split: {"split": split, **WHOLE} for split in ("train", "validation")}
        manifests[name] = describe_in_mixture(manifest, name) | whole | slices.get(name, {})
    write_json(raw / "manifest.json", {"format_version": 1, "source": "mix", "kind": "mixture", "sources": manifests})
    return read_manifest(raw)


def mixed(weights: dict[str, float], start_char: int = 0, num_chars: int | None = None) -> dict:
    """Return the training slice of a mixture as presets.yaml has it."""
    return {"split": "train", "start_char": start_char, "num_chars": num_chars, "weights": weights}

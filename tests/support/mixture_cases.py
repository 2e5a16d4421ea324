"""A data/raw that holds a source or a mixture, as fetch leaves it."""

import tempfile
from pathlib import Path

from fetch import ChosenSource, parts_of_mixture
from lm.core.params import read_section
from lm.text.compose import compose
from lm.text.config import Selection
from lm.text.parquet import describe_split, write_documents
from lm.text.parts import Part
from lm.text.slices import Slice
from support import ROOT

WHOLE = {"start_char": 0, "num_chars": None}
NO_RULES = read_section(ROOT / "presets.yaml", "selections.none", Selection)


def write_fetched(folder: Path, source: str = "s", per_file: int = 1000, **splits: list[str | None]) -> dict:
    """Write the documents of each split, `per_file` in each file, as a source is fetched; return the manifest."""
    described = {}
    for split, texts in splits.items():
        for number, start in enumerate(range(0, len(texts), per_file)):
            path = folder / split / f"{number:04d}.parquet"
            write_documents(path, texts[start : start + per_file])
        described[split] = describe_split(folder, split, "text")
    return {
        "format_version": 1,
        "source": source,
        "kind": "local",
        "column": "text",
        "splits": described,
    }


def write_source(raw: Path, source: str = "s", per_file: int = 1000, **splits: list[str | None]) -> dict:
    """Write the documents of each split as data/raw of a plain source; return its manifest."""
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fetched = write_fetched(folder, source, per_file, **splits)
        parts = [Part(source, split, folder, fetched, Slice(split, 0, None)) for split in splits]
        return compose(raw, source, parts, None, "none", NO_RULES)


def write_mixture(
    raw: Path,
    sources: dict[str, dict[str, list[str]]],
    weights: dict[str, float],
    per_file: int = 1000,
) -> dict:
    """Write data/raw of the mixture `mix` of sources, each with its splits; return its manifest."""
    raw.mkdir(parents=True, exist_ok=True)
    whole_splits = [Slice(split, **WHOLE) for split in ("train", "validation")]
    with tempfile.TemporaryDirectory() as temporary:
        fetched = {}
        for name, splits in sources.items():
            folder = Path(temporary, name)
            manifest = write_fetched(folder, name, per_file, **splits)
            fetched[name] = ChosenSource(None, *whole_splits), folder, manifest
        parts = parts_of_mixture(fetched, weights)
        return compose(raw, "mix", parts, weights, "none", NO_RULES)


def mixed(weights: dict[str, float], start_char: int = 0, num_chars: int | None = None) -> dict:
    """Return the training slice of a mixture as sources.yaml has it."""
    return {
        "split": "train",
        "start_char": start_char,
        "num_chars": num_chars,
        "weights": weights,
    }

"""A data/raw that holds a source or a mixture, as fetch leaves it."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from fetch import ChosenSource, parts_of_mixture, parts_of_source
from lm.core.params import read_section
from lm.text.compose import compose
from lm.text.config import Selection
from lm.text.parquet import describe_split, write_documents
from lm.text.slices import Slice
from support import ROOT

RAW = Path("data/raw")
WHOLE = {"start_char": 0, "num_chars": None}
WHOLE_SPLITS = {split: {"split": split, **WHOLE} for split in ("train", "validation")}
NO_RULES = read_section(ROOT / "presets.yaml", "selections.none", Selection)


def write_fetched(
    folder: Path, name: str, splits: dict, per_file: int, slices: dict
) -> tuple[ChosenSource, Path, dict]:
    """Write the documents of each split, `per_file` in each file, as a source is fetched.

    Return the source, the folder and the manifest, as fetch has them.
    """
    described = {}
    for split, texts in splits.items():
        for number, start in enumerate(range(0, len(texts), per_file)):
            path = folder / split / f"{number:04d}.parquet"
            write_documents(path, texts[start : start + per_file])
        described[split] = describe_split(folder, split, "text")
    manifest = {
        "format_version": 1,
        "source": name,
        "kind": "local",
        "column": "text",
        "splits": described,
    }
    of_split = WHOLE_SPLITS | slices
    return ChosenSource(None, Slice(**of_split["train"]), Slice(**of_split["validation"])), folder, manifest


def write_source(
    raw: Path, name: str = "s", per_file: int = 1000, rules: Selection = NO_RULES, **splits: list[str | None]
) -> dict:
    """Write the documents of each split as data/raw of a plain source; return its manifest."""
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        fetched = write_fetched(Path(temporary), name, splits, per_file, {})
        return compose(raw, name, parts_of_source(name, *fetched), None, "none", rules)


def write_mixture(
    raw: Path,
    sources: dict[str, dict[str, list[str]]],
    weights: dict[str, float],
    per_file: int = 1000,
    rules: Selection = NO_RULES,
    **slices: dict[str, dict],
) -> dict:
    """Write data/raw of the mixture `mix` of sources, each with its splits; return its manifest."""
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        fetched = {}
        for name, splits in sources.items():
            fetched[name] = write_fetched(Path(temporary, name), name, splits, per_file, slices.get(name, {}))
        return compose(raw, "mix", parts_of_mixture(fetched, weights), weights, "none", rules)


def texts_of(split: str) -> list[str]:
    """Return the documents of a split of data/raw."""
    return pq.read_table(RAW / f"{split}.parquet")["text"].to_pylist()


def mixed(weights: dict[str, float]) -> dict:
    """Return the training slice of a mixture as sources.yaml has it."""
    return {"split": "train", **WHOLE, "weights": weights}

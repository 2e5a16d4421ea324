"""data/selection as the stage select leaves it, without running the stage."""

from pathlib import Path

import numpy as np

from lm.text.selection import Marks, write_selection


def make_selection(folder: Path | str, raw: Path | str, marks: Marks | None = None) -> Path:
    """Write a selection of `raw` without its counts; with no marks it drops nothing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_selection(folder, Path(raw), marks, {"selection": "mine", "documents": {}, "examples": {}})
    return folder


def dropping(numbers: dict[tuple[str, str], list[int]]) -> Marks:
    """Return marks that drop these documents as too short."""
    source = np.repeat(np.arange(len(numbers), dtype=np.int32), [len(several) for several in numbers.values()])
    number = np.array([number for several in numbers.values() for number in several], np.int64)
    zeros = np.zeros(len(number), np.int64)
    digest, rule, is_validation = zeros.astype(np.uint64), zeros.astype(np.uint8), zeros.astype(bool)
    return Marks(list(numbers), source, is_validation, number, zeros, digest, rule, zeros - 1)

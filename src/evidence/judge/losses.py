"""The losses of one run: a CSV file with the columns document, nats and utf8_bytes."""

import csv
import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evidence.errors import WrongInput

COLUMNS = ("document", "nats", "utf8_bytes")


class Losses(NamedTuple):
    """The loss of each of D documents of a validation text."""

    documents: list[str]  # D names
    nats: np.ndarray  # (D,) float64
    utf8_bytes: np.ndarray  # (D,) int64

    @property
    def bits_per_byte(self) -> float:
        return float(self.nats.sum() / math.log(2) / self.utf8_bytes.sum())

    @property
    def text(self) -> str:
        """Return a short hash of the names and sizes of the documents."""
        rows = zip(self.documents, self.utf8_bytes, strict=True)
        content = "\n".join(f"{name}\t{size}" for name, size in rows)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_losses(path: Path) -> Losses:
    """Read the losses of a run, in the order of their documents. WrongInput if a row is not one of them."""
    if not path.exists():
        raise WrongInput(f"{path}: missing; the runner must write it")
    rows = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise WrongInput(f"{path}: no column {missing[0]}; it must have {', '.join(COLUMNS)}")
        for line, row in enumerate(reader, start=2):
            name = row["document"]
            if name in rows:
                raise WrongInput(f"{path}: line {line}: document {name} has a row already")
            rows[name] = numbers_of(row, f"{path}: line {line}")
    if not any(utf8_bytes for _, utf8_bytes in rows.values()):
        raise WrongInput(f"{path}: no row has any bytes")
    documents = sorted(rows)
    nats = np.array([rows[name][0] for name in documents])
    utf8_bytes = np.array([rows[name][1] for name in documents], np.int64)
    return Losses(documents, nats, utf8_bytes)


def numbers_of(row: dict[str, str], where: str) -> tuple[float, int]:
    """Return the nats and bytes of a row."""
    try:
        nats = float(row["nats"])
        utf8_bytes = int(row["utf8_bytes"])
    except (TypeError, ValueError):
        raise WrongInput(f"{where}: nats must be a number, and utf8_bytes a whole one") from None
    if not math.isfinite(nats) or nats < 0 or utf8_bytes < 0:
        raise WrongInput(f"{where}: nats is {row['nats']} and utf8_bytes {row['utf8_bytes']}; they must be at least 0")
    return nats, utf8_bytes

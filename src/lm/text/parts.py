"""Read slices of fetched sources, without the documents that the rules drop.

lm.text.sources has fetched each source into a separate folder.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from tqdm import tqdm

from lm.text.parquet import iter_batches
from lm.text.rows import Rows, keep_rows, measured, rows_within
from lm.text.selection import Batch
from lm.text.slices import Slice, check_slice


@dataclasses.dataclass(frozen=True)
class Part:
    """A slice of a fetched source, and the split of data/raw that its documents go to."""

    source: str
    output_split: str
    folder: Path
    fetched: dict  # the manifest of the folder
    slice: Slice  # of a split in the folder

    def rows(self) -> Iterator[Rows]:
        """Yield the documents with text of the slice, in order."""
        check_slice(self.fetched, self.slice)
        entries = self.fetched["splits"][self.slice.split]["files"]
        paths = [self.folder / entry["path"] for entry in entries]
        rows = (measured(batch) for path in paths for batch in iter_batches(path, [self.fetched["column"]]))
        yield from rows_within(rows, self.slice, f"sources.{self.source}")

    @property
    def documents(self) -> int:
        """Return the number of documents of the whole split, for a progress bar."""
        return self.fetched["splits"].get(self.slice.split, {}).get("documents", 0)


@dataclasses.dataclass(frozen=True)
class KeptRows:
    """The documents of a part that no rule drops; each iteration reads them."""

    part: Part
    is_kept: np.ndarray | None  # (n,) bool, None for all

    def __iter__(self) -> Iterator[Rows]:
        position = 0
        for batch, lengths in self.part.rows():
            if self.is_kept is None:
                yield batch, lengths
                continue
            own = self.is_kept[position : position + len(lengths)]
            position += len(lengths)
            if own.any():
                yield keep_rows((batch, lengths), own)

    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of the documents; reads them."""
        return sum(pc.sum(pc.binary_length(batch.column(0))).as_py() for batch, _ in self)


def read_parts(parts: list[Part], task: str) -> Iterator[Batch]:
    """Yield all documents, part by part; show the task's progress."""
    total = sum(part.documents for part in parts)
    with tqdm(total=total, desc=task, unit=" documents", unit_scale=True, disable=None, leave=False) as bar:
        for number, part in enumerate(parts):
            for batch, _ in part.rows():
                yield number, batch.column(0).to_pylist()
                bar.update(batch.num_rows)

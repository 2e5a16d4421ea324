"""Batches of documents with the number of characters of each; select those that begin in a range of characters."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.errors import NoDocument
from lm.text.slices import Slice, reject_excess

Rows = tuple[pa.RecordBatch, np.ndarray]  # documents with the text in column 0; characters of each, (n,) int64


def measured(batch: pa.RecordBatch) -> Rows:
    """Return a batch and the characters of each text, 0 for null."""
    texts = batch.column(0)
    content = batch.column(0).buffers()[2]
    is_ascii = content is None or np.frombuffer(content, np.int8).min(initial=0) >= 0
    lengths = (pc.binary_length if is_ascii else pc.utf8_length)(texts)  # the first is a hundred times faster
    lengths = lengths.fill_null(0) if lengths.null_count else lengths
    return batch, np.from_dlpack(lengths).astype(np.int64)  # to_numpy() would import pandas, which is slow


def keep_rows(rows: Rows, is_kept: np.ndarray) -> Rows:
    """Return the rows where `is_kept` (n,) bool holds."""
    batch, lengths = rows
    if is_kept.all():
        return rows
    return batch.filter(pa.array(is_kept)), lengths[is_kept]


def rows_within(rows: Iterable[Rows], text_slice: Slice, where: str) -> Iterator[Rows]:
    """Yield the rows with text that begin in `text_slice`. Raise NoDocument for none, DataError if too few exist."""
    position = 0
    is_empty = True
    for batch, lengths in rows:
        ends = position + np.cumsum(lengths)
        starts = ends - lengths
        is_kept = (starts >= text_slice.start_char) & (starts < text_slice.end_char) & (lengths > 0)
        if is_kept.any():
            is_empty = False
            yield keep_rows((batch, lengths), is_kept)
        position += int(lengths.sum())
        if position >= text_slice.end_char:
            break
    if is_empty:
        place = f"begins in characters {text_slice.start_char} to {text_slice.end_char}; widen the range"
        raise NoDocument(f"{where}: no document of split {text_slice.split!r} {place}")
    if position < text_slice.end_char:
        reject_excess(text_slice, position, where)

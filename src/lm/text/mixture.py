"""Interleave the documents of several sources into one stream that has the requested shares of bytes throughout.

A document's key is the number of bytes of its source up to the document's middle, divided by the weight of the source.
The stream is sorted by key and ends where the keys reach the bytes of all sources. So a source has at most half a
document too much or too little. A source that is too short for its weight is repeated as a whole. The order depends
only on the documents and the weights, not on the batches in which the documents are read. Memory holds a few batches of
each source.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.text.rows import Rows

MAX_MISS = 0.02  # difference between a source's fraction and its weight above which to warn
TEXT, SOURCE = "text", "source"  # columns of a mixed batch: the document, and the number of its source


class MixtureSource(NamedTuple):
    """A source of a mixture: each iteration over `rows` yields all its documents, `num_bytes` UTF-8 bytes."""

    name: str
    rows: Iterable[Rows]
    num_bytes: int


class KeyedDocuments(NamedTuple):
    """Consecutive documents of one source: texts, characters (n,) int64 and keys (n,) float64, which rise."""

    texts: pa.Array
    lengths: np.ndarray
    keys: np.ndarray

    def cut(self, begin: int, end: int) -> "KeyedDocuments":
        return KeyedDocuments(self.texts[begin:end], self.lengths[begin:end], self.keys[begin:end])


def interleave(sources: list[MixtureSource], weights: list[float]) -> Iterator[Rows]:
    """Yield batches (text, number of the source) of the mixed stream; each weight is above 0."""
    total_bytes = sum(source.num_bytes for source in sources)
    streams = []
    for source, weight in zip(sources, weights, strict=True):
        streams.append(_keyed(source, weight / sum(weights), total_bytes))

    # Merge the streams without a heap, in whole batches.
    waiting = [next(stream, None) for stream in streams]
    while any(waiting):
        # Keys rise within a source, so no later document can precede those up to the smallest last key.
        limit = min(documents.keys[-1] for documents in waiting if documents)
        ready = []
        for number, documents in enumerate(waiting):
            if documents is None:
                continue
            count = int(np.searchsorted(documents.keys, limit, "right"))
            ready.append((number, documents.cut(0, count)))
            rest = documents.cut(count, len(documents.keys))
            waiting[number] = rest if len(rest.keys) else next(streams[number], None)
        yield _in_order(ready)


def missed_weights(manifest: dict) -> list[str]:
    """Return a warning for each source of a mixture whose fraction of the training bytes differs from its weight."""
    warnings = []
    for name, source in manifest["splits"].get("train", {}).get("sources", {}).items():
        fraction = source["fraction"]
        weight = source["weight"]
        if abs(fraction - weight) > MAX_MISS or not source["documents"]:
            found = f"{name} gives {fraction:.1%} of the bytes of train; its weight asks for {weight:.1%}"
            warnings.append(f"{found}; cut its documents into shorter ones, or change the weights")
    return warnings


def tag_rows(rows: Iterable[Rows], number: int) -> Iterator[Rows]:
    """Yield the batches of one source as `interleave` does: the text and the number of the source."""
    for batch, lengths in rows:
        texts = batch.column(0).cast(pa.large_string())
        yield _batch(texts, np.full(len(texts), number, np.int32)), lengths


def _batch(texts: pa.Array, numbers: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([texts, pa.array(numbers)], [TEXT, SOURCE])


def _in_order(ready: list[tuple[int, KeyedDocuments]]) -> Rows:
    """Return the documents of several sources as one batch, sorted by key; equal keys in the order of the sources."""
    texts = pa.concat_arrays([documents.texts for _, documents in ready])
    lengths = np.concatenate([documents.lengths for _, documents in ready])
    keys = np.concatenate([documents.keys for _, documents in ready])
    numbers = np.concatenate([np.full(len(documents.keys), number, np.int32) for number, documents in ready])
    order = np.argsort(keys, kind="stable")
    return _batch(texts.take(pa.array(order)), numbers[order]), lengths[order]


def _keyed(source: MixtureSource, fraction: float, total_bytes: int) -> Iterator[KeyedDocuments]:
    """Yield the source's documents, epoch after epoch, as long as their keys are below `total_bytes`.

    fraction: the part of the stream's bytes that the source gives.
    """
    position = 0  # bytes of the source so far
    while position / fraction < total_bytes:
        for batch, lengths in source.rows:
            texts = batch.column(0).cast(pa.large_string())
            sizes = np.from_dlpack(pc.binary_length(texts)).astype(np.int64)
            ends = position + np.cumsum(sizes)
            keys = (ends - sizes / 2) / fraction  # bytes of the whole stream at which this source's turn has come
            documents = KeyedDocuments(texts, lengths, keys)
            count = int(np.searchsorted(keys, total_bytes))
            if count:
                yield documents.cut(0, count)
            if count < len(keys):
                return
            position = int(ends[-1])

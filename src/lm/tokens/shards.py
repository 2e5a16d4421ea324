"""Ids in several files, read as the one stream that they are: X.bin is a folder where X.json lists `shards`.

Whatever is taken out of `ShardedIds` is an ordinary array, so that most code need not know; what would
have to hold the whole stream in memory is taken block by block.
"""

import mmap
import operator
from collections.abc import Sequence

import numpy as np
import psutil


class ShardedIds:
    """(N,) read-only ids that lie in several arrays, one after the other.

    A slice inside one array is a view of it, one across a border a copy; `np.asarray(ids)` is a copy of all.
    """

    def __init__(self, shards: Sequence[np.ndarray]):
        """shards: 1-D arrays or memmaps of one dtype, at least one."""
        self.shards, self.dtype = list(shards), shards[0].dtype
        assert all(shard.dtype == self.dtype for shard in self.shards), "shards of different dtypes"
        lengths = np.array([len(shard) for shard in self.shards], np.int64)
        self._ends = np.cumsum(lengths)
        self._begins = self._ends - lengths

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index):
        """The id at a position, the ids (n,) of a slice without a step, or those at positions (n,) int from 0 on.

        Raises IndexError for a position outside the stream.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"a slice of shards has no step, found {step}")
            return self._between(start, stop)
        if np.ndim(index):
            return self._at(np.asarray(index))
        position = operator.index(index)
        return self._at(np.array([position + len(self) if position < 0 else position]))[0]

    def _between(self, start: int, stop: int) -> np.ndarray:
        """The ids start … stop - 1, both in 0 … N."""
        if stop <= start:
            return np.empty(0, self.dtype)
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right")
        begins = self._begins[first : last + 1].tolist()
        parts = [self.shards[first + i][max(start - begin, 0) : stop - begin] for i, begin in enumerate(begins)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _at(self, positions: np.ndarray) -> np.ndarray:
        """The ids (n,) at positions (n,)."""
        if positions.dtype.kind not in "iu":
            raise IndexError(f"positions are {positions.dtype}, needed: integers")
        if positions.size and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()}, needed: from 0 to {len(self) - 1}")
        shard_of, found = np.searchsorted(self._ends, positions, side="right"), np.empty(positions.shape, self.dtype)
        for number in np.unique(shard_of):
            here = shard_of == number
            found[here] = self.shards[number][positions[here] - self._begins[number]]
        return found

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False:
            raise ValueError("shards are one array only as a copy")
        return np.concatenate(self.shards, dtype=dtype)

    def __eq__(self, other) -> np.ndarray:
        """(N,) bool, as of an array: Python's own answer would be one False, without a word."""
        return np.concatenate([shard == other for shard in self.shards])

    __hash__ = None


def mapped_for_windows(ids: np.ndarray | ShardedIds) -> np.ndarray | ShardedIds:
    """The same ids; files of more than half of this machine's memory in mappings that are not read ahead.

    Else the kernel reads on behind each page that is not in memory, hundreds of kilobytes for a window of two.
    That serves a scan, and a file that stays in memory once it is there, whose pages it then also maps by the
    dozen; for a larger file it is most of the time of a batch.
    """
    if len(ids) * ids.dtype.itemsize <= psutil.virtual_memory().total // 2:
        return ids
    if isinstance(ids, ShardedIds):
        return ShardedIds([_not_read_ahead(shard) for shard in ids.shards])
    return _not_read_ahead(ids)


def _not_read_ahead(ids: np.ndarray) -> np.ndarray:
    """The ids of a memmap in a mapping of which the kernel reads no more than is asked for; others as they are."""
    if not (isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM")):
        return ids
    again = np.memmap(ids.filename, ids.dtype, "r", ids.offset, ids.shape)
    again.base.madvise(mmap.MADV_RANDOM)
    return again


class ShardedWindows:
    """Windows of `length` ids from any position on; indexed with `starts` (B,): (B, length), new."""

    def __init__(self, ids: ShardedIds, length: int):
        self.ids, self.length = ids, length

    def __getitem__(self, starts: np.ndarray) -> np.ndarray:
        """Raises IndexError for a window that is not all inside the stream."""
        if len(starts) and not 0 <= starts.min() <= starts.max() <= len(self.ids) - self.length:
            raise IndexError(f"windows of {self.length} from {starts.min()} to {starts.max()} in {len(self.ids)} ids")
        rows = np.empty((len(starts), self.length), self.ids.dtype)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = self.ids[start : start + self.length]
        return rows

"""Read ids in several files as one stream: X.bin is a folder if X.json lists `shards`.

Everything read from `ShardedIds` is an ordinary array, so most code does not notice.
"""

import mmap
import operator
from collections.abc import Sequence

import numpy as np
import psutil


class ShardedIds:
    """Read-only ids (N,) in several arrays, one after the other.

    A slice inside one array is a view of it, a slice across arrays a copy; `np.asarray(ids)` copies everything.
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
        """Return the id at a position, the ids (n,) of a slice without a step, or those at positions (n,) from 0 on."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"step is {step}, needed: 1, because shards are read in slices without a step")
            if stop <= start:
                return np.empty(0, self.dtype)
            first, last = np.searchsorted(self._ends, (start, stop - 1), side="right")
            begins = self._begins[first : last + 1].tolist()
            pieces = [self.shards[first + i][max(start - begin, 0) : stop - begin] for i, begin in enumerate(begins)]
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if np.ndim(index):
            return self._at(np.asarray(index))
        position = operator.index(index)
        return self._at(np.array([position + len(self) if position < 0 else position]))[0]

    def _at(self, positions: np.ndarray) -> np.ndarray:
        """Return the ids (n,) at positions (n,)."""
        if positions.dtype.kind not in "iu":
            raise IndexError(f"positions are {positions.dtype}, needed: integers")
        if positions.size and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()}, needed: from 0 to {len(self) - 1}")
        shard_of, ids = np.searchsorted(self._ends, positions, side="right"), np.empty(positions.shape, self.dtype)
        for number in np.unique(shard_of):
            in_shard = shard_of == number
            ids[in_shard] = self.shards[number][positions[in_shard] - self._begins[number]]
        return ids

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return `length` ids from each of `starts` (B,): (B, length). IndexError for one that is not all inside."""
        if len(starts) and not 0 <= starts.min() <= starts.max() <= len(self) - length:
            raise IndexError(f"windows of {length} from {starts.min()} to {starts.max()} in {len(self)} ids")
        rows = np.empty((len(starts), length), self.dtype)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = self[start : start + length]
        return rows

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False:
            raise ValueError("shards become one array only as a copy")
        return np.concatenate(self.shards, dtype=dtype)

    def __eq__(self, other) -> np.ndarray:
        """Return (N,) bool, as an array does; Python's default would silently return one False."""
        return np.concatenate([shard == other for shard in self.shards])


def mapped_for_windows(ids: np.ndarray | ShardedIds) -> np.ndarray | ShardedIds:
    """Return the same ids; files larger than half of the memory are mapped without read-ahead.

    Read-ahead helps a scan, and a file that stays in memory; for a larger file it would be most of a batch's time.
    """
    if len(ids) * ids.dtype.itemsize <= psutil.virtual_memory().total // 2:
        return ids
    if isinstance(ids, ShardedIds):
        return ShardedIds([_without_read_ahead(shard) for shard in ids.shards])
    return _without_read_ahead(ids)


def _without_read_ahead(ids: np.ndarray) -> np.ndarray:
    """Map a memmap again without read-ahead; return any other array unchanged."""
    if not (isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM")):
        return ids
    again = np.memmap(str(ids.filename), ids.dtype, "r", ids.offset, ids.shape)
    mapping = again.base
    assert isinstance(mapping, mmap.mmap)
    mapping.madvise(mmap.MADV_RANDOM)
    return again

"""Choose the windows of a token file for each step: a function of seed and step alone.

In epoch e the windows start at r_e + k·seq_len with r_e = hash(seed, e) mod seq_len, so that over the
epochs a window begins at every position. A stateless permutation orders them, so that each is used once
per epoch, for any number of workers, ranks, evaluations or resumes.
"""

import functools
import math
import mmap

import numpy as np
import psutil

from lm.core.errors import DataError

_GOLDEN = 0x9E3779B97F4A7C15
_FEISTEL_ROUNDS = 6
LARGEST_FRACTION = 0.03  # of the model-selection tokens that one document holds, up to a window at each end
_BLOCK_WINDOWS = 1 << 14  # window starts computed at once, because the permutation's last calls are for a few


def mix(value: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finalizer to each element, uint64 → uint64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def hash_integers(*numbers: int) -> int:
    """Return a 64-bit hash of integers, the same on every machine and with every NumPy."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mix(state + np.uint64(_GOLDEN) + np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return int(state[0])


def permute(index: np.ndarray, size: int, key: int, is_inverse: bool = False) -> np.ndarray:
    """Return the images, int64, of `index` under a keyed permutation of 0 … size - 1 that is never stored.

    The numbers are the cells of a table with about as many rows as columns. Each cell moves down by an amount that its
    column decides, then to the right by one that its row decides, and so on (generalized Feistel network: Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains"). The few cells past the range move again until inside.
    """
    num_rows = math.isqrt(size - 1) + 1
    num_columns = -(-size // num_rows)
    dtype = np.uint32 if size < 2**31 else np.uint64
    move = functools.partial(_move, num_rows=num_rows, num_columns=num_columns, key=key, is_inverse=is_inverse)
    value = move(index.astype(dtype))
    outside = np.flatnonzero(value >= size)
    while len(outside):
        value[outside] = moved = move(value[outside])
        outside = outside[moved >= size]
    return value.astype(np.int64)


def _move(cell: np.ndarray, num_rows: int, num_columns: int, key: int, is_inverse: bool) -> np.ndarray:
    """Return the cells (N,), unsigned integers, after all rounds; each is below num_rows · num_columns."""
    rows, columns = (cell.dtype.type(number) for number in (num_rows, num_columns))
    row = cell // columns
    column = cell - row * columns
    tables = _round_tables(num_rows, num_columns, key, cell.dtype)
    if is_inverse:  # the last move first, each back by the same distance
        back = [(columns - right, rows - down) for down, right in reversed(tables)]
        column, row = _rounds(column, row, columns, rows, back)
    else:
        row, column = _rounds(row, column, rows, columns, tables)
    return row * columns + column


def _rounds(row: np.ndarray, column: np.ndarray, rows, columns, tables) -> tuple[np.ndarray, np.ndarray]:
    for down, right in tables:
        row += down[column]
        row = np.minimum(row, row - rows)  # modulo rows: below 0 an unsigned number is large
        column += right[row]
        column = np.minimum(column, column - columns)
    return row, column


@functools.lru_cache(maxsize=2)  # the current epoch and the next
def _round_tables(num_rows: int, num_columns: int, key: int, dtype: np.dtype) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each double round how far a cell moves down, by its column, and to the right, by its row."""
    tables = []
    for round_number in range(_FEISTEL_ROUNDS // 2):
        down, right = (
            mix(np.arange(length, dtype=np.uint64) + np.uint64(hash_integers(key, 2 * round_number + i)))
            % np.uint64(modulus)
            for i, (length, modulus) in enumerate([(num_columns, num_rows), (num_rows, num_columns)])
        )
        tables.append((down.astype(dtype), right.astype(dtype)))
    return tables


class TokenWindows:
    """Batches of training windows from one stream of token ids."""

    def __init__(self, ids: np.ndarray, seq_len: int, batch_size: int, seed: int):
        """ids: (N,) integer array or memmap; batch_size in sequences. DataError if N < seq_len + 1."""
        if len(ids) < seq_len + 1:
            raise DataError(
                f"the training file has {len(ids)} tokens, one window of train.seq_len {seq_len} needs {seq_len + 1}"
            )
        self.ids, self.seq_len, self.batch_size, self.seed = mapped_for_windows(ids), seq_len, batch_size, seed
        self._view: np.ndarray | None = window_view(self.ids, seq_len + 1)
        self._epoch_begins = [0]  # number of the first window of each epoch, counted over all epochs
        self._block_steps = max(1, min(_BLOCK_WINDOWS, self.windows_per_epoch()) // batch_size)
        self._block, self._block_starts = -1, np.empty((0, batch_size), np.int64)

    def __getstate__(self) -> dict:
        return vars(self) | {"_view": None}  # pickled, the view would become a copy of every window

    def _offset(self, epoch: int) -> int:
        """Return r_e, the token at which the first window of an epoch starts."""
        return hash_integers(self.seed, epoch) % min(self.seq_len, len(self.ids) - self.seq_len)

    def windows_per_epoch(self, epoch: int = 0) -> int:
        """Return the number of windows between r_e and the end; the last may end on the last token."""
        return (len(self.ids) - 1 - self._offset(epoch)) // self.seq_len

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a window, given its number over all epochs: step · batch_size + row."""
        while self._epoch_begins[-1] <= number:
            epoch = len(self._epoch_begins) - 1
            self._epoch_begins.append(self._epoch_begins[-1] + self.windows_per_epoch(epoch))
        return int(np.searchsorted(self._epoch_begins, number, side="right")) - 1

    def readings(self, begin: int, end: int, num_steps: int) -> list[tuple[int, list[tuple[int, int]], int]]:
        """Return where each epoch of the first num_steps steps reads the tokens begin … end - 1, two or more.

        It is (epoch, (step, row) of each window, number of windows): fewer steps than windows if some are not read.
        """
        readings, num_windows = [], num_steps * self.batch_size
        for epoch in range(self.epoch_of(num_windows - 1) + 1):
            # The target of an input is the token after it, so the last token needs no window of its own.
            first, last = ((token - self._offset(epoch)) // self.seq_len for token in (begin, end - 2))
            size, key = self.windows_per_epoch(epoch), hash_integers(self.seed, epoch, 1)
            order = permute(np.arange(max(first, 0), min(last + 1, size)), size, key, is_inverse=True)
            numbers = (self._epoch_begins[epoch] + order).tolist()
            places = [divmod(number, self.batch_size) for number in numbers if number < num_windows]
            readings.append((epoch, places, last - first + 1))
        return readings

    def starts(self, step: int) -> np.ndarray:
        """Return the token position at which each window of a step begins: (B,) int64, read-only."""
        block, row = divmod(step, self._block_steps)
        if block != self._block:  # compute a block of steps at once
            size = self._block_steps * self.batch_size
            starts = self._starts_between(block * size, (block + 1) * size)
            starts.flags.writeable = False
            self._block, self._block_starts = block, starts.reshape(self._block_steps, self.batch_size)
        return self._block_starts[row]

    def _starts_between(self, number: int, end: int) -> np.ndarray:
        """Return where the windows number … end - 1, counted over all epochs, begin: (end - number,) int64."""
        starts = []
        while number < end:
            epoch = self.epoch_of(number)
            epoch_begin, epoch_end = self._epoch_begins[epoch], self._epoch_begins[epoch + 1]
            index = np.arange(number, min(end, epoch_end)) - epoch_begin
            order = permute(index, epoch_end - epoch_begin, hash_integers(self.seed, epoch, 1))
            starts.append(self._offset(epoch) + order * self.seq_len)
            number = min(end, epoch_end)
        return np.concatenate(starts)

    def buffer(self, step: int) -> np.ndarray:
        """Return the windows of a step, each with the token after it: (B, T + 1) int64, a new array."""
        starts = self.starts(step)
        if self._view is None:
            return read_windows(self.ids, starts, self.seq_len + 1)
        return widen(self._view[starts], self.ids.dtype)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a step, views of one buffer."""
        return shift(self.buffer(step))


def model_selection_starts(num_tokens: int, num_selected: int, seq_len: int, spans: np.ndarray) -> np.ndarray:
    """Return where the windows begin whose tokens select the best model: (W,) int64, ascending.

    The stream is cut into non-overlapping windows of `seq_len`. W = num_selected // seq_len of them, at least one and
    at most all, are taken at even distances, so that they represent the stream. `spans` (D, 2) are its documents. A
    document longer than `_longest_counted` counts as that many tokens, so its windows are farther apart.
    """
    num_windows = max(1, num_tokens // seq_len)
    count, end = min(num_windows, max(1, num_selected // seq_len)), min(num_tokens, num_windows * seq_len)
    ends = np.minimum(np.append(spans[:, 1], end), end)  # the last: of tokens after the last document
    lengths = np.diff(ends, prepend=0)
    counted = np.minimum(lengths, _longest_counted(lengths[lengths > 0], count * seq_len))
    # Take the middles of `count` equal stretches of the counted tokens; map each back into its document.
    counted_ends = np.cumsum(counted)
    places = (2 * np.arange(count) + 1) * counted_ends[-1] // (2 * count)
    document = np.searchsorted(counted_ends, places, side="right")
    inside = (places - counted_ends[document] + counted[document]) * lengths[document] // counted[document]
    return (ends[document] - lengths[document] + inside) // seq_len * seq_len


def _longest_counted(lengths: np.ndarray, num_selected: int) -> int:
    """Return the most tokens that a document counts as, given the lengths (D,) of all in tokens, each at least 1.

    It is the most that keeps a document at LARGEST_FRACTION of all counted tokens, or at 2 / D where there are few
    documents; but at least so much that `num_selected` tokens are counted.
    """
    # In the default text one of 97 documents holds 13 % of the bytes and would choose the model for all others.
    # Both conditions are monotonic in the limit, so a bisection finds it in 30 passes over the lengths.
    fraction = max(LARGEST_FRACTION, 2 / len(lengths))
    least, most = 1, int(lengths.max())
    while least < most:
        middle = (least + most + 1) // 2
        too_few = np.minimum(lengths, middle - 1).sum() < num_selected
        if too_few or middle <= fraction * np.minimum(lengths, middle).sum():
            least = middle
        else:
            most = middle - 1
    return least


def shift(buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y (B, T), views of windows (B, T + 1): y is x shifted by one."""
    return buffer[:, :-1], buffer[:, 1:]


def window_view(ids: np.ndarray, length: int) -> np.ndarray:
    """Return the windows of `length` ids that begin at each of ids (N,): (N - length + 1,) opaque values, no copy.

    A fancy index copies such values whole, faster than the rows of a sliding_window_view.
    """
    ids = np.ascontiguousarray(ids)
    return np.ndarray(len(ids) - length + 1, f"V{length * ids.itemsize}", ids, strides=ids.strides)


def widen(windows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return opaque values (B,) of a `window_view` of ids of `dtype` as (B, length) int64, a new array."""
    return windows.view(dtype).astype(np.int64).reshape(len(windows), -1)


def read_windows(ids: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Return `length` ids from each of `starts` (B,): (B, length) int64, a new array. IndexError past the end."""
    return widen(window_view(ids, length)[starts], ids.dtype)


def mapped_for_windows(ids: np.ndarray) -> np.ndarray:
    """Return the same ids; a file larger than half of the memory is mapped again without read-ahead.

    Read-ahead helps a scan, and a file that stays in memory; for a larger file it would be most of a batch's time.
    """
    is_small = ids.nbytes <= psutil.virtual_memory().total // 2
    if is_small or not (isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap)):
        return ids
    again = np.memmap(str(ids.filename), ids.dtype, "r", ids.offset, ids.shape)
    if isinstance(again.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        again.base.madvise(mmap.MADV_RANDOM)
    return again

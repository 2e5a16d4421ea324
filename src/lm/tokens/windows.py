"""Choose the windows of a token file for each training step, as a function of the seed and the step alone.

    epoch e:    the windows start at r_e, r_e + seq_len, r_e + 2·seq_len, …   r_e is drawn from 0 … seq_len - 1
    order:      a random permutation of these windows, drawn for each epoch
    step s:     windows s·batch_size … (s + 1)·batch_size - 1 of the epochs, one epoch after the other

So each window is used once in an epoch, and over the epochs a window begins at every position. The windows depend
neither on the number of workers or ranks, nor on evaluations or resuming. NumPy does not promise the same draws in
every version, so the fingerprint of a run includes its version.
"""

import bisect
import functools
import mmap

import numpy as np
import psutil

from lm.core.errors import DataError

# The purposes of generators: one seed gives independent draws for each.
_ORDER = 1
_OFFSET = 2


def random_generator(*key: int) -> np.random.Generator:
    """Return a generator of random numbers; PCG64 is named because NumPy may choose another as its default."""
    return np.random.Generator(np.random.PCG64(key))


@functools.lru_cache(maxsize=2)  # a batch may need the current epoch and the next
def shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return 0 … size - 1 in the random order of an epoch: (size,) uint32, or int64 from 2³² on; read-only.

    An order takes 4 bytes a number, and two are cached: 8 GB for 10⁹ windows, in each process. 10⁸ numbers take 5 s.
    """
    order = np.arange(size, dtype=np.uint32 if size <= 2**32 else np.int64)
    random_generator(seed, epoch, _ORDER).shuffle(order)
    order.flags.writeable = False
    return order


class TokenWindows:
    """Batches of training windows from one stream of token ids."""

    def __init__(self, ids: np.ndarray, seq_len: int, batch_size: int, seed: int):
        """ids: (N,) integer array or memmap; batch_size in sequences. Raise DataError if N < seq_len + 1."""
        if len(ids) < seq_len + 1:
            raise DataError(
                f"the training file has {len(ids)} tokens, one window of train.seq_len {seq_len} needs {seq_len + 1}"
            )
        self.ids = mapped_for_windows(ids)
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self._epoch_begins = [0]  # number of the first window of each epoch, counted over all epochs

    def _offset(self, epoch: int) -> int:
        """Return r_e, the token at which the first window of an epoch starts."""
        num_offsets = min(self.seq_len, len(self.ids) - self.seq_len)
        return int(random_generator(self.seed, epoch, _OFFSET).integers(num_offsets))

    def windows_per_epoch(self, epoch: int = 0) -> int:
        """Return the number of windows between r_e and the end; the last may end on the last token."""
        return (len(self.ids) - 1 - self._offset(epoch)) // self.seq_len

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a window, given its number over all epochs: step · batch_size + row."""
        while self._epoch_begins[-1] <= number:
            epoch = len(self._epoch_begins) - 1
            self._epoch_begins.append(self._epoch_begins[-1] + self.windows_per_epoch(epoch))
        return bisect.bisect_right(self._epoch_begins, number) - 1

    def starts(self, step: int) -> np.ndarray:
        """Return the token position at which each window of a step begins: (B,) int64."""
        number = step * self.batch_size
        end = (step + 1) * self.batch_size
        starts = []
        while number < end:
            # Take the windows of this step that are in the epoch of the first one, then go on with the next epoch.
            epoch = self.epoch_of(number)
            epoch_begin = self._epoch_begins[epoch]
            epoch_end = self._epoch_begins[epoch + 1]
            order = shuffled(epoch_end - epoch_begin, self.seed, epoch)
            windows = order[number - epoch_begin : min(end, epoch_end) - epoch_begin].astype(np.int64)
            starts.append(self._offset(epoch) + windows * self.seq_len)
            number += len(windows)
        return np.concatenate(starts)

    def buffer(self, step: int) -> np.ndarray:
        """Return the windows of a step, each with the token after it: (B, T + 1) int64, a new array."""
        return read_windows(self.ids, self.starts(step), self.seq_len + 1)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a step, (B, T) int64 each, views of one buffer."""
        buffer = self.buffer(step)
        return buffer[:, :-1], buffer[:, 1:]

    def readings(self, begin: int, end: int, num_steps: int) -> list[tuple[int, list[tuple[int, int]], int]]:
        """Return where each epoch of the first num_steps steps reads the tokens begin … end - 1, two or more.

        Each entry is (epoch, (step, row) of each window that is read, number of windows in the epoch).
        """
        readings = []
        num_windows = num_steps * self.batch_size
        for epoch in range(self.epoch_of(num_windows - 1) + 1):
            # The windows that hold the tokens. The target of an input is the token after it, so the last token needs
            # no window of its own.
            first = (begin - self._offset(epoch)) // self.seq_len
            last = (end - 2 - self._offset(epoch)) // self.seq_len
            # Where these windows are in the order of the epoch, in the order of the text.
            order = shuffled(self.windows_per_epoch(epoch), self.seed, epoch)
            places = np.flatnonzero((order >= first) & (order <= last))
            places = places[np.argsort(order[places])]
            numbers = (self._epoch_begins[epoch] + places).tolist()
            steps = [divmod(number, self.batch_size) for number in numbers if number < num_windows]
            readings.append((epoch, steps, last - first + 1))
        return readings


def model_selection_starts(num_tokens: int, num_selected: int, seq_len: int) -> np.ndarray:
    """Return where the windows begin whose tokens select the best model: (W,) int64, ascending.

    The stream is cut into non-overlapping windows of `seq_len`. W = num_selected // seq_len of them, at least one and
    at most all, are taken at even distances: the middles of W equal stretches. So a document has about the same share
    of these windows as of the whole stream, on which the model is evaluated.
    """
    num_windows = max(1, num_tokens // seq_len)
    count = min(num_windows, max(1, num_selected // seq_len))
    middles = (2 * np.arange(count) + 1) * num_windows // (2 * count)
    return middles * seq_len


def read_windows(ids: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Return `length` ids from each of `starts` (B,): (B, length) int64, a new array. Raise IndexError past the end."""
    return ids[starts[:, None] + np.arange(length)].astype(np.int64)


def mapped_for_windows(ids: np.ndarray) -> np.ndarray:
    """Return the same ids (N,); a file larger than half of the memory is mapped again without read-ahead.

    Read-ahead helps a scan, and a file that stays in memory; for a larger file it would be most of a batch's time.
    """
    is_small = ids.nbytes <= psutil.virtual_memory().total // 2
    if is_small or not (isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap)):
        return ids
    again = np.memmap(str(ids.filename), ids.dtype, "r", ids.offset, ids.shape)
    if isinstance(again.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        again.base.madvise(mmap.MADV_RANDOM)
    return again

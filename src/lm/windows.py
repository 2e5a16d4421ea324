"""Which windows of a token file make the batch of a step: a function of seed and step alone.

In epoch e the windows start at r_e + k·seq_len with r_e = hash(seed, e) mod seq_len, so that over
epochs every position begins a window, and they are taken in the order of a stateless permutation:
each once an epoch, whatever the number of workers, ranks, evaluations or resumes.
"""

import numpy as np

from lm.errors import DataError

_GOLDEN = 0x9E3779B97F4A7C15
_FEISTEL_ROUNDS = 6


def mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer, element by element: uint64 → uint64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def hash_of(*numbers: int) -> int:
    """A 64-bit hash of a sequence of integers; the same on every machine and NumPy."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mix(state + np.uint64(_GOLDEN) + np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return int(state[0])


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of 0 … size - 1 sends each `index`, without storing the permutation.

    A balanced Feistel network over the next even number of bits; values that fall outside walk on
    until they are inside (cycle walking: Black and Rogaway 2002). index: any int array, int64 out.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    value = index.astype(np.uint64)
    outside = np.ones(len(value), bool)
    while outside.any():
        value[outside] = _feistel(value[outside], half_bits, key)
        outside = value >= np.uint64(size)
    return value.astype(np.int64)


def _feistel(value: np.ndarray, half_bits: int, key: int) -> np.ndarray:
    """One pass of the network over 2·half_bits bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = value >> shift, value & mask
    for round_number in range(_FEISTEL_ROUNDS):
        round_key = np.uint64(hash_of(key, round_number))
        left, right = right, left ^ (mix(right + round_key) & mask)
    return (left << shift) | right


class TokenWindows:
    """Batches of training windows out of one stream of token ids."""

    def __init__(self, ids: np.ndarray, seq_len: int, batch_size: int, seed: int):
        """ids: (N,) integer array or memmap; batch_size in sequences. DataError if N < seq_len + 1."""
        if len(ids) < seq_len + 1:
            raise DataError(
                f"the training file has {len(ids)} tokens, one window of train.seq_len {seq_len} needs {seq_len + 1}"
            )
        self.ids, self.seq_len, self.batch_size, self.seed = ids, seq_len, batch_size, seed
        self._first_of_epoch = [0]

    def _offset(self, epoch: int) -> int:
        """r_e: where the first window of an epoch starts, in tokens."""
        return hash_of(self.seed, epoch) % min(self.seq_len, len(self.ids) - self.seq_len)

    def windows_per_epoch(self, epoch: int = 0) -> int:
        """Windows between r_e and the end; the last may end on the last token."""
        return (len(self.ids) - 1 - self._offset(epoch)) // self.seq_len

    def _epoch_of(self, sequence: int) -> int:
        """The epoch that the sequence of this running number falls into."""
        while self._first_of_epoch[-1] <= sequence:
            epoch = len(self._first_of_epoch) - 1
            self._first_of_epoch.append(self._first_of_epoch[-1] + self.windows_per_epoch(epoch))
        return int(np.searchsorted(self._first_of_epoch, sequence, side="right")) - 1

    def starts(self, step: int) -> np.ndarray:
        """(B,) int64: the token position at which each window of the batch begins."""
        sequence, end, parts = step * self.batch_size, (step + 1) * self.batch_size, []
        while sequence < end:
            epoch = self._epoch_of(sequence)
            first, behind = self._first_of_epoch[epoch], self._first_of_epoch[epoch + 1]
            index = np.arange(sequence, min(end, behind)) - first
            order = permute(index, behind - first, hash_of(self.seed, epoch, 1))
            parts.append(self._offset(epoch) + order * self.seq_len)
            sequence = min(end, behind)
        return np.concatenate(parts)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets (B, T) int64 of a step; y is x shifted by one, both views of one buffer."""
        return gather(self.ids, self.starts(step), self.seq_len)


def gather(ids: np.ndarray, starts: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """x, y (B, T) int64 for windows at `starts` (B,): one fancy index of the stream, one widening."""
    windows = np.lib.stride_tricks.sliding_window_view(ids, seq_len + 1)
    buffer = windows[starts].astype(np.int64)
    return buffer[:, :-1], buffer[:, 1:]

"""Find n-grams of one token stream that also occur in another, in bounded memory."""

from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

CLEAN_BELOW = 0.2  # a document with a smaller fraction of shared tokens is clean (Touvron et al. 2023, A.6)
KNOWN_NGRAMS = 1 << 24  # hashes in memory at once
_BLOCK_TOKENS = 1 << 20  # hashes made at once; four times as many take three times as long each
_FILTER_BITS = 24
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses no information


def _mix(value: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finalizer to each element, uint64 → uint64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def ngram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Return a hash of the n ids from each position of ids (N,): (N - n + 1,) uint64."""
    values = _mix(ids.astype(np.uint64) + _FACTOR)
    hashes = np.zeros(max(0, len(ids) - n + 1), np.uint64)
    # n whole-array steps of Horner's rule. A rolling hash would need one step per token, but in a loop of Python.
    for i in range(n if len(hashes) else 0):
        hashes = hashes * _FACTOR + values[i : i + len(hashes)]
    return _mix(hashes)


def shared_blocks(ids: np.ndarray, others: np.ndarray, eot_id: int, n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (position, is_shared (k,) bool): which ids from there on are in an n-gram that `others` (M,) contains.

    The blocks cover ids (N,) in order; n-grams with eot_id do not count. `others` is read once for every KNOWN_NGRAMS
    ids, so that memory grows neither with N nor with M. N-grams are compared by 64-bit hashes: among 10⁹ × 10⁶ pairs
    10⁻⁴ false matches are expected.
    """
    open_grams = np.zeros(n - 1, bool)  # of the next block's first ids: in an n-gram that begins in this block
    for start in range(0, len(ids), KNOWN_NGRAMS):
        begins = _shared_begins(ids, start, min(start + KNOWN_NGRAMS, len(ids)), others, eot_id, n)
        # A token is shared if an n-gram begins at one of the n positions up to its own; the last n - 1 positions of
        # a block reach into the next one.
        covered = np.zeros(len(begins) + n - 1, bool)
        covered[: n - 1] = open_grams
        for i in range(n):
            covered[i : i + len(begins)] |= begins
        yield start, covered[: len(begins)]
        open_grams = covered[len(begins) :]


def _shared_begins(ids: np.ndarray, start: int, end: int, others: np.ndarray, eot_id: int, n: int) -> np.ndarray:
    """Return at which positions start … end - 1 an n-gram begins that `others` contains: (end - start,) bool."""
    known = np.empty(end - start, np.uint64)
    count = 0
    for _, hashes in _ngrams_between(ids, start, end, eot_id, n):
        known[count : count + len(hashes)] = hashes
        count += len(hashes)
    known = known[:count]
    is_shared = np.zeros(count, bool)
    begins = np.zeros(end - start, bool)
    if not count:
        return begins
    # Hashing twice costs less memory than keeping 8 bytes of position for each n-gram: hashes first, then positions.
    known.sort()
    shift = np.uint64(64 - _FILTER_BITS)
    possible = np.zeros(1 << _FILTER_BITS, bool)  # by the first bits, so that most n-grams need no search
    for first in range(0, count, _BLOCK_TOKENS):
        possible[known[first : first + _BLOCK_TOKENS] >> shift] = True
    blocks = range(0, len(others), _BLOCK_TOKENS)
    for first in tqdm(blocks, "n-grams", unit="block", leave=False, disable=None):
        hashes = ngram_hashes(others[first : first + _BLOCK_TOKENS + n - 1], n)
        hashes = hashes[possible[hashes >> shift]]
        places = np.searchsorted(known, hashes).clip(max=count - 1)
        is_shared[places[known[places] == hashes]] = True
    for positions, hashes in _ngrams_between(ids, start, end, eot_id, n):
        begins[positions - start] = is_shared[np.searchsorted(known, hashes)]  # the first of equal ones, as above
    return begins


def _ngrams_between(
    ids: np.ndarray, start: int, end: int, eot_id: int, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (positions, hashes) of the n-grams without eot_id that begin at start … end - 1, block by block."""
    for begin in range(start, end, _BLOCK_TOKENS):
        block = ids[begin : min(begin + _BLOCK_TOKENS, end) + n - 1]
        hashes = ngram_hashes(block, n)
        ends = np.cumsum(np.concatenate([[0], block == eot_id]))
        inside = np.flatnonzero(ends[n:] == ends[: len(hashes)])
        yield begin + inside, hashes[inside]


def count_shared(ids: np.ndarray, others: np.ndarray, eot_id: int, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (tokens (d,), shared tokens (d,)) int64 of the documents of `ids`, in order and some at a time.

    Each document ends with its eot_id, which is not counted. See `shared_blocks`.
    """
    open_tokens = open_shared = 0  # of the document whose end was not seen yet
    for start, is_shared in shared_blocks(ids, others, eot_id, n):
        ends = np.flatnonzero(ids[start : start + len(is_shared)] == eot_id)
        after = int(ends[-1]) + 1 if len(ends) else 0
        if len(ends):
            tokens = np.diff(ends, prepend=-1) - 1
            shared = np.add.reduceat(is_shared[:after], np.concatenate([[0], ends[:-1] + 1]), dtype=np.int64)
            tokens[0] += open_tokens
            shared[0] += open_shared
            yield tokens, shared
            open_tokens = open_shared = 0
        open_tokens += len(is_shared) - after
        open_shared += int(is_shared[after:].sum())

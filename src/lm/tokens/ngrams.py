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
    count = len(ids) - n + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    values = _mix(ids.astype(np.uint64) + _FACTOR)
    hashes = np.zeros(count, np.uint64)
    # n whole-array steps of Horner's rule. A rolling hash would need one step per token, but in a loop of Python.
    for i in range(n):
        hashes = hashes * _FACTOR + values[i : i + count]
    return _mix(hashes)


def shared_blocks(ids: np.ndarray, others: np.ndarray, eot_id: int, n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (position, is_shared (k,) bool): which ids from there on are in an n-gram that `others` (M,) contains.

    The blocks cover ids (N,) in order; n-grams with eot_id do not count. `others` is read once for every KNOWN_NGRAMS
    ids, so that memory grows neither with N nor with M. N-grams are compared by 64-bit hashes: among 10⁹ × 10⁶ pairs
    10⁻⁴ false matches are expected.
    """
    open_grams = np.zeros(n - 1, bool)  # of the next block's first ids: in an n-gram that begins in this block
    for start in range(0, len(ids), KNOWN_NGRAMS):
        end = min(start + KNOWN_NGRAMS, len(ids))
        begins = _shared_begins(ids, start, end, others, eot_id, n)

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
    # Hashing twice costs less memory than keeping 8 bytes of position for each n-gram: hashes first, then positions.
    known = np.empty(end - start, np.uint64)
    count = 0
    for _, hashes in _ngrams_between(ids, start, end, eot_id, n):
        known[count : count + len(hashes)] = hashes
        count += len(hashes)
    known = known[:count]
    known.sort()
    is_shared = _find_shared(known, others, n)

    begins = np.zeros(end - start, bool)
    for positions, hashes in _ngrams_between(ids, start, end, eot_id, n):
        places = np.searchsorted(known, hashes)  # the first of equal hashes, like `_find_shared`
        begins[positions - start] = is_shared[places]
    return begins


def _find_shared(known: np.ndarray, others: np.ndarray, n: int) -> np.ndarray:
    """Return which of the sorted hashes (K,) occur in `others` (M,): (K,) bool, True for the first of equal hashes."""
    is_shared = np.zeros(len(known), bool)
    if len(known) == 0:
        return is_shared

    # Mark which first bits the known hashes have, so that most n-grams of `others` need no search.
    shift = np.uint64(64 - _FILTER_BITS)
    is_possible = np.zeros(1 << _FILTER_BITS, bool)
    for begin in range(0, len(known), _BLOCK_TOKENS):
        first_bits = known[begin : begin + _BLOCK_TOKENS] >> shift
        is_possible[first_bits] = True

    blocks = range(0, len(others), _BLOCK_TOKENS)
    for begin in tqdm(blocks, "n-grams", unit="block", leave=False, disable=None):
        hashes = ngram_hashes(others[begin : begin + _BLOCK_TOKENS + n - 1], n)
        hashes = hashes[is_possible[hashes >> shift]]
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        is_found = known[places] == hashes
        is_shared[places[is_found]] = True
    return is_shared


def _ngrams_between(
    ids: np.ndarray, start: int, end: int, eot_id: int, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (positions, hashes) of the n-grams without eot_id that begin at start … end - 1, block by block."""
    for begin in range(start, end, _BLOCK_TOKENS):
        block_end = min(begin + _BLOCK_TOKENS, end)
        block = ids[begin : block_end + n - 1]
        hashes = ngram_hashes(block, n)
        # An n-gram is inside a document if as many documents end before it as up to its last id.
        ends_before = np.cumsum(np.concatenate([[0], block == eot_id]))
        inside = np.flatnonzero(ends_before[n:] == ends_before[: len(hashes)])
        yield begin + inside, hashes[inside]


def count_shared(ids: np.ndarray, others: np.ndarray, eot_id: int, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (tokens (d,), shared tokens (d,)) int64 of the documents of `ids`, in order and some at a time.

    Each document ends with its eot_id, which is not counted. See `shared_blocks`.
    """
    # Counts of the document whose end was not seen yet.
    open_tokens = 0
    open_shared = 0
    for start, is_shared in shared_blocks(ids, others, eot_id, n):
        block = ids[start : start + len(is_shared)]
        ends = np.flatnonzero(block == eot_id)
        open_begin = 0
        if len(ends) > 0:
            # Count the documents that end in this block; the first one may have begun in an earlier block.
            begins = np.concatenate([[0], ends[:-1] + 1])
            open_begin = int(ends[-1]) + 1
            tokens = ends - begins
            shared = np.add.reduceat(is_shared[:open_begin], begins, dtype=np.int64)
            tokens[0] += open_tokens
            shared[0] += open_shared
            yield tokens, shared
            open_tokens = 0
            open_shared = 0
        open_tokens += len(is_shared) - open_begin
        open_shared += int(is_shared[open_begin:].sum())

"""Find n-grams of one token stream that also occur in another, in bounded memory."""

from collections.abc import Iterator

import numpy as np

from lm.tokens.shards import ShardedIds
from lm.tokens.windows import mix

CLEAN_BELOW = 0.2  # a document with a smaller fraction of shared tokens is clean (Touvron et al. 2023, A.6)
_BLOCK_TOKENS = 1 << 22
_FILTER_BITS = 24
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses no information


def ngram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Return a hash of the n ids from each position of ids (N,): (N - n + 1,) uint64."""
    values = mix(ids.astype(np.uint64) + _FACTOR)
    hashes = np.zeros(max(0, len(ids) - n + 1), np.uint64)
    for i in range(n if len(hashes) else 0):
        hashes = hashes * _FACTOR + values[i : i + len(hashes)]
    return mix(hashes)


def shared_tokens(ids: np.ndarray | ShardedIds, others: np.ndarray | ShardedIds, eot_id: int, n: int) -> np.ndarray:
    """Return which tokens of ids (N,) belong to an n-gram without eot_id that `others` (M,) contains: (N,) bool.

    Reads `others` block by block; memory grows with N, not with M. N-grams are compared by 64-bit hashes:
    among 10⁹ × 10⁶ pairs 10⁻⁴ false matches are expected.
    """
    ids = np.asarray(ids)  # a copy of shards
    hashes = ngram_hashes(ids, n)
    ends = np.cumsum(np.concatenate([[0], ids == eot_id]))
    inside = ends[n:] == ends[: len(hashes)]
    known = np.unique(hashes[inside])
    if not len(known):
        return np.zeros(len(ids), bool)
    is_shared = np.zeros(len(known), bool)
    for _, places in _matches(known, others, n):
        is_shared[places] = True
    place = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    begins = np.flatnonzero(inside & is_shared[place])
    change = np.bincount(begins, minlength=len(ids) + 1) - np.bincount(begins + n, minlength=len(ids) + 1)
    return np.cumsum(change[:-1]) > 0


def _matches(known: np.ndarray, ids: np.ndarray | ShardedIds, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, block by block, (positions in ids, places in `known`) of the n-grams whose hash is in sorted `known`."""
    shift = np.uint64(64 - _FILTER_BITS)
    possible = np.zeros(1 << _FILTER_BITS, bool)  # by the first bits, so that most n-grams need no search
    possible[known >> shift] = True
    for start in range(0, len(ids), _BLOCK_TOKENS):
        hashes = ngram_hashes(ids[start : start + _BLOCK_TOKENS + n - 1], n)
        at = np.flatnonzero(possible[hashes >> shift])
        places = np.searchsorted(known, hashes[at]).clip(max=len(known) - 1)
        equal = known[places] == hashes[at]
        yield start + at[equal], places[equal]


def copies(samples: list[np.ndarray], others: np.ndarray | ShardedIds, n: int) -> list[tuple[int, float | None]]:
    """Measure how much of each sample (N,) is copied from `others` (M,), in one pass over `others`.

    Returns per sample the length of its longest run of ids that `others` contains (0 if below n), and the
    fraction of its n-grams that `others` does not contain (None if it has no n-gram).
    """
    begins = [(i, begin) for i, sample in enumerate(samples) for begin in range(len(sample) - n + 1)]
    if not begins:
        return [(0, None)] * len(samples)
    known, group = np.unique(np.concatenate([ngram_hashes(s, n) for s in samples]), return_inverse=True)
    is_shared, longest = np.zeros(len(known), bool), [0] * len(samples)
    for positions, places in _matches(known, others, n):
        is_shared[places] = True
        for place in np.unique(places):
            for i, begin in (begins[j] for j in np.flatnonzero(group == place)):
                longest[i] = max(longest[i], _longest_match(samples[i][begin:], others, positions[places == place]))
    owner, is_new = np.array([i for i, _ in begins]), ~is_shared[group]
    return [(length, float(is_new[owner == i].mean()) if i in owner else None) for i, length in enumerate(longest)]


def _longest_match(ids: np.ndarray, others: np.ndarray | ShardedIds, positions: np.ndarray) -> int:
    """Return how many of the first of ids (N,) `others` contains in a row from one of the positions on."""
    length = 0
    while len(positions) and length < len(ids):
        positions = positions[positions + length < len(others)]
        positions = positions[others[positions + length] == ids[length]]
        length += len(positions) > 0
    return length

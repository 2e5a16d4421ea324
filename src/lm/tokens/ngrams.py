"""How much of one stream of tokens stands word for word in another: shared n-grams, in bounded memory."""

from collections.abc import Iterator

import numpy as np

from lm.tokens.windows import mix

CLEAN_BELOW = 0.2  # a document with a smaller fraction of shared tokens is clean (Touvron et al. 2023, A.6)
_BLOCK_TOKENS = 1 << 22
_FILTER_BITS = 24
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no id's contribution is lost


def ngram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """(N - n + 1,) uint64: a hash of the n ids from each position of ids (N,) on; equal n-grams, equal hashes."""
    values = mix(ids.astype(np.uint64) + _FACTOR)
    hashes = np.zeros(max(0, len(ids) - n + 1), np.uint64)
    for i in range(n if len(hashes) else 0):
        hashes = hashes * _FACTOR + values[i : i + len(hashes)]
    return mix(hashes)


def shared_tokens(ids: np.ndarray, others: np.ndarray, eot_id: int, n: int) -> np.ndarray:
    """(N,) bool: whether a token of ids (N,) is part of n ids, none of them eot_id, that others (M,) hold too.

    `others` is read block by block; memory grows with N, not with M. Hashes of 64 bits stand for
    n-grams: among 10⁹ × 10⁶ pairs a false one is expected 10⁻⁴ times.
    """
    ids = np.asarray(ids)  # of shards a copy
    hashes = ngram_hashes(ids, n)
    ends = np.cumsum(np.concatenate([[0], ids == eot_id]))
    inside = ends[n:] == ends[: len(hashes)]
    known = np.unique(hashes[inside])
    if not len(known):
        return np.zeros(len(ids), bool)
    found = _found_in(known, others, n)
    place = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return _covered(inside & found[place], len(ids), n)


def _found_in(known: np.ndarray, ids: np.ndarray, n: int) -> np.ndarray:
    """(K,) bool: which of the sorted hashes `known` (K,) an n-gram of ids has."""
    found = np.zeros(len(known), bool)
    for _, places in _matches(known, ids, n):
        found[places] = True
    return found


def _matches(known: np.ndarray, ids: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, block by block, (positions in ids, places in `known`) of the n-grams whose hash is known."""
    shift = np.uint64(64 - _FILTER_BITS)
    possible = np.zeros(1 << _FILTER_BITS, bool)  # by their first bits: most n-grams need no search
    possible[known >> shift] = True
    for start in range(0, len(ids), _BLOCK_TOKENS):
        hashes = ngram_hashes(ids[start : start + _BLOCK_TOKENS + n - 1], n)
        at = np.flatnonzero(possible[hashes >> shift])
        places = np.searchsorted(known, hashes[at]).clip(max=len(known) - 1)
        equal = known[places] == hashes[at]
        yield start + at[equal], places[equal]


def copies(samples: list[np.ndarray], others: np.ndarray, n: int) -> list[tuple[int, float | None]]:
    """How much of each sample (N,) is copied, in one pass over `others` (M,).

    The ids of its longest part that `others` holds too, 0 below n; and the share of its n-grams that
    `others` does not hold, None where it has none.
    """
    begins = [(i, begin) for i, sample in enumerate(samples) for begin in range(len(sample) - n + 1)]
    if not begins:
        return [(0, None)] * len(samples)
    known, group = np.unique(np.concatenate([ngram_hashes(s, n) for s in samples]), return_inverse=True)
    found, longest = np.zeros(len(known), bool), [0] * len(samples)
    for positions, places in _matches(known, others, n):
        found[places] = True
        for place in np.unique(places):
            for i, begin in (begins[j] for j in np.flatnonzero(group == place)):
                longest[i] = max(longest[i], _longest_match(samples[i][begin:], others, positions[places == place]))
    owner, new = np.array([i for i, _ in begins]), ~found[group]
    return [(n_ids, float(new[owner == i].mean()) if i in owner else None) for i, n_ids in enumerate(longest)]


def _longest_match(ids: np.ndarray, others: np.ndarray, positions: np.ndarray) -> int:
    """How many of the first of ids (N,) stand in `others` from one of the positions on."""
    length = 0
    while len(positions) and length < len(ids):
        positions = positions[positions + length < len(others)]
        positions = positions[others[positions + length] == ids[length]]
        length += len(positions) > 0
    return length


def _covered(begins: np.ndarray, num_tokens: int, n: int) -> np.ndarray:
    """(num_tokens,) bool: whether one of the n-grams that begin where `begins` is true covers a token."""
    change = np.zeros(num_tokens + 1, np.int64)
    change[: len(begins)] += begins
    change[n : n + len(begins)] -= begins
    return np.cumsum(change[:-1]) > 0

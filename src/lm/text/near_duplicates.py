"""Find near-duplicate documents: MinHash signatures of word n-grams, compared where locality-sensitive hashing says.

A word is a run of letters, digits and underscores, in ASCII without regard to case; a character from U+3000 on begins
a word of its own, as Chinese and Japanese have no spaces. A document with fewer words than an n-gram is compared as a
whole, so that it only equals itself. All hashes are fixed, so the clusters are the same on every machine.

rensa computes the signatures from hashes made here. Its `digests_from_token_sets` hashes strings instead, which gives
other signatures and another default split, and its `RMinHashLSH` needs bands that divide the signature evenly.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
from rensa import RMinHash
from tqdm import tqdm

from lm.core.params import FRACTION, Range
from lm.text.duplicates import digest

RECALL = 0.98  # probability that two documents whose similarity is the threshold are compared at all
MAX_NGRAM_WORDS, MAX_PERMUTATIONS = 100, 4096
_SEED = 1
_BLOCK_BYTES = 1 << 20
_PAIRS_AT_ONCE = 1 << 14
_ROWS_AT_ONCE = 512  # signatures that are Python integers in between
_FACTOR = 0x9E3779B97F4A7C15  # odd, so that multiplying modulo 2⁶⁴ loses no information
_INVERSE = pow(_FACTOR, -1, 1 << 64)
_FIRST_SINGLE = 0xE3  # first byte in UTF-8 of the characters from U+3000 on

NgramWords = Annotated[int, Range(lambda value: 1 <= value <= MAX_NGRAM_WORDS, f"1 to {MAX_NGRAM_WORDS}")]
# Hashes per document, 4 bytes each; the estimate's standard error is 0.5 / √ of it at most.
NumPermutations = Annotated[int, Range(lambda value: 16 <= value <= MAX_PERMUTATIONS, f"16 to {MAX_PERMUTATIONS}")]


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Which documents are near-duplicates: those whose sets of word n-grams have at least this Jaccard similarity."""

    threshold: Annotated[float, FRACTION]
    ngram_words: NgramWords
    num_permutations: NumPermutations


class Clusters:
    """Disjoint sets of documents; each is known by its first document."""

    def __init__(self, num_documents: int):
        self.parents = np.arange(num_documents)

    def find(self, documents: np.ndarray) -> np.ndarray:
        """Return the first document of the cluster of each of `documents` (n,): (n,) int64."""
        first = self.parents[documents]
        while True:
            further = self.parents[first]
            if (further == first).all():
                self.parents[documents] = first
                return first
            first = further

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Put each of `left` (n,) and its partner in `right` (n,) into one cluster."""
        parents = self.parents
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            while parents[a] != a:
                parents[a] = a = parents[parents[a]]
            while parents[b] != b:
                parents[b] = b = parents[parents[b]]
            parents[max(a, b)] = min(a, b)


def find_clusters(batches: Iterable[Sequence[str]], params: NearDuplicates) -> np.ndarray:
    """Return for each document the number of the first document of its cluster: (D,) int64.

    Documents are in one cluster if a chain of near-duplicates leads from one to the other. A pair is compared if its
    signatures agree in all hashes of a band, and joined if they agree in at least `threshold` of all hashes. Memory is
    4 bytes per hash and document, and about 32 more per document; the result does not depend on the batches.
    """
    signatures = _signatures(batches, params)
    clusters = Clusters(len(signatures))
    for left, right in _pairs_with_first(_sorted_buckets(signatures, np.arange(len(signatures)))):
        clusters.join(left, right)  # equal signatures need no comparison, however many there are
    distinct = np.flatnonzero(clusters.find(clusters.parents) == np.arange(len(signatures)))
    rows = _rows_of_band(params.threshold, params.num_permutations)
    bands = range(0, params.num_permutations - rows + 1, rows)
    for begin in tqdm(bands, unit=" bands", desc="compare documents", disable=None, leave=False):
        _join_band(clusters, signatures, _sorted_buckets(signatures[:, begin : begin + rows], distinct), params)
    return clusters.find(np.arange(len(signatures)))


def _signatures(batches: Iterable[Sequence[str]], params: NearDuplicates) -> np.ndarray:
    """Return the MinHash signature of each document, (D, num_permutations) uint32."""
    content = bytearray()  # grows without a second copy
    for texts in batches:
        hashes, offsets = ngram_hashes(texts, params.ngram_words)
        for i in range(0, len(texts), _ROWS_AT_ONCE):
            begins = offsets[i : i + _ROWS_AT_ONCE + 1]
            own, begins = hashes[begins[0] : begins[-1]], begins - begins[0]
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(own, begins, params.num_permutations, _SEED)
            content += np.array(matrix.to_rows(), np.uint32).tobytes()
    return np.frombuffer(content, np.uint32).reshape(-1, params.num_permutations)


def ngram_hashes(texts: Sequence[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of all word n-grams, (N,) uint64, and where those of each text begin and end, (D + 1,) uint64.

    A text with fewer than n words has one hash, that of the text.
    """
    words, num_words = _word_hashes(texts)
    hashes = np.zeros(max(0, len(words) - n + 1), np.uint64)
    for i in range(n if len(hashes) else 0):
        hashes = hashes * np.uint64(_FACTOR) + words[i : i + len(hashes)]
    text_of_word = np.repeat(np.arange(len(texts)), num_words)
    is_inside = text_of_word[n - 1 :] == text_of_word[: len(hashes)]
    offsets = np.concatenate([[0], np.cumsum(np.maximum(num_words - n + 1, 1))])
    short = np.flatnonzero(num_words < n)
    is_ngram = np.ones(offsets[-1], bool)
    is_ngram[offsets[short]] = False
    found = np.empty(offsets[-1], np.uint64)
    found[is_ngram] = _mix(hashes[is_inside])
    found[~is_ngram] = [digest(texts[i]) for i in short.tolist()]
    return found, offsets.astype(np.uint64)


def _word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of every word, (W,) uint64, and the number of words of each text, (D,) int64."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    content = b"\n".join(encoded) + b"\n"
    begins, hashes = (np.concatenate(parts) for parts in zip(*_hash_blocks(content), strict=True))
    text_begins = np.cumsum([0] + [len(text) + 1 for text in encoded])
    return hashes, np.diff(np.searchsorted(begins, text_begins))


def _hash_blocks(content: bytes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, block by block, where words begin, (n,) int64, and their hashes, (n,) uint64."""
    end = 0
    while end < len(content):
        begin, end = end, min(end + _BLOCK_BYTES, len(content))
        while end < len(content) and _BYTE_VALUES[content[end]] and content[end] < _FIRST_SINGLE:
            end += 1  # never cut a word
        block = np.frombuffer(content, np.uint8, end - begin, begin)
        values = _BYTE_VALUES[block]
        is_word = values > 0
        starts = is_word & (block >= _FIRST_SINGLE)
        starts[0] = is_word[0]
        starts[1:] |= is_word[1:] & ~is_word[:-1]
        begins = np.flatnonzero(starts)
        # A word's hash is the sum of value × factor^(position in the word) over its bytes. reduceat adds all words of a
        # block at C speed, but with positions in the block: so multiply by the inverse (modulo 2⁶⁴) of the first power.
        values *= _powers(_FACTOR, len(block))
        sums = np.add.reduceat(values, begins) if len(begins) else np.zeros(0, np.uint64)
        yield begin + begins, _mix(sums * _powers(_INVERSE, len(block))[begins])


def _powers(factor: int, count: int) -> np.ndarray:
    """Return factor^0 to factor^(count - 1) modulo 2⁶⁴: (count,) uint64."""
    powers = np.full(count, factor, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)


def _mix(values: np.ndarray) -> np.ndarray:
    """Return a bijective hash of values (N,) uint64 whose bits all depend on all bits."""
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(29))


def _byte_values() -> np.ndarray:
    """Return a 64-bit value for each byte of a word, the same for a and A; 0 for bytes between words: (256,) uint64."""
    folded = np.arange(256)
    folded[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
    is_word = [byte >= 0x80 or chr(byte).isalnum() or chr(byte) == "_" for byte in range(256)]
    return np.where(is_word, _mix((folded.astype(np.uint64) + np.uint64(1)) * np.uint64(_FACTOR)), np.uint64(0))


_BYTE_VALUES = _byte_values()


def _rows_of_band(threshold: float, num_permutations: int) -> int:
    """Return the largest band, in hashes, with which a pair at the threshold is compared with probability RECALL."""
    recall = lambda rows: 1 - (1 - threshold**rows) ** (num_permutations // rows)  # noqa: E731
    return max((rows for rows in range(1, num_permutations + 1) if recall(rows) >= RECALL), default=1)


def _sorted_buckets(hashes: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort those of `documents` that share all columns of hashes (D, rows) with another one into buckets.

    Returns the documents, bucket by bucket, (n,) int64; and the place of each bucket's first, (b,) int64.
    """
    keys = np.zeros(len(documents), np.uint64)
    for column in hashes.T:
        keys = _mix(keys * np.uint64(_FACTOR) + column[documents])
    order = np.argsort(keys)
    keys, documents = keys[order], documents[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    sizes = np.diff(np.append(starts, len(keys)))
    is_shared = np.repeat(sizes > 1, sizes)
    sizes = sizes[sizes > 1]
    return documents[is_shared], np.cumsum(sizes) - sizes


def _pairs_with_first(buckets: tuple[np.ndarray, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of pairs (n,), (n,): each document of a bucket and the bucket's first."""
    documents, starts = buckets
    firsts = np.repeat(documents[starts], np.diff(np.append(starts, len(documents))))
    for begin in range(0, len(documents), _PAIRS_AT_ONCE):
        yield documents[begin : begin + _PAIRS_AT_ONCE], firsts[begin : begin + _PAIRS_AT_ONCE]


def _join_band(clusters: Clusters, signatures: np.ndarray, buckets: tuple, params: NearDuplicates) -> None:
    """Join the near-duplicates of each bucket: first with its first document, then the others with each other."""
    # Comparing all pairs of a bucket is quadratic, so compare each document with the first one, and then pair by pair
    # only in buckets that this leaves divided.
    documents, starts = buckets
    for left, right in _pairs_with_first(buckets):
        _join_similar(clusters, signatures, left, right, params)
    if not len(starts):
        return
    ends = np.append(starts[1:], len(documents))
    found = clusters.find(documents)
    is_divided = np.minimum.reduceat(found, starts) != np.maximum.reduceat(found, starts)
    for begin, end in zip(starts[is_divided], ends[is_divided], strict=True):
        if end - begin > 2:
            _join_divided(clusters, signatures, documents[begin:end], params)


def _join_divided(clusters: Clusters, signatures: np.ndarray, members: np.ndarray, params: NearDuplicates) -> None:
    """Compare all members (n,) that are in different clusters; join the near-duplicates."""
    found, sizes = np.unique(clusters.find(members), return_counts=True)
    for member in members[clusters.find(members) != found[sizes.argmax()]]:
        for begin in range(0, len(members), _PAIRS_AT_ONCE):
            others = members[begin : begin + _PAIRS_AT_ONCE]
            _join_similar(clusters, signatures, others, np.full(len(others), member), params)


def _join_similar(clusters: Clusters, signatures: np.ndarray, left: np.ndarray, right: np.ndarray, params) -> None:
    """Join the pairs (n,), (n,) whose signatures agree in at least `threshold` of the hashes."""
    is_open = clusters.find(left) != clusters.find(right)
    left, right = left[is_open], right[is_open]
    agree = np.count_nonzero(signatures[left] == signatures[right], axis=1)
    is_similar = agree >= params.threshold * params.num_permutations - 1e-9
    clusters.join(left[is_similar], right[is_similar])

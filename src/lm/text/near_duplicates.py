"""Find near-duplicate documents: MinHash signatures of word n-grams, compared where locality-sensitive hashing says.

A word is a run of letters, digits and underscores, in ASCII without regard to case; a character from U+3000 on is a
word of its own, as Chinese and Japanese have no spaces. A document with fewer words than an n-gram is compared as a
whole, so that it only equals itself. All hashes are fixed, so the clusters are the same on every machine.

rensa hashes the n-grams and makes the signatures (Broder 1997). The bands are here: its index of bands takes five
times the memory, and compares all pairs of a family of similar documents, which for 10,000 of them takes 20 times as
long.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from rensa import RMinHash
from tqdm import tqdm

from lm.core.params import FRACTION, Range

RECALL = 0.98  # probability that two documents whose similarity is the threshold are compared at all
MAX_NGRAM_WORDS = 100
MAX_PERMUTATIONS = 4096
_SEED = 1  # of the permutations
_ROWS_AT_ONCE = 512  # signatures that are Python integers in between
_PAIRS_AT_ONCE = 1 << 14  # that are compared
# In UTF-8, with ASCII in small letters. The bytes E3 to FF begin the characters from U+3000 on; a regular expression on
# characters would need \w, which differs between versions of Python.
_WORD = re.compile(rb"[\xe3-\xff][\x80-\xbf]*|[0-9a-z_\x80-\xe2]+")

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
    least_equal = params.threshold * params.num_permutations - 1e-9  # hashes
    rows = _rows_of_band(params.threshold, params.num_permutations)
    bands = range(0, params.num_permutations - rows + 1, rows)
    for begin in tqdm(bands, unit=" bands", desc="compare documents", disable=None, leave=False):
        documents, starts = _buckets(signatures[:, begin : begin + rows])
        _join_buckets(clusters, signatures, documents, starts, least_equal)
    return clusters.find(np.arange(len(signatures)))


def _signatures(batches: Iterable[Sequence[str]], params: NearDuplicates) -> np.ndarray:
    """Return the MinHash signature of each document, (D, num_permutations) uint32."""
    content = bytearray()  # grows without a second copy
    for texts in batches:
        hashes, offsets = ngram_hashes(texts, params.ngram_words)
        for i in range(0, len(texts), _ROWS_AT_ONCE):
            begins = offsets[i : i + _ROWS_AT_ONCE + 1]
            own = hashes[begins[0] : begins[-1]]
            begins = begins - begins[0]
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(own, begins, params.num_permutations, _SEED)
            content += np.array(matrix.to_rows(), np.uint32).tobytes()
    return np.frombuffer(content, np.uint32).reshape(-1, params.num_permutations)


def ngram_hashes(texts: Sequence[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of all word n-grams, (N,) uint64, and where those of each text begin and end, (D + 1,) uint64.

    A text with fewer than n words has one hash, that of the text.
    """
    ngrams = [_ngrams(text.encode(), n) for text in texts]
    offsets = np.cumsum([0, *map(len, ngrams)], dtype=np.uint64)
    hashes = itertools.chain.from_iterable(RMinHash.hash_token_sets(ngrams))
    return np.fromiter(hashes, np.uint64, int(offsets[-1])), offsets


def _ngrams(content: bytes, n: int) -> list[bytes]:
    """Return all n-grams of words, joined by spaces; of a text with fewer words the text."""
    words = _WORD.findall(content.lower())
    if len(words) < n:
        return [content]
    shifted = [words[i:] for i in range(n)]
    return list(map(b" ".join, zip(*shifted, strict=False)))  # as many as the shortest has words


def _rows_of_band(threshold: float, num_permutations: int) -> int:
    """Return the largest band, in hashes, with which a pair at the threshold is compared with probability RECALL."""
    for rows in range(num_permutations, 1, -1):
        num_bands = num_permutations // rows
        probability_of_a_band = threshold**rows
        recall = 1 - (1 - probability_of_a_band) ** num_bands
        if recall >= RECALL:
            return rows
    return 1


def _buckets(band: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put documents that share all hashes of a band (D, rows) with another one into buckets.

    Returns the documents, bucket by bucket, (n,) int64; and the place of each bucket's first, (b,) int64.
    """
    rows = np.ascontiguousarray(band).view((np.void, band.itemsize * band.shape[1])).ravel()
    documents = np.argsort(rows, kind="stable")
    is_start = rows[documents[1:]] != rows[documents[:-1]]
    sizes = np.diff(np.concatenate([[0], np.flatnonzero(is_start) + 1, [len(rows)]]))
    documents = documents[np.repeat(sizes > 1, sizes)]
    sizes = sizes[sizes > 1]
    return documents, np.cumsum(sizes) - sizes


def _join_buckets(
    clusters: Clusters, signatures: np.ndarray, documents: np.ndarray, starts: np.ndarray, least_equal: float
) -> None:
    """Join the near-duplicates of each bucket; `documents` and `starts` are those of `_buckets`."""
    if not len(starts):
        return
    # Compare each document with the first of its bucket, for all buckets at once. That is enough for most.
    ends = np.append(starts[1:], len(documents))
    firsts = np.repeat(documents[starts], ends - starts)
    _join_similar(clusters, signatures, documents, firsts, least_equal)

    # Compare all pairs of the buckets that this leaves divided.
    found = clusters.find(documents)
    is_divided = np.minimum.reduceat(found, starts) != np.maximum.reduceat(found, starts)
    for begin, end in zip(starts[is_divided], ends[is_divided], strict=True):
        _join_all(clusters, signatures, documents[begin + 1 : end], least_equal)


def _join_all(clusters: Clusters, signatures: np.ndarray, members: np.ndarray, least_equal: float) -> None:
    """Compare each of the members (n,) with all others, until all are in one cluster; join the near-duplicates."""
    while len(members) > 1:
        first = members[0]
        _join_similar(clusters, signatures, members, np.full(len(members), first), least_equal)
        # All have been compared with the first now, and so with its copies.
        is_copy = (signatures[members] == signatures[first]).all(axis=1)
        members = members[~is_copy]
        found = clusters.find(members)
        if len(members) and (found == found[0]).all():
            return


def _join_similar(
    clusters: Clusters, signatures: np.ndarray, left: np.ndarray, right: np.ndarray, least_equal: float
) -> None:
    """Join the pairs (n,), (n,) whose signatures agree in at least `least_equal` hashes."""
    is_open = clusters.find(left) != clusters.find(right)
    left = left[is_open]
    right = right[is_open]
    for begin in range(0, len(left), _PAIRS_AT_ONCE):
        a = left[begin : begin + _PAIRS_AT_ONCE]
        b = right[begin : begin + _PAIRS_AT_ONCE]
        num_equal = np.count_nonzero(signatures[a] == signatures[b], axis=1)
        is_similar = num_equal >= least_equal
        clusters.join(a[is_similar], b[is_similar])

"""Find near-duplicate documents by MinHash signatures of word n-grams and locality-sensitive hashing.

`rule` defines a word. The older rules remain, so that an existing split can be made again:

1   A run of letters, digits and underscores. ASCII is compared without case. All characters from U+0080 on are letters.
    A character from U+3000 on is a separate word, because Chinese and Japanese have no spaces.
2   ASCII follows rule 1. Other text is compared without its Unicode form (NFKC), case, punctuation, kinds of space and
    invisible characters. In Thai, Lao, Khmer, Burmese and other scripts without spaces between words, a word is the
    WINDOW_CHARS characters from each character on. Five such words have as many letters as five English words, and
    about as few of them also occur in other text.
3   Follows rule 2, and ignores characters that writers leave out or keyboards write in two ways: all invisible
    characters; accents; vowel marks of Hebrew, Arabic and Syriac; Arabic tatweel, and the forms of alef, yeh and kaf.

Rule 1 compares a document with fewer words than an n-gram as a whole, so that it equals only exact copies. Rules 2 and
3 compare its words. All hashes are fixed, so the clusters are the same on every machine.

rensa hashes the n-grams and computes the signatures (Broder 1997). This module indexes the bands itself: rensa's index
takes five times the memory, and compares all pairs of a family of similar documents, which takes 20 times as long for
10,000 of them.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rensa import RMinHash
from tqdm import tqdm

from lm.text.config import NearDuplicates

RECALL = 0.98  # probability that two documents whose similarity is the threshold are compared at all
_SEED = 1  # of the permutations
_ROWS_AT_ONCE = 512  # signatures held as Python integers at a time
_PAIRS_AT_ONCE = 1 << 14  # compared at a time
# Explicit ranges, because \w differs between versions of Python.
_WORD_OF_RULE_1 = re.compile("[\u3000-\U0010ffff]|[0-9a-z_\x80-\u2fff]+")
WINDOW_CHARS = 12
# Thai, Lao; Burmese; Khmer; Tai, Buginese; Balinese; Javanese, Cham. Tibetan has a mark between its syllables.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\ua980-\uaadf"
_RUN_WITHOUT_SPACES = re.compile(f"[{_NO_SPACES}]+")
_RUN = re.compile(f"[{_NO_SPACES}]+|[\u3000-\ua97f\uaae0-\U0010ffff]|[^ {_NO_SPACES}\u3000-\U0010ffff]+")
_INVISIBLE = "[\u00ad\u200b-\u200d\u2060\ufeff]+"  # hyphens and spaces without width
_NO_WORD = r"[^\p{L}\p{M}\p{N}_]+"
# Rule 3 removes these from text in the form NFKD. Unicode calls some invisible characters letters or marks, such as the
# fillers of Hangul and the variation selectors.
_LEFT_OUT = (
    "[\\p{Cf}\\p{Me}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef"  # invisible
    "\u0300-\u036f\u0483-\u0487\u1dc0-\u1dff"  # accents of Latin, Greek and Cyrillic letters
    "\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed\u0711\u0730-\u074a]+"  # of Hebrew to Syriac
)
_SAME_LETTERS = {"\u0671": "\u0627", "\u06cc": "\u064a", "\u0649": "\u064a", "\u06a9": "\u0643"}  # alef, yeh, kaf


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
        hashes, offsets = ngram_hashes(texts, params)
        for i in range(0, len(texts), _ROWS_AT_ONCE):
            begins = offsets[i : i + _ROWS_AT_ONCE + 1]
            own = hashes[begins[0] : begins[-1]]
            begins = begins - begins[0]
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(own, begins, params.num_permutations, _SEED)
            content += np.array(matrix.to_rows(), np.uint32).tobytes()
    return np.frombuffer(content, np.uint32).reshape(-1, params.num_permutations)


def ngram_hashes(texts: Sequence[str], params: NearDuplicates) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of all word n-grams, (N,) uint64, and the bounds of each text among them, (D + 1,) uint64.

    A text with fewer words than an n-gram has one hash.
    """
    ngrams = []
    if params.rule == 1:
        for text in texts:
            lowered = text.encode().lower().decode()  # ASCII alone
            words = _WORD_OF_RULE_1.findall(lowered)
            ngrams.append(_ngrams(words, params.ngram_words) or [text])
    else:
        for text, folded in zip(texts, _fold(texts, params.rule), strict=True):
            words = _words(folded)
            ngrams.append(_ngrams(words, params.ngram_words) or [" ".join(words) or text])
    offsets = np.cumsum([0, *map(len, ngrams)], dtype=np.uint64)
    hashes = itertools.chain.from_iterable(RMinHash.hash_token_sets(ngrams))
    return np.fromiter(hashes, np.uint64, int(offsets[-1])), offsets


def _fold(texts: Sequence[str], rule: int) -> list[str]:
    """Return the words of texts in one Unicode form and case, with spaces between.

    The tables are those of pyarrow, because Python's own differ between its versions.
    """
    folded = pa.array(texts, pa.large_string())
    if rule == 3:
        folded = pc.utf8_normalize(folded, form="NFKD")
        folded = pc.replace_substring_regex(folded, _LEFT_OUT, "")
        for letter, same in _SAME_LETTERS.items():
            folded = pc.replace_substring(folded, letter, same)
    folded = pc.utf8_normalize(folded, form="NFKC")
    folded = pc.utf8_lower(pc.utf8_upper(folded))  # so that ς is σ
    folded = pc.replace_substring_regex(folded, _INVISIBLE, "")
    return pc.replace_substring_regex(folded, _NO_WORD, " ").to_pylist()


def _words(folded: str) -> list[str]:
    """Return the words of a folded text."""
    if folded.isascii():
        return folded.split()
    words = []
    for run in _RUN.findall(folded):
        if _RUN_WITHOUT_SPACES.match(run):
            words += [run[place : place + WINDOW_CHARS] for place in range(len(run))]
        else:
            words.append(run)
    return words


def _ngrams(words: list[str], n: int) -> list[str]:
    """Return all n-grams of words, joined by spaces."""
    shifted = [words[i:] for i in range(n)]
    return list(map(" ".join, zip(*shifted, strict=False)))  # as many as the shortest has words


def _rows_of_band(threshold: float, num_permutations: int) -> int:
    """Return the most hashes of a band with which a pair at the threshold is still compared with probability RECALL."""
    for rows in range(num_permutations, 1, -1):
        num_bands = num_permutations // rows
        probability_of_a_band = threshold**rows
        recall = 1 - (1 - probability_of_a_band) ** num_bands
        if recall >= RECALL:
            return rows
    return 1


def _buckets(band: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put documents that share all hashes of a band (D, rows) with another document into buckets.

    Return the documents, bucket by bucket, (n,) int64; and the place of each bucket's first document, (b,) int64.
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
        # All have now been compared with the first, and so with its copies.
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

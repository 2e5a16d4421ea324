"""Split documents into training, validation and, if requested, test, and keep near-duplicates on one side.

Near-duplicates form clusters, and a cluster goes to one side as a whole. Validation takes clusters that share few
n-grams with the rest of the text, in the order of their hashes. It takes long clusters only if the short ones do not
have enough text: a score that one document decides says little about others.
Test then takes clusters of the remaining text by the same rules, so that validation does not depend on it. The split is
the same on every machine and for all file names.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lm.core.errors import DataError
from lm.text.config import NearDuplicates, SplitParams
from lm.text.near_duplicates import find_clusters, ngram_hashes
from lm.text.parquet import in_groups
from lm.text.slices import TEST

MAX_OVERSHOOT = 1.5  # times the wanted characters of validation
MAX_SHARE = 0.1  # fraction of the text of validation, or of test, in one cluster
HIGHER_SHARES = (0.4, 0.8, MAX_OVERSHOOT, math.inf)  # tried in turn if the shorter clusters have far too little text
BATCH_CHARS = 1_000_000  # characters compared at a time
MAX_NGRAMS = 1 << 23  # n-grams in memory, 12 bytes each; of more text, a sample by hash
DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The digests of the documents of a split, and facts for warnings."""

    digests: frozenset[bytes]
    num_clusters: int
    characters: int
    longest_share: float  # the longest cluster's fraction of the characters
    num_shared: int  # clusters that share more than max_shared_fraction of their n-grams


@dataclasses.dataclass(frozen=True)
class Split:
    """The documents chosen for validation and test; all others are for training."""

    validation: Chosen
    test: Chosen | None  # None if it is not requested
    num_clusters: int
    characters: int
    longest_fraction: float  # the longest cluster's fraction of the characters

    @property
    def validation_fraction(self) -> float:
        """Return validation's fraction of the characters."""
        return self.validation.characters / self.characters

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the splits, that of training first."""
        return ("train", "validation", TEST) if self.test else ("train", "validation")

    def name_of(self, text: str) -> str:
        """Return the name of the split of a document."""
        digest = text_sha256(text)
        if digest in self.validation.digests:
            return "validation"
        if self.test and digest in self.test.digests:
            return TEST
        return "train"


def text_sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Survey:
    """The facts of every document that decide a split: SHA-256, characters, and its n-grams or a sample of them."""

    def __init__(self, params: NearDuplicates):
        self.params = params
        self.digests = bytearray()
        self.lengths = []
        self._blocks, self._num_ngrams, self._highest = [], 0, np.uint64(2**64 - 1)

    def collect_ngrams(self, batches: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the batches unchanged, and record the facts of their documents."""
        for texts in batches:
            hashes, offsets = ngram_hashes(texts, self.params)
            numbers = np.arange(len(self.lengths), len(self.lengths) + len(texts), dtype=np.int32)
            self._keep(hashes, np.repeat(numbers, np.diff(offsets).astype(np.int64)))
            self.digests += b"".join(map(text_sha256, texts))
            self.lengths += map(len, texts)
            yield texts

    def _keep(self, hashes: np.ndarray, documents: np.ndarray) -> None:
        """Keep the n-grams up to a highest hash, which is lowered while there are more than MAX_NGRAMS.

        The lowered hash also limits later batches, so the result does not depend on the batches.
        """
        is_kept = hashes <= self._highest
        self._blocks.append((hashes[is_kept], documents[is_kept]))
        self._num_ngrams += np.count_nonzero(is_kept)
        while self._num_ngrams > MAX_NGRAMS:
            self._highest >>= np.uint64(1)
            kept_blocks = []
            for each_hashes, each_documents in self._blocks:
                is_kept = each_hashes <= self._highest
                kept_blocks.append((each_hashes[is_kept], each_documents[is_kept]))
            self._blocks = kept_blocks
            self._num_ngrams = sum(len(each_hashes) for each_hashes, _ in kept_blocks)

    def shared_fractions(self, clusters: np.ndarray) -> np.ndarray:
        """Return the fraction of each cluster's n-grams that other clusters also have (D,), given clusters (D,)."""
        hashes, documents = (np.concatenate(arrays) for arrays in zip(*self._blocks, strict=True))
        order = np.argsort(hashes)
        hashes = hashes[order]
        owners = clusters[documents[order]]
        starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])[: len(hashes)])
        if not len(starts):
            return np.zeros(len(clusters))
        is_shared = np.minimum.reduceat(owners, starts) != np.maximum.reduceat(owners, starts)
        is_shared = np.repeat(is_shared, np.diff(np.append(starts, len(hashes))))
        num_shared = np.bincount(owners[is_shared], minlength=len(clusters))
        num_ngrams = np.bincount(owners, minlength=len(clusters))
        return num_shared / np.maximum(1, num_ngrams)


def choose_split(texts: Iterable[str], params: SplitParams) -> Split | None:
    """Choose the documents of validation and test; return None if all documents are one cluster.

    Each split gets at least one cluster. Raise DataError if fewer documents are left for test than requested.

    Clusters that share more than max_shared_fraction come last; among them, those that share least come first. A
    cluster with more than MAX_SHARE of the validation text is taken only if the shorter ones do not have enough text. A
    cluster that would make the split far too large is left in training, and so is the last one.
    """
    # Read all documents once. A cluster is known by its first document, and has the length of all its documents.
    survey = Survey(params.near_duplicates)
    batches = survey.collect_ngrams(in_groups(texts, BATCH_CHARS))
    clusters = find_clusters(batches, params.near_duplicates)
    names = np.unique(clusters)
    if len(names) < 2:
        return None
    lengths = np.bincount(clusters, survey.lengths, minlength=len(clusters))

    # Order the clusters: those that share little come first, then the others; both are sorted by their highest hash.
    digests = np.frombuffer(survey.digests, f"S{DIGEST_BYTES}")
    rank = np.empty(len(digests), np.int64)
    rank[np.argsort(digests, kind="stable")] = np.arange(len(digests))
    highest = np.zeros(len(digests), np.int64)
    np.maximum.at(highest, clusters, rank)
    shared = survey.shared_fractions(clusters)
    shared[shared <= params.max_shared_fraction] = 0
    order = names[np.lexsort((-highest[names], shared[names]))]

    def describe(chosen: list[int]) -> Chosen:
        """Return the documents of some clusters."""
        content = bytes(survey.digests)
        documents = np.flatnonzero(np.isin(clusters, chosen))
        own = [content[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)] for i in documents]
        characters = int(lengths[chosen].sum())
        return Chosen(
            digests=frozenset(own),
            num_clusters=len(chosen),
            characters=characters,
            longest_share=float(lengths[chosen].max() / characters),
            num_shared=int((shared[chosen] > 0).sum()),
        )

    # Take clusters for validation until there is enough text. One cluster is validation text at least.
    total = lengths.sum()
    wanted_chars = params.validation_fraction * total
    num_unshared = int((shared[order] == 0).sum())
    validation = _take(order, num_unshared, lengths, wanted_chars, lengths, wanted_chars, MAX_OVERSHOOT)
    if not validation:
        validation = [min(order.tolist(), key=lambda cluster: lengths[cluster])]

    # Take clusters for test from the others, in the same order, until there are as many documents as are asked for.
    test = None
    wanted = params.test_documents
    if wanted is not None:
        others = order[~np.isin(order, validation)]
        num_unshared = int((shared[others] == 0).sum())
        num_documents = np.bincount(clusters, minlength=len(clusters))
        wanted_chars = wanted * lengths.sum() / num_documents.sum()  # of documents of average length
        test = _take(others, num_unshared, lengths, wanted_chars, num_documents, wanted, slack=1)
        num_taken = int(num_documents[test].sum())
        if num_taken < wanted:
            found = (
                f"only {num_taken} documents, in whole clusters of near-duplicates, are left for it beside validation"
            )
            raise DataError(f"fetch.split.test_documents is {wanted}, but {found}; lower it, or add text")

    return Split(
        validation=describe(validation),
        test=describe(test) if test else None,
        num_clusters=len(names),
        characters=int(total),
        longest_fraction=float(lengths.max() / total),
    )


def _take(
    order: np.ndarray,
    num_unshared: int,
    lengths: np.ndarray,
    wanted_chars: float,
    sizes: np.ndarray,
    wanted: float,
    slack: float,
) -> list[int]:
    """Return the clusters, taken in order, whose sizes give about `wanted`, without long ones if possible.

    The first `num_unshared` of the order share little with others. lengths: characters of each cluster, (D,); the split
    should have `wanted_chars`. sizes: (D,), in the unit of `wanted`. A total from `wanted` / `slack` to `slack` ×
    `wanted` is enough; it is never more.
    """
    candidates = order[:-1].tolist()  # the last is always for training
    rounds = [(candidates[:num_unshared], MAX_SHARE), (candidates, 2 * MAX_SHARE)]
    rounds += [(candidates, share) for share in HIGHER_SHARES]

    size = 0
    chosen = {}  # a dict keeps the order
    for clusters, share in rounds:
        if share in HIGHER_SHARES and size >= wanted / slack:
            break
        for cluster in clusters:
            is_candidate = cluster not in chosen and lengths[cluster] <= share * wanted_chars
            if is_candidate and size < wanted and size + sizes[cluster] <= slack * wanted:
                size += sizes[cluster]
                chosen[cluster] = None
    return list(chosen)

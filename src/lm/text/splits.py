"""Cut documents into training, validation and perhaps test so that no text of one is almost in another too.

Near-duplicates form clusters, and a cluster goes to one side as a whole. Validation takes clusters that share few of
their n-grams with the rest of the text, in the order of their hashes, and long clusters only if the short ones are too
little text: a score that one document decides says little about others.
Test, if it is asked for, then takes clusters of what would be training text by the same rules, so that validation is
the same with and without it. The split is the same on every machine and for all file names.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np

from lm.core.errors import DataError
from lm.core.params import Range, at_least
from lm.text.near_duplicates import NearDuplicates, find_clusters, ngram_hashes
from lm.text.parquet import in_groups
from lm.text.slices import TEST

MAX_OVERSHOOT = 1.5  # of the wanted characters for validation
MAX_SHARE = 0.1  # of the text of validation, or of test, that one cluster should have
HIGHER_SHARES = (0.4, 0.8, MAX_OVERSHOOT, math.inf)  # tried in turn if the shorter clusters are far too little
BATCH_CHARS = 1_000_000  # that are compared at a time
MAX_NGRAMS = 1 << 23  # that are held, 12 bytes each; of more text a sample decides, by hash
DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True)
class SplitParams:
    """Which text is for validation and for test, and how much of a cluster may occur in other clusters."""

    # of the characters
    validation_fraction: Annotated[float, Range(lambda value: 0 < value < 1, "between 0 and 1")]
    # documents that no stage reads; None: no such split
    test_documents: Annotated[int | None, at_least(1, ", or null for no test split")]
    # of a cluster's n-grams
    max_shared_fraction: Annotated[float, Range(lambda value: 0 <= value <= 1, "0 to 1")]
    near_duplicates: NearDuplicates


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The digests of the documents of a split, and what a warning needs to know."""

    digests: frozenset[bytes]
    num_clusters: int
    characters: int
    longest_share: float  # of the characters, the longest cluster's
    num_shared: int  # clusters that share more than max_shared_fraction of their n-grams


@dataclasses.dataclass(frozen=True)
class Split:
    """What is chosen for validation and for test, of how much text; all other documents are for training."""

    validation: Chosen
    test: Chosen | None  # None if it is not asked for
    num_clusters: int
    characters: int
    longest_fraction: float  # of the characters, the longest cluster's

    @property
    def validation_fraction(self) -> float:
        """Return the fraction of the characters that validation has."""
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
    """What a split needs to know of every document: SHA-256, characters, and its n-grams or a sample of them."""

    def __init__(self, params: NearDuplicates):
        self.params = params
        self.digests = bytearray()
        self.lengths = []
        self._blocks, self._num_ngrams, self._highest = [], 0, np.uint64(2**64 - 1)

    def collect_ngrams(self, batches: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the batches unchanged, and keep what is needed of them."""
        for texts in batches:
            hashes, offsets = ngram_hashes(texts, self.params)
            numbers = np.arange(len(self.lengths), len(self.lengths) + len(texts), dtype=np.int32)
            self._keep(hashes, np.repeat(numbers, np.diff(offsets).astype(np.int64)))
            self.digests += b"".join(map(text_sha256, texts))
            self.lengths += map(len, texts)
            yield texts

    def _keep(self, hashes: np.ndarray, documents: np.ndarray) -> None:
        """Keep the n-grams up to the highest hash, which falls while they are more than MAX_NGRAMS.

        Those of later batches are held to the hash that has been reached, so that the batches do not matter.
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
        """Return of each of the clusters (D,) the fraction of its n-grams that another cluster has too: (D,)."""
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
    """Return which documents are for validation and for test; None if all documents are one cluster.

    Each gets at least one cluster, and training too. Raise DataError if there are fewer documents for test than asked.

    Clusters that share more than max_shared_fraction come last, those that share least first. A cluster with more than
    MAX_SHARE of the validation text is taken only if the shorter ones are too little. One that would make the split far
    too large, and the last of all, stay in training.
    """
    # Read all documents once. A cluster is known by its first document, and has the length of all its documents.
    survey = Survey(params.near_duplicates)
    batches = survey.collect_ngrams(in_groups(texts, BATCH_CHARS))
    clusters = find_clusters(batches, params.near_duplicates)
    names = np.unique(clusters)
    if len(names) < 2:
        return None
    lengths = np.bincount(clusters, survey.lengths, minlength=len(clusters))

    # Order the clusters: those that share little first, and within these and the others by the highest hash.
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

    The first `num_unshared` of the order share little with others. `lengths` (D,) of clusters are in characters, of
    which the split should have `wanted_chars`; `sizes` (D,) are in the unit of `wanted`. From `wanted` / `slack` on it
    is enough, and there is never more than `slack` × `wanted`.
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

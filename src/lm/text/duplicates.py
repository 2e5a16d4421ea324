"""Find documents that occur more than once: as they are (exact), and with white space folded.

train, validation = (digest_texts(texts) for texts in (train_texts, validation_texts))
train_flags, validation_flags = flag_duplicates(train, validation)
"""

import hashlib
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

KINDS = ("exact_within", "exact_across", "folded_within", "folded_across")  # bit i of a flag is kind i
NUM_BUCKETS = 32  # sorted one by one, because sorting takes several times the memory of its input


class Digests(NamedTuple):
    """The `digest` of each document's text, and of its text with white space folded: (D,) uint64 each."""

    exact: np.ndarray
    folded: np.ndarray


def digest(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b. Among 100 million texts, two collide with probability 3 in 10,000."""
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def digest_texts(texts: Iterable[str]) -> Digests:
    """Return the digests of all documents of a split, 16 bytes each."""
    exact = array("Q")
    folded = array("Q")
    for text in texts:
        words = " ".join(text.split())
        exact.append(digest(text))
        folded.append(exact[-1] if words == text else digest(words))
    return Digests(np.frombuffer(exact, np.uint64), np.frombuffer(folded, np.uint64))


def flag_duplicates(train: Digests, validation: Digests) -> list[np.ndarray]:
    """Return the KINDS of duplicate of each document of train and of validation, as flags: (D,) uint8 each.

    `within`: an equal document comes before it in its split. `across`: the other split has an equal document.
    """
    train_flags = np.zeros(len(train.exact), np.uint8)
    validation_flags = np.zeros(len(validation.exact), np.uint8)
    for first_bit, train_digests, validation_digests in (
        (0, train.exact, validation.exact),
        (2, train.folded, validation.folded),
    ):
        for bucket in range(NUM_BUCKETS):
            # Equal documents are in one bucket.
            train_documents = np.flatnonzero(train_digests.astype(np.uint8) % NUM_BUCKETS == bucket)
            validation_documents = np.flatnonzero(validation_digests.astype(np.uint8) % NUM_BUCKETS == bucket)
            in_train = train_digests[train_documents]
            in_validation = validation_digests[validation_documents]
            train_flags[train_documents] |= _within_and_across(in_train, in_validation) << first_bit
            validation_flags[validation_documents] |= _within_and_across(in_validation, in_train) << first_bit
    return [train_flags, validation_flags]


def _within_and_across(digests: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each of digests (D,) uint8: 1 if an equal one comes before it, plus 2 if `others` has an equal one."""
    _, first_of_equal = np.unique(digests, return_index=True)
    is_within = np.ones(len(digests), np.uint8)
    is_within[first_of_equal] = 0
    is_across = np.isin(digests, others).astype(np.uint8)
    return is_within + 2 * is_across


def duplicates_of(flags: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns (n,) of the duplicate documents: `document`, its number, and KINDS as bool."""
    documents = np.flatnonzero(flags)
    columns = {"document": documents}
    for bit, kind in enumerate(KINDS):
        columns[kind] = (flags[documents] >> bit & 1).astype(bool)
    return columns

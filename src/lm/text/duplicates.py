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
NUM_BUCKETS = 32  # sorted one by one, because sorting takes several times the memory of what is sorted


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
    """Return for each document of train and of validation, (D,) uint8, the KINDS of duplicate that it is.

    `within`: an equal document comes before it in its split. `across`: the other split has an equal document.
    """
    flags = [np.zeros(len(split.exact), np.uint8) for split in (train, validation)]
    for kind, digests in enumerate(zip(train, validation, strict=True)):
        for bucket in range(NUM_BUCKETS):
            places = [np.flatnonzero(each.astype(np.uint8) % NUM_BUCKETS == bucket) for each in digests]
            distinct = [np.unique(each[at], return_index=True) for each, at in zip(digests, places, strict=True)]
            for i, at in enumerate(places):
                is_repeat = np.ones(len(at), bool)
                is_repeat[distinct[i][1]] = False  # the first of equal ones
                is_across = np.isin(digests[i][at], distinct[1 - i][0])
                flags[i][at] |= (is_repeat | is_across << 1).astype(np.uint8) << 2 * kind
    return flags


def duplicates_of(flags: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of the documents that are duplicates: `document`, its number, and KINDS as bool."""
    documents = np.flatnonzero(flags)
    return {"document": documents} | {kind: flags[documents] >> i & 1 == 1 for i, kind in enumerate(KINDS)}

"""Find documents that occur more than once, in memory that does not grow with their text.

    train = write_digests(batches_of_texts, folder / "train")
    train_flags, validation_flags = flag_duplicates(train, validation)

Of each document two 64-bit digests are written to a temporary file: of its text, and of its text with white space
folded. Equal digests are found bucket by bucket of the digests' first bits, so that only a byte of flags for each
document, and one bucket, are in memory at a time.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

DIGESTS = np.dtype([("exact", "<u8"), ("folded", "<u8"), ("utf8_bytes", "<i8")])
KINDS = ("exact_within", "exact_across", "folded_within", "folded_across")  # bit i of a flag is kind i
BUCKET_DOCUMENTS = 1 << 22
_BLOCK_DOCUMENTS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Digests:
    """The records (D,) of DIGESTS of a split's documents, a file for each field: `path` with the field as suffix."""

    path: Path
    documents: int

    def file(self, field: str) -> Path:
        """Return the path of a field's values."""
        return self.path.with_suffix(f".{field}")

    def blocks(self, field: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number of a document, the field's values from there on), block by block."""
        for start in range(0, self.documents, _BLOCK_DOCUMENTS):
            yield start, self.read(field, start, start + _BLOCK_DOCUMENTS)

    def read(self, field: str, start: int, end: int) -> np.ndarray:
        """Return the field's values of the documents from `start` to before `end`, at most to the last."""
        count = min(end, self.documents) - start
        return np.fromfile(self.file(field), DIGESTS[field], count, offset=start * DIGESTS[field].itemsize)


def digest(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b. Among 100 million texts, two collide with probability 3 in 10,000."""
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def describe(text: str) -> tuple[int, int, int]:
    """Return a document's record of DIGESTS."""
    exact, folded = digest(text), " ".join(text.split())
    return exact, exact if folded == text else digest(folded), len(text.encode())


def write_digests(batches: Iterable[list[str]], path: Path) -> Digests:
    """Write the record of each document to new files."""
    assert DIGESTS.names
    digests, documents = Digests(path, 0), 0
    with contextlib.ExitStack() as stack:
        files = {field: stack.enter_context(open(digests.file(field), "xb")) for field in DIGESTS.names}
        for texts in batches:
            records = np.array([describe(text) for text in texts], DIGESTS)
            for field, file in files.items():
                file.write(records[field].tobytes())
            documents += len(texts)
    return dataclasses.replace(digests, documents=documents)


def flag_duplicates(train: Digests, validation: Digests) -> tuple[np.ndarray, np.ndarray]:
    """Return for each document of both splits, (D,) uint8, the KINDS of duplicate that it is.

    `within`: an equal document comes before it in its split. `across`: the other split has an equal document.
    """
    flags = np.zeros(train.documents, np.uint8), np.zeros(validation.documents, np.uint8)
    num_buckets = 1
    while max(train.documents, validation.documents) > num_buckets * BUCKET_DOCUMENTS:
        num_buckets *= 2
    for kind, field in enumerate(("exact", "folded")):
        for bucket in range(num_buckets):
            found = [_sorted_bucket(split, field, bucket, num_buckets) for split in (train, validation)]
            for flag, (digests, places), (others, _) in zip(flags, found, found[::-1], strict=True):
                repeated = places[1:][digests[1:] == digests[:-1]]
                flag[repeated] |= 1 << 2 * kind
                if len(others):
                    nearest = np.searchsorted(others, digests).clip(max=len(others) - 1)
                    flag[places[others[nearest] == digests]] |= 2 << 2 * kind
    return flags


def _sorted_bucket(split: Digests, field: str, bucket: int, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the digests of a bucket in order, and the number of each one's document, ascending among equal ones."""
    shift, digests, places = np.uint64(64 - num_buckets.bit_length() + 1), [], []
    for start, block in split.blocks(field):
        inside = np.flatnonzero(block >> shift == bucket) if num_buckets > 1 else np.arange(len(block))
        digests.append(block[inside])
        places.append(start + inside)
    if not digests:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    digests, places = np.concatenate(digests), np.concatenate(places)
    order = np.argsort(digests, kind="stable")
    return digests[order], places[order]


def count_duplicates(flags: np.ndarray) -> dict[str, int]:
    """Return how many documents with the flags (D,) are duplicates of each of KINDS."""
    by_flag = np.bincount(flags, minlength=1 << len(KINDS))
    return {kind: int(by_flag[np.arange(len(by_flag)) >> i & 1 == 1].sum()) for i, kind in enumerate(KINDS)}


def iter_duplicates(flags: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield, block by block, the columns of the documents that are duplicates: `document`, and KINDS as bool."""
    for start in range(0, len(flags), _BLOCK_DOCUMENTS):
        places = np.flatnonzero(flags[start : start + _BLOCK_DOCUMENTS])
        if len(places):
            marked = flags[start + places]
            yield {"document": start + places} | {kind: marked >> i & 1 == 1 for i, kind in enumerate(KINDS)}

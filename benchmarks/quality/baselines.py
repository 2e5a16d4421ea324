"""Compress the validation text by xz and by an n-gram model of bytes, beside which the default's bits per byte stand.

    PYTHONPATH=src:benchmarks python benchmarks/quality/baselines.py

Both see the training text first, as the model does. It needs data/raw of a run of the default.
"""

import lzma

import numpy as np
import pyarrow.parquet as pq

from harness import RESULTS, ROOT, hardware
from lm.core.files import write_json

ORDERS = (0, 1, 2, 3, 4, 5, 6)  # bytes of context
SEPARATOR = b"\0"  # between documents; its own cost is not counted


def read_text(split: str) -> bytes:
    """Return the documents of a split, each followed by the separator."""
    texts = pq.read_table(ROOT / "data" / "raw" / f"{split}.parquet", columns=["text"])["text"].to_pylist()
    return b"".join(text.encode() + SEPARATOR for text in texts)


def xz_bytes(text: bytes) -> int:
    """Return the size of a text after xz at its strongest."""
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def contexts(text: np.ndarray, order: int) -> np.ndarray:
    """Return for each byte (N,) the `order` bytes before it as one number (N,) uint64; zeros before the text."""
    padded = np.concatenate([np.zeros(order, np.uint8), text])
    packed = np.zeros(len(text), np.uint64)
    for i in range(order):
        packed = packed << np.uint64(8) | padded[i : i + len(text)].astype(np.uint64)
    return packed


def lookup(keys: np.ndarray, counts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the count of each wanted key, 0 if it is not among the sorted keys."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, counts[places], 0)


def ngram_bits(train: bytes, validation: bytes) -> dict[int, float]:
    """Return order → bits of the validation text under an n-gram model of the training text.

    The orders are interpolated (Witten and Bell 1991): P_k = (count + followers · P_{k-1}) / (total + followers).
    """
    train_bytes = np.frombuffer(train, np.uint8)
    validation_bytes = np.frombuffer(validation, np.uint8)
    is_counted = validation_bytes != SEPARATOR[0]
    probability = np.full(len(validation_bytes), 1 / 256)
    bits = {}
    for order in ORDERS:
        # Count each context with each byte that follows it.
        pairs = contexts(train_bytes, order) << np.uint64(8) | train_bytes.astype(np.uint64)
        pair_keys, pair_counts = np.unique(pairs, return_counts=True)
        context_keys, starts, followers = np.unique(pair_keys >> np.uint64(8), return_index=True, return_counts=True)
        totals = np.add.reduceat(pair_counts, starts)

        # Mix with the lower order. A context that did not occur leaves its probability.
        wanted = contexts(validation_bytes, order)
        wanted_pairs = wanted << np.uint64(8) | validation_bytes.astype(np.uint64)
        count = lookup(pair_keys, pair_counts, wanted_pairs)
        total = lookup(context_keys, totals, wanted)
        distinct = lookup(context_keys, followers, wanted)
        mixed = (count + distinct * probability) / np.maximum(total + distinct, 1)
        probability = np.where(total > 0, mixed, probability)
        bits[order] = float(-np.log2(probability[is_counted]).sum())
    return bits


def main() -> None:
    """Record the bits per byte of both."""
    train = read_text("train")
    validation = read_text("validation")
    num_bytes = len(validation) - validation.count(SEPARATOR)
    xz = {
        "alone": 8 * xz_bytes(validation) / num_bytes,
        "after_the_training_text": 8 * (xz_bytes(train + validation) - xz_bytes(train)) / num_bytes,
    }
    ngrams = {order: bits / num_bytes for order, bits in ngram_bits(train, validation).items()}
    found = {"utf8_bytes": num_bytes, "xz_bits_per_byte": xz, "ngram_bits_per_byte": ngrams}
    write_json(RESULTS / "baselines.json", {"hardware": hardware()} | found)


if __name__ == "__main__":
    main()

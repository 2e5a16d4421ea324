"""Made-up losses of documents, as unequal in length as those of the default corpus."""

import math

import numpy as np

LN2 = math.log(2)


def corpus(rng, documents: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nats under A, nats under B, and bytes; on average B - A is `shift` bits per byte."""
    num_bytes = np.maximum(rng.lognormal(7.6, 1.34, documents), 50).round()
    bits_per_byte = rng.normal(1.3, 0.3, documents)
    change = rng.normal(shift, 0.1, documents)
    nats_under_a = bits_per_byte * num_bytes * LN2
    nats_under_b = (bits_per_byte + change) * num_bytes * LN2
    return nats_under_a, nats_under_b, num_bytes

"""The loss by frequency of the token and by length of the document: each token is in one row."""

import numpy as np
import pytest

from extras.probes.breakdown import loss_by_frequency, loss_by_length
from lm.tokens.tokenfile import count_ids


def test_tokens_are_counted_by_the_decade_of_their_count_in_training():
    train = np.repeat(np.arange(6, dtype=np.uint16), [0, 1, 9, 10, 99, 100])
    counts = count_ids(train, 7)
    assert counts.tolist() == [0, 1, 9, 10, 99, 100, 0]
    losses, ids = np.array([8, 1, 2, 3, 4, 5, 1], np.float32), np.array([0, 1, 2, 3, 4, 5, 5], np.uint16)
    rows = loss_by_frequency(losses, ids, counts)
    assert [(row["count_from"], row["count_to"]) for row in rows] == [(0, 0), (1, 9), (10, 99), (100, 999)]
    assert [row["entries"] for row in rows] == [2, 2, 2, 1] and [row["tokens"] for row in rows] == [1, 2, 2, 2]
    assert [row["nats_per_token"] for row in rows] == [8, 1.5, 3.5, 3]
    assert [row["loss_fraction"] for row in rows] == pytest.approx([8 / 24, 3 / 24, 7 / 24, 6 / 24])
    assert len(loss_by_frequency(losses[:2], np.array([4, 5]), counts)) == 2, "a decade without a token has no row"


def test_documents_are_counted_by_the_octave_of_their_length():
    tokens = np.array([1, 2, 3, 4, 7, 8, 2])
    documents = {"tokens": tokens, "nats": np.log(2) * tokens, "utf8_bytes": np.array([1, 2, 3, 8, 14, 2, 0])}
    rows = loss_by_length(documents)
    assert [(row["tokens_from"], row["tokens_to"]) for row in rows] == [(1, 1), (2, 3), (4, 7), (8, 15)]
    assert [row["documents"] for row in rows] == [1, 2, 2, 1]  # one without text is left out
    assert [row["tokens"] for row in rows] == [1, 5, 11, 8]
    assert [row["bits_per_byte"] for row in rows] == pytest.approx([1, 1, 0.5, 4])

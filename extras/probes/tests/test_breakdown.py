"""The loss by frequency of the token and by length of the document: each token is in one row."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from extras.probes import breakdown
from extras.probes.breakdown import count_ids, loss_by_frequency, loss_by_length
from lm.tokens.tokenfile import TokenFile, blocks_of


@pytest.mark.parametrize("block", [3, 1000])
def test_tokens_are_counted_by_the_decade_of_their_count_in_training(monkeypatch, block):
    monkeypatch.setattr(breakdown, "blocks_of", partial(blocks_of, block_tokens=block))
    train = np.repeat(np.arange(6, dtype=np.uint16), [0, 1, 9, 10, 99, 100])
    counts = count_ids(TokenFile(Path("train.bin"), train, {"tokenizer": {"vocab_size": 7}}))
    assert counts.tolist() == [0, 1, 9, 10, 99, 100, 0]
    losses, ids = np.array([8, 1, 2, 3, 4, 5, 1], np.float32), np.array([0, 1, 2, 3, 4, 5, 5], np.uint16)
    rows = loss_by_frequency(losses, ids, counts)
    assert [(row["count_from"], row["count_to"]) for row in rows] == [(0, 0), (1, 9), (10, 99), (100, 999)]
    assert [row["entries"] for row in rows] == [2, 2, 2, 1] and [row["tokens"] for row in rows] == [1, 2, 2, 2]
    assert [row["nats_per_token"] for row in rows] == [8, 1.5, 3.5, 3]
    assert [row["loss_fraction"] for row in rows] == pytest.approx([8 / 24, 3 / 24, 7 / 24, 6 / 24])


def test_a_decade_without_a_validation_token_has_no_row():
    rows = loss_by_frequency(np.ones(2, np.float32), np.array([0, 0]), np.array([5000, 1]))
    assert [(row["count_from"], row["tokens"]) for row in rows] == [(1000, 2)]


def test_documents_are_counted_by_the_octave_of_their_length():
    tokens = np.array([1, 2, 3, 4, 7, 8, 2])
    documents = {"tokens": tokens, "nats": np.log(2) * tokens, "utf8_bytes": np.array([1, 2, 3, 8, 14, 2, 0])}
    rows = loss_by_length(documents)
    assert [(row["tokens_from"], row["tokens_to"]) for row in rows] == [(1, 1), (2, 3), (4, 7), (8, 15)]
    assert [row["documents"] for row in rows] == [1, 2, 2, 1]  # one without text is left out
    assert [row["tokens"] for row in rows] == [1, 5, 11, 8]
    assert [row["bits_per_byte"] for row in rows] == pytest.approx([1, 1, 0.5, 4])
    assert rows[0]["bits_per_byte_se"] is None and rows[1]["bits_per_byte_se"] == pytest.approx(0)

"""Shared n-grams equal those of a plain search for any block size and never span two documents."""

import numpy as np
import pytest

from lm.tokens import ngrams

EOT = 9


def plain_shared(ids: list[int], others: list[int], n: int) -> np.ndarray:
    """Compute the definition, n-gram by n-gram."""
    known = {tuple(others[i : i + n]) for i in range(len(others) - n + 1)}
    shared = np.zeros(len(ids), bool)
    for i in range(len(ids) - n + 1):
        gram = tuple(ids[i : i + n])
        if EOT not in gram and gram in known:
            shared[i : i + n] = True
    return shared


def random_streams(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two streams of documents that have 60 tokens in common."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, EOT + 1, 300).astype(np.uint16)
    others = rng.integers(0, EOT + 1, 200).astype(np.uint16)
    ids[50:110] = others[20:80]
    return ids, others


def shared_tokens(ids, others, n) -> np.ndarray:
    """Return the blocks as one array, after checking that they are adjacent."""
    blocks = []
    num_tokens = 0
    for position, is_shared in ngrams.shared_blocks(ids, others, EOT, n):
        assert position == num_tokens
        num_tokens += len(is_shared)
        blocks.append(is_shared)
    return np.concatenate(blocks)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize(("known_ngrams", "block_tokens"), [(3, 2), (64, 7), (299, 1 << 20)])
def test_shared_tokens_are_those_of_a_plain_search(monkeypatch, n, known_ngrams, block_tokens):
    monkeypatch.setattr(ngrams, "KNOWN_NGRAMS", known_ngrams)
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", block_tokens)
    ids, others = random_streams(seed=n)

    shared = shared_tokens(ids, others, n)

    assert np.array_equal(shared, plain_shared(ids.tolist(), others.tolist(), n))
    assert 0 < shared.sum() < len(ids)


def test_shared_tokens_are_counted_by_document(monkeypatch):
    monkeypatch.setattr(ngrams, "KNOWN_NGRAMS", 5)
    ids, others = random_streams(seed=3)
    ids[20:23] = EOT  # documents without text
    ids[-1] = EOT

    counts = list(ngrams.count_shared(ids, others, EOT, 3))

    num_tokens = np.concatenate([tokens for tokens, _ in counts])
    num_shared = np.concatenate([shared for _, shared in counts])
    is_shared = plain_shared(ids.tolist(), others.tolist(), 3)
    documents = np.split(is_shared, np.flatnonzero(ids == EOT) + 1)[:-1]
    assert num_tokens.tolist() == [len(document) - 1 for document in documents]
    assert num_shared.tolist() == [document.sum() for document in documents]
    assert num_shared.sum() > 0

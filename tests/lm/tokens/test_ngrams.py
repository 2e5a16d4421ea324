"""Shared n-grams equal those of a plain search for any block size and never span two documents."""

import numpy as np
import pytest

from lm.tokens import ngrams

EOT = 9


def plain(ids, others, n):
    """Compute the definition, n-gram by n-gram."""
    grams = {tuple(others[i : i + n]) for i in range(len(others) - n + 1)}
    shared = np.zeros(len(ids), bool)
    for i in range(len(ids) - n + 1):
        gram = tuple(ids[i : i + n])
        if EOT not in gram and gram in grams:
            shared[i : i + n] = True
    return shared


def shared_tokens(ids, others, n):
    """Return the blocks as one array, after checking that they are adjacent."""
    found = np.zeros(0, bool)
    for position, is_shared in ngrams.shared_blocks(ids, others, EOT, n):
        assert position == len(found)
        found = np.concatenate([found, is_shared])
    return found


@pytest.mark.parametrize(("seed", "n"), [(0, 1), (1, 3), (2, 5)])
@pytest.mark.parametrize(("known", "block_tokens"), [(3, 2), (64, 7), (299, 1 << 20)])
def test_shared_tokens_are_those_of_a_plain_search(monkeypatch, seed, n, known, block_tokens):
    monkeypatch.setattr(ngrams, "KNOWN_NGRAMS", known)
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    ids, others = (rng.integers(0, EOT + 1, size).astype(np.uint16) for size in (300, 200))
    ids[50:80] = others[20:50]
    shared = shared_tokens(ids, others, n)
    assert np.array_equal(shared, plain(ids.tolist(), others.tolist(), n))
    assert 0 < shared.sum() < len(ids)


@pytest.mark.parametrize("known", [5, 1 << 24])
def test_shared_tokens_are_counted_by_document(monkeypatch, known):
    monkeypatch.setattr(ngrams, "KNOWN_NGRAMS", known)
    rng = np.random.default_rng(3)
    ids, others = (rng.integers(0, EOT + 1, size).astype(np.uint16) for size in (300, 400))
    ids[50:110], ids[-1], ids[20:23] = others[20:80], EOT, EOT
    counts = list(ngrams.count_shared(ids, others, EOT, 3))
    tokens, shared = (np.concatenate(each) for each in zip(*counts, strict=True))
    marks = plain(ids.tolist(), others.tolist(), 3)
    ends = np.flatnonzero(ids == EOT)
    begins = np.concatenate([[0], ends[:-1] + 1])
    assert tokens.tolist() == (ends - begins).tolist() and 0 in tokens
    assert shared.tolist() == [marks[begin:end].sum() for begin, end in zip(begins, ends, strict=True)]
    assert 0 < shared.sum() < tokens.sum()

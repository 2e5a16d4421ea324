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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("block_tokens", [7, 1 << 22])
def test_shared_tokens_are_those_of_a_plain_search(monkeypatch, seed, n, block_tokens):
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    ids, others = (rng.integers(0, EOT + 1, size).astype(np.uint16) for size in (300, 200))
    ids[50:80] = others[20:50]
    shared = ngrams.shared_tokens(ids, others, EOT, n)
    assert np.array_equal(shared, plain(ids.tolist(), others.tolist(), n))
    assert 0 < shared.sum() < len(ids)


@pytest.mark.parametrize("ids", [[], [1, 2], [EOT] * 20, [1, 2, EOT, 3]])
def test_a_stream_without_ngrams_shares_nothing(ids):
    ids = np.array(ids, np.uint16)
    assert not ngrams.shared_tokens(ids, np.arange(100, dtype=np.uint16), EOT, 5).any()
    assert not ngrams.shared_tokens(np.arange(100, dtype=np.uint16), ids, EOT, 5).any()


def test_hashes_do_not_depend_on_the_dtype():
    ids = np.arange(50)
    assert np.array_equal(
        ngrams.ngram_hashes(ids.astype(np.uint16), 13), ngrams.ngram_hashes(ids.astype(np.uint32), 13)
    )
    assert len(np.unique(ngrams.ngram_hashes(np.tile(ids, 3), 13))) == 50


def plain_copies(sample, others, n):
    """Compute the definition, one run of ids at a time."""
    text = others.tolist()
    has = lambda run: any(text[i : i + len(run)] == run for i in range(len(text) - len(run) + 1))  # noqa: E731
    runs = [sample[i:j].tolist() for i in range(len(sample)) for j in range(i + n, len(sample) + 1)]
    new = [not has(sample[i : i + n].tolist()) for i in range(len(sample) - n + 1)]
    return max((len(run) for run in runs if has(run)), default=0), float(np.mean(new))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_tokens", [7, 1 << 22])
def test_copies_are_those_of_a_plain_search(monkeypatch, seed, block_tokens):
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    sample, others = (rng.integers(0, 5, size).astype(np.uint16) for size in (40, 150))
    sample[10 : 10 + 4 * seed] = others[-4 * seed :] if seed else sample[10:10]
    *measured, short = ngrams.copies([sample, sample[:20], sample[:3]], others, 4)
    for (longest, new), ids in zip(measured, (sample, sample[:20]), strict=True):
        assert (longest, new) == pytest.approx(plain_copies(ids, others, 4))
    assert measured[0][0] >= 4 * seed and short == (0, None)


def test_a_sample_shorter_than_an_ngram_has_no_copies():
    assert ngrams.copies([np.arange(3)], np.arange(100), 4) == [(0, None)]

"""Shared n-grams are those of a plain search, wherever blocks are cut, and never reach over a document's end."""

import numpy as np
import pytest

from lm.tokens import ngrams as overlap

EOT = 9


def plain(ids, others, n):
    """The definition, n-gram by n-gram."""
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
    monkeypatch.setattr(overlap, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    ids, others = (rng.integers(0, EOT + 1, size).astype(np.uint16) for size in (300, 200))
    ids[50:80] = others[20:50]
    found = overlap.shared_tokens(ids, others, EOT, n)
    assert np.array_equal(found, plain(ids.tolist(), others.tolist(), n))
    assert 0 < found.sum() < len(ids)


@pytest.mark.parametrize("ids", [[], [1, 2], [EOT] * 20, [1, 2, EOT, 3]])
def test_what_holds_no_ngram_shares_nothing(ids):
    ids = np.array(ids, np.uint16)
    assert not overlap.shared_tokens(ids, np.arange(100, dtype=np.uint16), EOT, 5).any()
    assert not overlap.shared_tokens(np.arange(100, dtype=np.uint16), ids, EOT, 5).any()


def test_equal_ngrams_of_another_width_have_equal_hashes():
    ids = np.arange(50)
    assert np.array_equal(
        overlap.ngram_hashes(ids.astype(np.uint16), 13), overlap.ngram_hashes(ids.astype(np.uint32), 13)
    )
    assert len(np.unique(overlap.ngram_hashes(np.tile(ids, 3), 13))) == 50


def plain_copies(sample, others, n):
    """The definition, part by part."""
    text = others.tolist()
    has = lambda part: any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))  # noqa: E731
    parts = [sample[i:j].tolist() for i in range(len(sample)) for j in range(i + n, len(sample) + 1)]
    new = [not has(sample[i : i + n].tolist()) for i in range(len(sample) - n + 1)]
    return max((len(part) for part in parts if has(part)), default=0), float(np.mean(new))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_tokens", [7, 1 << 22])
def test_copies_are_those_of_a_plain_search(monkeypatch, seed, block_tokens):
    monkeypatch.setattr(overlap, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    sample, others = (rng.integers(0, 5, size).astype(np.uint16) for size in (40, 150))
    sample[10 : 10 + 4 * seed] = others[-4 * seed :] if seed else sample[10:10]
    *found, short = overlap.copies([sample, sample[:20], sample[:3]], others, 4)
    for (longest, new), part in zip(found, (sample, sample[:20]), strict=True):
        assert (longest, new) == pytest.approx(plain_copies(part, others, 4))
    assert found[0][0] >= 4 * seed and short == (0, None)


def test_samples_shorter_than_an_ngram_have_copied_nothing():
    assert overlap.copies([np.arange(3)], np.arange(100), 4) == [(0, None)]

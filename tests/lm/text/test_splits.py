"""Splits: clusters are whole, validation shares little with training, and hashes decide."""

import random

import numpy as np
import pytest

from lm.core.errors import DataError
from lm.text.near_duplicates import NearDuplicates
from lm.text.splits import SplitParams, Survey, _take, choose_split, text_sha256

NEAR_DUPLICATES = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64, rule=1)


def split_params(validation_fraction=0.1, max_shared_fraction=0.1, test_documents=None) -> SplitParams:
    return SplitParams(validation_fraction, test_documents, max_shared_fraction, NEAR_DUPLICATES)


def make_text(seed: int, num_words: int = 100) -> str:
    numbers = random.Random(seed).choices(range(5000), k=num_words)
    return " ".join(f"w{number}" for number in numbers)


LICENCE = make_text(0, num_words=60)


def with_licence(seed: int, num_words: int) -> str:
    return f"{LICENCE} {make_text(seed, num_words)}"


def edited(text: str) -> str:
    """Return a near-duplicate: the text with another word in the middle."""
    return text.replace(text.split()[50], "edited")


def chosen_for(digests: frozenset[bytes], texts: list[str]) -> list[str]:
    """Return the texts with these digests."""
    return [text for text in texts if text_sha256(text) in digests]


def validation_of(texts: list[str], **params) -> list[str]:
    """Return the texts for validation."""
    split = choose_split(texts, split_params(**params))
    return chosen_for(split.validation.digests, texts)


# Which clusters are for validation


def test_near_duplicates_stay_together():
    originals = [make_text(seed) for seed in range(300)]
    copies = [edited(text) for text in originals[:150]]

    chosen = set(validation_of(originals + copies))

    for original, copy in zip(originals[:150], copies, strict=True):
        assert (original in chosen) == (copy in chosen)
    assert 0.1 <= len(chosen) / 450 < 0.11


def test_shared_text_stays_in_training():
    """The licence is a large part of the short documents, and a small one of the long ones."""
    short = [with_licence(seed, num_words=60) for seed in range(1, 51)]
    long = [with_licence(seed, num_words=1000) for seed in range(51, 71)]

    chosen = validation_of(short + long, validation_fraction=0.2)

    assert len(chosen) == 6
    assert set(chosen) <= set(long)


def test_what_shares_least_validates_if_all_is_shared():
    """The longest documents share least."""
    texts = [with_licence(seed, num_words=40 + seed) for seed in range(1, 60)]

    split = choose_split(texts, split_params(validation_fraction=0.2, max_shared_fraction=0.0))

    chosen = chosen_for(split.validation.digests, texts)
    assert len(chosen) >= 4
    assert chosen == texts[-len(chosen) :]
    assert split.validation.num_shared == len(chosen)


@pytest.mark.parametrize(
    ("shared_fraction", "is_more"),
    [
        (0.1, False),
        (0.11, True),
    ],
)
def test_what_shares_exactly_the_limit_is_not_held_to_share_more(monkeypatch, shared_fraction, is_more):
    texts = [make_text(seed) for seed in range(20)]
    monkeypatch.setattr(Survey, "shared_fractions", lambda self, clusters: np.full(20, shared_fraction))

    split = choose_split(texts, split_params(validation_fraction=0.2, max_shared_fraction=0.1))

    assert (split.validation.num_shared > 0) == is_more


def test_the_choice_depends_on_texts_alone():
    texts = [make_text(seed, num_words=20 + seed % 9) for seed in range(400)]
    texts += [text + " and more" for text in texts[:50]]
    split = choose_split(texts, split_params(test_documents=40))
    random.Random(1).shuffle(texts)

    again = choose_split(texts, split_params(test_documents=40))

    assert again.validation.digests == split.validation.digests
    assert again.test.digests == split.test.digests


def test_similar_documents_alone_cannot_be_split_and_both_sides_have_a_document():
    texts = [make_text(seed) for seed in range(3)]

    assert choose_split([texts[0], texts[0] + " more"], split_params()) is None
    assert len(validation_of(texts, validation_fraction=0.99)) == 2
    assert len(validation_of(texts, validation_fraction=0.01)) == 1


# How many clusters of which lengths are taken


def fill(lengths: list[int], wanted_chars: float, num_unshared: int | None = None) -> list[int]:
    """Return the clusters that are taken from clusters of these characters, the ones with shared text last."""
    if num_unshared is None:
        num_unshared = len(lengths)
    sizes = np.array(lengths)
    return _take(np.arange(len(lengths)), num_unshared, sizes, wanted_chars, sizes, wanted_chars, slack=1.5)


@pytest.mark.parametrize(
    ("lengths", "wanted_chars", "taken"),
    [
        ([10, 5, 5, 1], 10, [1, 2]),  # 10 are enough
        ([10, 5, 5, 1], 16, [1, 2, 0]),
        ([10, 5, 5, 1], 15, [1, 2]),  # two thirds are enough to leave out a long one
        ([15, 5], 10, [0]),  # half as much again is not too long
        ([16, 5], 10, []),
        # None has more than a tenth, if the short ones are enough; else the next longer ones.
        ([90, *[10] * 5, 11, *[10] * 5, 1], 100, [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]),
        ([90, *[10] * 8, 15, 12, 1], 100, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ([50, *[10] * 6, 5], 100, [1, 2, 3, 4, 5, 6, 0]),
    ],
)
def test_clusters_are_taken_up_to_the_wanted_characters(lengths, wanted_chars, taken):
    assert fill(lengths, wanted_chars) == taken


def test_a_cluster_with_a_fifth_validates_before_shared_text_and_a_longer_one_after_it():
    before = fill([20] * 4 + [1] * 90, wanted_chars=100, num_unshared=4)
    after = fill([21] * 4 + [1] * 90, wanted_chars=100, num_unshared=4)

    assert before[:4] == [0, 1, 2, 3]
    assert after == list(range(4, 93))


def test_the_shortest_cluster_validates_if_all_are_too_long():
    texts = [make_text(seed, num_words) for seed, num_words in enumerate([900, 600, 500, 700])]

    assert validation_of(texts, validation_fraction=0.01) == [texts[2]]


# A sample of the n-grams


def survey_of(batches: list[list[str]]) -> Survey:
    survey = Survey(NEAR_DUPLICATES)
    for _ in survey.collect_ngrams(batches):
        pass
    return survey


def test_a_sample_of_the_ngrams_finds_the_same_shared_text_in_any_batches(monkeypatch):
    shared = make_text(0, num_words=200)
    sharing = [f"{shared} {make_text(seed, num_words=200)}" for seed in range(1, 21)]
    others = [make_text(seed, num_words=400) for seed in range(21, 41)]
    texts = sharing + others
    batches = [texts[i : i + 5] for i in range(0, len(texts), 5)]
    clusters = np.arange(40)

    all_ngrams = survey_of([texts]).shared_fractions(clusters)
    monkeypatch.setattr("lm.text.splits.MAX_NGRAMS", 5000)
    sample = survey_of([texts]).shared_fractions(clusters)

    assert all_ngrams[:20] == pytest.approx(196 / 396)
    assert sample[:20] == pytest.approx(196 / 396, abs=0.15)
    assert not sample[20:].any()
    assert np.array_equal(sample, survey_of(batches).shared_fractions(clusters))


# The test split


def split_texts(texts: list[str], **params) -> dict[str, list[str]]:
    """Return the documents of each split by its name."""
    split = choose_split(texts, split_params(**params))
    by_name = {name: [] for name in split.names}
    for text in texts:
        by_name[split.name_of(text)].append(text)
    return by_name


def test_a_test_split_leaves_validation_as_it_is():
    texts = [make_text(seed, num_words=20 + seed % 9) for seed in range(400)]
    texts += [text + " and more" for text in texts[:50]]

    without = split_texts(texts)
    with_test = split_texts(texts, test_documents=40)

    assert list(without) == ["train", "validation"]
    test = set(with_test["test"])
    assert len(test) == 40
    assert with_test["validation"] == without["validation"]
    assert with_test["train"] == [text for text in without["train"] if text not in test]


def test_what_shares_text_with_others_is_not_in_test_though_it_is_shorter():
    sharing = [with_licence(seed, num_words=20) for seed in range(1, 101)]
    others = [make_text(seed, num_words=120) for seed in range(101, 151)]

    test = split_texts(sharing + others, test_documents=10)["test"]

    assert len(test) == 10
    assert set(test) <= set(others)


@pytest.mark.parametrize(("test_documents", "are_tested"), [(20, False), (50, True)])
def test_long_documents_are_tested_only_if_the_short_ones_are_too_few(test_documents, are_tested):
    short = [make_text(seed) for seed in range(60)]
    long = [make_text(seed, num_words=1000) for seed in range(60, 65)]

    test = split_texts(short + long, test_documents=test_documents)["test"]

    assert bool(set(test) & set(long)) == are_tested
    assert _take(np.arange(3), 3, np.array([200, 1, 1]), 100, np.ones(3), 2, slack=1) == [1, 0]


def test_all_documents_but_those_of_validation_and_one_may_be_for_test():
    texts = [make_text(seed) for seed in range(20)]

    splits = split_texts(texts, test_documents=16)

    assert len(splits["validation"]) == 3
    assert len(splits["test"]) == 16
    assert len(splits["train"]) == 1
    with pytest.raises(DataError, match="test_documents is 17, but only 16 documents"):
        choose_split(texts, split_params(test_documents=17))

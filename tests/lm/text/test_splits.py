"""Splits: clusters are whole, validation shares little with training, and hashes decide."""

import random

import numpy as np
import pytest

from lm.core.errors import DataError
from lm.text.near_duplicates import NearDuplicates
from lm.text.splits import SplitParams, Survey, _fill, choose_split, in_batches, text_sha256

NEAR_DUPLICATES = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64)


def split_params(validation_fraction=0.1, max_shared_fraction=0.1, test_documents=None) -> SplitParams:
    return SplitParams(validation_fraction, test_documents, max_shared_fraction, NEAR_DUPLICATES)


def make_text(seed: int, num_words: int = 100) -> str:
    return " ".join(f"w{number}" for number in random.Random(seed).choices(range(5000), k=num_words))


def is_chosen(texts: list[str], params: SplitParams) -> list[bool]:
    """Return for each text if it is for validation."""
    split = choose_split(in_batches(texts), params)
    return [text_sha256(text) in split.validation.digests for text in texts]


def test_near_duplicates_stay_together():
    originals = [make_text(seed) for seed in range(300)]
    copies = [text.replace(text.split()[50], "edited") for text in originals[:150]]
    chosen = is_chosen(originals + copies, split_params())
    assert chosen[:150] == chosen[300:]
    assert 0.1 <= np.mean(chosen) < 0.11


def test_shared_text_stays_in_training():
    licence = make_text(0, num_words=60)
    short = [f"{licence} {make_text(seed, num_words=60)}" for seed in range(1, 51)]
    long = [f"{licence} {make_text(seed, num_words=1000)}" for seed in range(51, 71)]
    chosen = is_chosen(short + long, split_params(validation_fraction=0.2))
    assert not any(chosen[:50]) and sum(chosen[50:]) == 6


def test_what_shares_least_validates_if_all_is_shared():
    licence = make_text(0, num_words=60)
    texts = [f"{licence} {make_text(seed, num_words=40 + seed)}" for seed in range(1, 60)]
    validation = choose_split([texts], split_params(validation_fraction=0.2, max_shared_fraction=0.0)).validation
    assert validation.num_shared == len(validation.digests) >= 4
    assert {text_sha256(text) for text in texts[-len(validation.digests) :]} == validation.digests, (
        "the longest share least"
    )


def test_the_choice_depends_on_texts_alone():
    texts = [make_text(seed, num_words=20 + seed % 9) for seed in range(400)]
    texts += [text + " and more" for text in texts[:50]]
    chosen = {text for text, is_own in zip(texts, is_chosen(texts, split_params()), strict=True) if is_own}
    random.Random(1).shuffle(texts)
    again = choose_split([texts[:7], [], texts[7:]], split_params())
    assert {text_sha256(text) for text in chosen} == again.validation.digests


def test_similar_documents_alone_cannot_be_split():
    text = make_text(1)
    assert choose_split([[text, text + " more"]], split_params()) is None
    assert choose_split([[text, text]], split_params()) is None


def test_both_sides_have_a_document():
    texts = [make_text(seed) for seed in range(3)]
    assert sum(is_chosen(texts, split_params(validation_fraction=0.99))) == 2
    assert sum(is_chosen(texts, split_params(validation_fraction=0.01))) == 1


def fill(lengths: list[int], wanted_chars: float, num_unshared: int | None = None) -> list[int]:
    order = np.arange(len(lengths))
    return _fill(order, len(order) if num_unshared is None else num_unshared, np.array(lengths), wanted_chars)


def test_clusters_are_taken_up_to_the_wanted_characters():
    assert fill([10, 5, 5, 1], wanted_chars=10) == [1, 2], "10 are enough"
    assert fill([10, 5, 5, 1], wanted_chars=16) == [1, 2, 0]
    assert fill([10, 5, 5, 1], wanted_chars=15) == [1, 2], "two thirds are enough to leave out a long one"
    assert fill([15, 5], wanted_chars=10) == [0], "half as much again is not too long"
    assert fill([16, 5], wanted_chars=10) == [1]


def test_the_shortest_cluster_validates_if_all_are_too_long():
    assert fill([90, 60, 50, 70], wanted_chars=10) == [2]
    assert fill([90, 60, 50], wanted_chars=10) == [2], "also if it is the last"


def test_no_cluster_has_more_than_a_tenth_of_validation_if_the_short_ones_are_enough():
    assert fill([90, *[10] * 5, 11, *[10] * 5, 1], wanted_chars=100) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert fill([90, *[10] * 8, 15, 12, 1], wanted_chars=100) == [*range(1, 9), 9, 10], "else the next longer ones"
    assert fill([50, *[10] * 6, 5], wanted_chars=100) == [1, 2, 3, 4, 5, 6, 0]


def test_shared_text_validates_before_a_cluster_with_more_than_a_fifth():
    assert fill([20, 20, 20, 20, *[1] * 90], wanted_chars=100, num_unshared=4)[:4] == [0, 1, 2, 3]
    assert fill([21, 21, 21, 21, *[1] * 90], wanted_chars=100, num_unshared=4) == list(range(4, 93))


def test_a_split_says_what_it_holds():
    """A long document stays in training; those that share a licence come last."""
    licence = make_text(0, num_words=60)
    texts = [make_text(seed, num_words=50) for seed in range(1, 31)]
    texts += [f"{licence} {make_text(seed, num_words=60)}" for seed in range(31, 36)]
    texts += [make_text(99, num_words=2000)]
    texts += [texts[0] + " and more"]  # of the cluster of the first
    split = choose_split(in_batches(texts), split_params(validation_fraction=0.1))
    lengths = {text_sha256(text): len(text) for text in texts}
    total = sum(lengths.values())
    chosen = [lengths[each] for each in split.validation.digests]
    assert split.num_clusters == len(texts) - 1
    assert split.validation_fraction == pytest.approx(sum(chosen) / total)
    assert split.longest_fraction == pytest.approx(len(texts[35]) / total) and split.longest_fraction > 0.4
    assert split.validation.longest_share == pytest.approx(max(chosen) / sum(chosen))
    assert split.validation.num_shared == 0 and max(chosen) < 1000
    # All others together are less than is wanted, so that the documents with the licence are taken too.
    split = choose_split(in_batches(texts[1:35]), split_params(validation_fraction=0.8))
    shared = [text_sha256(text) for text in texts[30:35]]
    assert 0 < split.validation.num_shared == sum(each in split.validation.digests for each in shared) < 5


def test_a_sample_of_the_ngrams_finds_the_same_shared_text(monkeypatch):
    """If there are more n-grams than the limit, the lower half of the hashes is kept, repeatedly, until they fit."""
    licence = make_text(0, num_words=200)
    texts = [f"{licence} {make_text(seed, num_words=200)}" for seed in range(1, 21)]
    texts += [make_text(seed, num_words=400) for seed in range(21, 41)]
    fractions = []
    for limit in (1 << 23, 5000):
        monkeypatch.setattr("lm.text.splits.MAX_NGRAMS", limit)
        survey = Survey(5)
        for _ in survey.collect_ngrams(in_batches(texts)):
            pass
        kept = sum(len(hashes) for hashes, _ in survey._blocks)
        assert 0.3 * limit < kept <= limit or limit > 1 << 20
        fractions.append(survey.shared_fractions(np.arange(40)))
    assert fractions[0][:20] == pytest.approx(196 / 396) and not fractions[0][20:].any()
    assert fractions[1][:20] == pytest.approx(196 / 396, abs=0.15) and not fractions[1][20:].any()


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_sample_of_the_ngrams_does_not_depend_on_the_batches(monkeypatch, batch_size):
    monkeypatch.setattr("lm.text.splits.MAX_NGRAMS", 12_000)
    early = [make_text(seed, num_words=400) for seed in range(20)]
    twins = [text.replace("w1", "v1") for text in early]
    texts = early + [make_text(seed, num_words=400) for seed in range(100, 140)] + twins

    def shared_fractions(size: int) -> np.ndarray:
        survey = Survey(5)
        for _ in survey.collect_ngrams([texts[i : i + size] for i in range(0, len(texts), size)]):
            pass
        return survey.shared_fractions(np.arange(len(texts)))

    assert np.array_equal(shared_fractions(batch_size), shared_fractions(len(texts)))


def test_what_shares_exactly_the_limit_is_not_held_to_share_more(monkeypatch):
    texts = [make_text(seed) for seed in range(20)]
    for shared, is_more in ((0.1, False), (0.11, True)):
        monkeypatch.setattr(Survey, "shared_fractions", lambda self, clusters, found=shared: np.full(20, found))
        split = choose_split([texts], split_params(validation_fraction=0.2, max_shared_fraction=0.1))
        assert (split.validation.num_shared > 0) == is_more


# The test split.


def split_texts(texts: list[str], **params) -> dict[str, list[str]]:
    """Return the documents of each split by its name."""
    split = choose_split(in_batches(texts), split_params(**params))
    by_name = {name: [] for name in split.names}
    for text in texts:
        by_name[split.name_of(text)].append(text)
    return by_name


def test_no_test_split_is_chosen_unless_it_is_asked_for():
    texts = [make_text(seed) for seed in range(20)]
    assert list(split_texts(texts)) == ["train", "validation"]
    assert choose_split([texts], split_params()).test is None


def test_a_test_split_leaves_validation_as_it_is():
    texts = [make_text(seed, num_words=20 + seed % 9) for seed in range(400)]
    texts += [text + " and more" for text in texts[:50]]
    without = split_texts(texts)
    with_test = split_texts(texts, test_documents=40)
    assert with_test["validation"] == without["validation"]
    assert len(with_test["test"]) == 40
    held_out = set(with_test["test"])
    assert with_test["train"] == [text for text in without["train"] if text not in held_out]


def test_near_duplicates_of_a_test_document_are_in_test_too():
    originals = [make_text(seed) for seed in range(200)]
    copies = {text: text.replace(text.split()[50], "edited") for text in originals}
    splits = split_texts(originals + list(copies.values()), test_documents=60)
    held_out = set(splits["test"])
    assert len(held_out) == 60
    assert [text for text in originals if (text in held_out) != (copies[text] in held_out)] == []


def test_what_shares_text_with_others_is_not_in_test():
    licence = make_text(0, num_words=60)
    sharing = [f"{licence} {make_text(seed)}" for seed in range(1, 101)]
    others = [make_text(seed) for seed in range(101, 151)]
    split = choose_split([sharing + others], split_params(test_documents=20))
    assert {text_sha256(text) for text in others} > split.test.digests
    assert split.test.num_shared == 0


def test_the_test_split_depends_on_texts_alone():
    texts = [make_text(seed) for seed in range(100)]
    chosen = set(split_texts(texts, test_documents=10)["test"])
    random.Random(1).shuffle(texts)
    assert set(split_texts(texts, test_documents=10)["test"]) == chosen


def test_long_documents_are_tested_only_if_the_short_ones_are_too_few():
    short = [make_text(seed) for seed in range(60)]
    long = [make_text(seed, num_words=2000) for seed in range(60, 65)]
    assert not set(long) & set(split_texts(short + long, test_documents=20)["test"])
    assert set(long) & set(split_texts(short + long, test_documents=46)["test"])


def test_more_documents_than_there_are_is_refused():
    texts = [make_text(seed) for seed in range(20)]
    with pytest.raises(DataError, match="test_documents is 17, but only 16 documents"):
        choose_split([texts], split_params(test_documents=17))  # validation has three, and training needs one
    splits = split_texts(texts, test_documents=16)
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [1, 3, 16]


def test_a_number_that_whole_clusters_cannot_have_is_refused():
    texts = [make_text(seed) for seed in range(20)]
    pairs = texts + [text.replace(text.split()[50], "edited") for text in texts]
    with pytest.raises(DataError, match="test_documents is 5, but only 4 documents"):
        choose_split([pairs], split_params(test_documents=5))

"""Near-duplicates: planted ones are found, unrelated ones are not, and hashes are alike on every machine."""

import hashlib
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.text import near_duplicates
from lm.text.near_duplicates import NearDuplicates, _rows_of_band, _signatures, find_clusters, ngram_hashes
from support.properties import check_examples

PARAMS = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64)


def make_text(seed: int, num_words: int = 300) -> str:
    """Return words of a vocabulary of 5,000, drawn at random."""
    return " ".join(f"w{number}" for number in random.Random(seed).choices(range(5000), k=num_words))


def edit(text: str, num_edits: int, seed: int) -> str:
    """Replace words at random places, each of which changes up to five n-grams of five words."""
    words = text.split()
    draw = random.Random(seed)
    for place in draw.sample(range(len(words)), num_edits):
        words[place] = f"edited{place}"
    return " ".join(words)


def clusters_of(texts: list[str], params: NearDuplicates = PARAMS) -> list[int]:
    return find_clusters([texts], params).tolist()


@pytest.fixture
def clusters_of_signatures(monkeypatch):
    """Return a function that clusters documents with these signatures (D, 64)."""

    def cluster(signatures, params: NearDuplicates = PARAMS) -> list[int]:
        monkeypatch.setattr(near_duplicates, "_signatures", lambda batches, params: np.array(signatures, np.uint32))
        return clusters_of([], params)

    return cluster


def test_planted_near_duplicates_are_found():
    originals = [make_text(seed) for seed in range(200)]
    copies = [edit(text, num_edits=4, seed=seed) for seed, text in enumerate(originals)]  # similarity about 0.87
    distant = [edit(text, num_edits=40, seed=seed) for seed, text in enumerate(originals)]  # about 0.35
    found = clusters_of(originals + copies + distant, NearDuplicates(0.7, ngram_words=5, num_permutations=128))
    assert found[:200] == list(range(200))
    assert sum(copy == number for number, copy in enumerate(found[200:400])) >= 198
    assert found[400:] == list(range(400, 600))


def test_clusters_are_those_of_all_pairs():
    texts = [edit(make_text(seed % 10), 4 + seed % 23, seed) for seed in range(400)]
    signatures = _signatures([texts], PARAMS)
    rows = _rows_of_band(PARAMS.threshold, PARAMS.num_permutations)
    expected = np.arange(len(texts))
    for left, right in itertools.combinations(range(len(texts)), 2):
        agree = signatures[left] == signatures[right]
        shares_a_band = agree.reshape(-1, rows).all(axis=1).any()
        if shares_a_band and agree.mean() >= PARAMS.threshold:
            old, new = sorted((expected[left], expected[right]), reverse=True)
            expected[expected == old] = new
    assert 20 < len(set(expected.tolist())) < 350
    assert clusters_of(texts) == expected.tolist()


@pytest.mark.parametrize(
    ("threshold", "num_permutations", "least"),
    [
        (0.7, 64, 45),  # 44.8 hashes
        (0.55, 100, 55),  # 0.55 × 100 is a little more than 55 as a float
        (1.0, 32, 32),
    ],
)
def test_a_pair_at_the_threshold_is_a_near_duplicate(clusters_of_signatures, threshold, num_permutations, least):
    params = NearDuplicates(threshold, ngram_words=5, num_permutations=num_permutations)
    first = np.arange(num_permutations)
    for num_equal, expected in ((least, [0, 0]), (least - 1, [0, 1])):
        second = np.where(first < num_equal, first, first + 100)
        assert clusters_of_signatures([first, second], params) == expected, num_equal


@pytest.mark.parametrize(("threshold", "num_permutations"), [(0.5, 64), (0.7, 64), (0.8, 128), (0.9, 64)])
def test_a_pair_at_the_threshold_is_compared_with_a_probability_of_98_percent(threshold, num_permutations):
    """A band of r hashes agrees with probability threshold^r, and one of n // r bands is enough."""

    def recall(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (num_permutations // rows)

    rows = _rows_of_band(threshold, num_permutations)
    assert recall(rows) >= 0.98 > recall(rows + 1)
    assert _rows_of_band(0.01, 16) == 1, "where no band is enough"


def test_a_pair_is_compared_if_any_band_agrees(clusters_of_signatures):
    """64 hashes are 16 bands of 4. The two documents differ in one hash of each band but `agreeing`."""
    for agreeing in (*range(16), None):
        signatures = np.stack([np.arange(64), np.arange(64)])
        different = [4 * band + band % 4 for band in range(16) if band != agreeing]
        signatures[1, different] += 100
        assert clusters_of_signatures(signatures) == ([0, 1] if agreeing is None else [0, 0]), agreeing


def test_the_members_of_a_bucket_are_compared_with_each_other(clusters_of_signatures):
    """All share one band. Copies of b and of the similar c are one cluster, copies of a are another, d is alone."""
    a = np.arange(64)
    b = np.where(a < 4, a, a + 100)
    d = np.where(a < 4, a, a + 900)
    c = b.copy()
    c[4::4] += 100  # one hash of each other band, so that b and c share no other one
    assert clusters_of_signatures([a, b, c]) == [0, 1, 1]
    assert clusters_of_signatures([a, b, b, d, c, c, a]) == [0, 1, 1, 3, 1, 1, 0]


def test_what_is_a_word():
    """Runs of letters, digits and underscores, whose case counts outside ASCII alone; in Chinese, each character."""

    def words(text: str) -> list[int]:
        hashes, _ = ngram_hashes([text], 1)
        return hashes.tolist()

    assert words("snake_case AZ az") == [*words("snake_case"), *words("az"), *words("AZ")]
    assert len(words("a_b")) == 1 and len(words("a-b")) == 2 and len(words("a1b2")) == 1
    assert len(words("x@y[z`q{r")) == 5
    assert words("é") != words("É") and len(words("naïve")) == 1
    assert words("漢字 ab") == words("漢字ab") and len(words("漢字ab")) == 3 and len(words("かな")) == 2
    assert len(words("\u2ffba")) == 1 and len(words("a\u3000")) == 2, "from U+3000 on"


def test_ngrams_are_runs_of_words_and_a_shorter_text_is_one_hash():
    for num_words, expected in ((0, 1), (1, 1), (4, 1), (5, 1), (6, 2)):
        text = " ".join("abcdef"[:num_words])
        hashes, offsets = ngram_hashes([text], 5)
        assert offsets.tolist() == [0, expected] and len(hashes) == expected
    hashes, offsets = ngram_hashes(["a b c d", "A b c d", "a, b-c\nd E", "A B C D e", "a b c de f"], 5)
    assert offsets.tolist() == [0, 1, 2, 3, 4, 5]
    assert hashes[0] != hashes[1], "compared as a whole"
    assert hashes[2] == hashes[3] != hashes[4]


def test_hashes_and_signatures_are_the_committed_ones():
    """The digests are those of the pinned version of rensa."""
    texts = [make_text(1), "Zoë said: 你好, world", "few"]
    hashes, offsets = ngram_hashes(texts, 5)
    assert offsets.tolist() == [0, 296, 297, 298]
    assert hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()[:16] == "2483cbcfc72c0e87"
    assert hashlib.sha256(_signatures([texts], PARAMS).astype("<u4").tobytes()).hexdigest()[:16] == "e88c9cb70b5a29ea"


# Properties.


FEW_WORDS = NearDuplicates(threshold=0.5, ngram_words=2, num_permutations=32)
WORDS = st.sampled_from(["red", "green", "blue", "Zoë", "你好", "x1", "-", "...", ""])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=20), max_size=14)


@check_examples
@given(texts=TEXTS, data=st.data())
def test_equal_texts_cluster_whatever_their_order_and_batches(texts, data):
    found = find_clusters([texts[:3], texts[3:]], FEW_WORDS)
    assert [found[texts.index(text)] for text in texts] == found.tolist()
    assert (found <= np.arange(len(texts))).all() and (found[found] == found).all()
    assert found.tolist() == find_clusters([texts], FEW_WORDS).tolist()

    order = data.draw(st.permutations(range(len(texts))))
    moved = np.empty_like(found)
    moved[order] = find_clusters([[texts[i] for i in order]], FEW_WORDS)
    for a, b in itertools.combinations(range(len(texts)), 2):
        assert (found[a] == found[b]) == (moved[a] == moved[b])

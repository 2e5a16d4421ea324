"""Near-duplicates: planted ones are found, unrelated ones are not, and hashes are alike on every machine."""

import dataclasses
import hashlib
import itertools
import random

import numpy as np
import pytest

from lm.text import near_duplicates
from lm.text.near_duplicates import NearDuplicates, _rows_of_band, _signatures, find_clusters, ngram_hashes

PARAMS = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=64, rule=1)


def make_text(seed: int) -> str:
    """Return 300 words of a vocabulary of 5,000, drawn at random."""
    numbers = random.Random(seed).choices(range(5000), k=300)
    return " ".join(f"w{number}" for number in numbers)


def edit(text: str, num_edits: int, seed: int) -> str:
    """Replace words at random places, each of which changes up to five n-grams of five words."""
    words = text.split()
    places = random.Random(seed).sample(range(len(words)), num_edits)
    for place in places:
        words[place] = f"edited{place}"
    return " ".join(words)


def clusters_of(texts: list[str], params: NearDuplicates = PARAMS) -> list[int]:
    return find_clusters([texts], params).tolist()


# Which texts are near-duplicates


def test_clusters_are_those_of_all_pairs():
    texts = [edit(make_text(seed % 10), 4 + seed % 23, seed) for seed in range(400)]

    clusters = clusters_of(texts)

    signatures = _signatures([texts], PARAMS)
    rows_of_band = _rows_of_band(PARAMS.threshold, PARAMS.num_permutations)
    expected = np.arange(len(texts))
    for left, right in itertools.combinations(range(len(texts)), 2):
        is_equal = signatures[left] == signatures[right]
        shares_a_band = is_equal.reshape(-1, rows_of_band).all(axis=1).any()
        if shares_a_band and is_equal.mean() >= PARAMS.threshold:
            smaller, larger = sorted((expected[left], expected[right]))
            expected[expected == larger] = smaller
    assert clusters == expected.tolist()
    assert 20 < len(set(clusters)) < 350


@pytest.fixture
def clusters_of_signatures(monkeypatch):
    """Return a function that clusters documents with these signatures (D, 64)."""

    def cluster(signatures, params: NearDuplicates = PARAMS) -> list[int]:
        given = np.array(signatures, np.uint32)
        monkeypatch.setattr(near_duplicates, "_signatures", lambda batches, params: given)
        return clusters_of([], params)

    return cluster


@pytest.mark.parametrize(
    ("threshold", "num_permutations", "least"),
    [
        (0.7, 64, 45),  # 44.8 hashes
        (0.55, 100, 55),  # 0.55 × 100 is a little more than 55 as a float
        (1.0, 32, 32),
    ],
)
def test_a_pair_at_the_threshold_is_a_near_duplicate(clusters_of_signatures, threshold, num_permutations, least):
    params = NearDuplicates(threshold, ngram_words=5, num_permutations=num_permutations, rule=1)
    first = np.arange(num_permutations)
    at_the_threshold = np.where(first < least, first, first + 100)
    below = np.where(first < least - 1, first, first + 100)

    assert clusters_of_signatures([first, at_the_threshold], params) == [0, 0]
    assert clusters_of_signatures([first, below], params) == [0, 1]


@pytest.mark.parametrize(("threshold", "num_permutations"), [(0.5, 64), (0.8, 128)])
def test_a_pair_at_the_threshold_is_compared_with_a_probability_of_98_percent(threshold, num_permutations):
    """A band of r hashes agrees with probability threshold^r, and one of n // r bands is enough."""

    def probability(rows: int) -> float:
        num_bands = num_permutations // rows
        return 1 - (1 - threshold**rows) ** num_bands

    rows = _rows_of_band(threshold, num_permutations)

    assert probability(rows) >= 0.98
    assert probability(rows + 1) < 0.98
    assert _rows_of_band(0.01, 16) == 1, "where no band is enough it has one hash"


def test_a_pair_is_compared_if_any_band_agrees(clusters_of_signatures):
    """64 hashes are 16 bands of 4. The documents differ in one hash of each band but one, and last in all bands."""
    first = np.arange(64)

    for agreeing in range(17):
        second = first.copy()
        for band in range(16):
            if band != agreeing:
                second[4 * band + band % 4] += 100
        assert clusters_of_signatures([first, second]) == [0, 0 if agreeing < 16 else 1]


# Words, n-grams and their hashes


def words(text: str, rule: int = 1) -> list[int]:
    """Return the hash of each word."""
    hashes, _ = ngram_hashes([text], NearDuplicates(0.7, ngram_words=1, num_permutations=64, rule=rule))
    return hashes.tolist()


def test_hashes_and_signatures_are_the_committed_ones():
    """The digests are those of the pinned version of rensa."""
    texts = [make_text(1), "Zoë said: 你好, world", "few"]

    hashes, offsets = ngram_hashes(texts, PARAMS)
    signatures = _signatures([texts], PARAMS)

    assert offsets.tolist() == [0, 296, 297, 298]
    hashes_sha256 = hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()
    signatures_sha256 = hashlib.sha256(signatures.astype("<u4").tobytes()).hexdigest()
    assert hashes_sha256[:16] == "2483cbcfc72c0e87"
    assert signatures_sha256[:16] == "e88c9cb70b5a29ea"


@pytest.mark.parametrize(
    ("text", "other", "rules"),
    [
        pytest.param("caf\u00e9 na\u00efve", "cafe\u0301 nai\u0308ve", [2, 3], id="composed and decomposed"),
        pytest.param("한국어 문장", "\u1112\u1161\u11ab국어 문장", [2, 3], id="Hangul in parts"),
        pytest.param("Ａｂｃ１ ｶﾞ", "abc1 ガ", [2, 3], id="widths"),
        pytest.param("“don’t” — naïve", '"don\'t" - naïve', [2, 3], id="quotation marks and dashes"),
        pytest.param("Stra\u00adße\u200b\ufeff", "straße", [2, 3], id="invisible characters"),
        pytest.param("❤️ sun\u034fny \u200fday\u061c, 1\ufe0f\u20e3", "❤ sunny day 1", [3], id="more of them"),
        pytest.param("🏴\U000e0067\U000e007f 葛\U000e0100 ab\u3164", "🏴 葛 ab", [3], id="tags and fillers"),
        pytest.param("café Đà ёлка й", "cafe Đa елка и", [3], id="accents"),
        pytest.param("שָׁלוֹם كِتَابٌ أحمد كـــتاب", "שלום كتاب احمد كتاب", [3], id="vowel marks"),
        pytest.param("کتابی", "كتابي", [3], id="Persian and Arabic keyboards"),
        pytest.param("हिन्दी", "हन्द", [], id="vowels of Hindi"),
        pytest.param("が", "か", [], id="voiced syllables"),
        pytest.param("ø", "o", [], id="strokes"),
        pytest.param("— “!”", "— “?”", [], id="no word"),
    ],
)
def test_rules_tell_which_spellings_are_one_text(text, other, rules):
    """Those of a rule never change, so that its splits stay."""
    equal = [rule for rule in (2, 3) if words(text, rule) == words(other, rule)]
    assert equal == rules

    for rule in (2, 3):
        as_a_whole, _ = ngram_hashes([text, other], dataclasses.replace(PARAMS, rule=rule))
        assert (as_a_whole[0] == as_a_whole[1]) == (rule in rules)


@pytest.mark.parametrize(
    ("text", "num_words"),
    [
        ("snake_case, x-1", 3),
        ("हिन्दी में लिखा", 3),
        ("한국어 말", 4),  # as by rule 1, a syllable is a word
        ("漢字。かな ab", 5),
        ("བོད་སྐད་ཡིག", 3),  # Tibetan syllables
        ("สวัสดี ครับ", 10),
    ],
)
def test_by_rule_2_each_letter_begins_a_word_where_no_space_does(text, num_words):
    assert len(words(text, rule=2)) == num_words


def test_by_rule_2_twelve_letters_decide_a_word_without_spaces():
    text = "กขคงจชซญดตถทน"
    whole, twelve, eleven = (words(each, rule=2)[0] for each in (text, text[:12], text[:11]))

    assert whole == twelve != eleven

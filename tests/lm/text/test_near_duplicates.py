"""Near-duplicates: planted ones are found, unrelated ones are not, and hashes are alike on every machine."""

import hashlib
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rensa import RMinHash

from lm.core.errors import ParamsError
from lm.core.params import coerce
from lm.text import near_duplicates
from lm.text.near_duplicates import NearDuplicates, _rows_of_band, _signatures, find_clusters, ngram_hashes
from support.properties import check_examples

PARAMS = NearDuplicates(threshold=0.7, ngram_words=5, num_permutations=128)


def make_text(seed: int, num_words: int = 300) -> str:
    """Return words of a vocabulary of 5,000, drawn at random."""
    return " ".join(f"w{number}" for number in random.Random(seed).choices(range(5000), k=num_words))


def edit(text: str, num_edits: int, seed: int) -> str:
    """Replace words at random places, each of which changes up to five n-grams of five words."""
    words, draw = text.split(), random.Random(seed)
    for place in draw.sample(range(len(words)), num_edits):
        words[place] = f"edited{place}"
    return " ".join(words)


def clusters_of(texts: list[str], params: NearDuplicates = PARAMS) -> list[int]:
    """Return the cluster of each text."""
    return find_clusters([texts], params).tolist()


def test_planted_near_duplicates_are_found():
    originals = [make_text(seed) for seed in range(200)]
    copies = [edit(text, num_edits=4, seed=seed) for seed, text in enumerate(originals)]  # similarity about 0.87
    distant = [edit(text, num_edits=40, seed=seed) for seed, text in enumerate(originals)]  # about 0.35
    found = clusters_of(originals + copies + distant)
    assert found[:200] == list(range(200))
    assert sum(copy == number for number, copy in enumerate(found[200:400])) >= 198
    assert found[400:] == list(range(400, 600))


def test_case_and_punctuation_do_not_count():
    text = make_text(1)
    assert clusters_of([text, text.upper().replace(" ", ",\n")]) == [0, 0]
    assert clusters_of(["one two three four fives", "one two three fourfives and"]) == [0, 1]


def test_text_without_spaces_has_a_word_per_character():
    draw = random.Random(1)
    text = "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(200))
    edited = text[:100] + "字" + text[101:]
    assert clusters_of([text, edited, text[::-1]]) == [0, 0, 2]


def test_clusters_are_those_of_all_pairs():
    texts = [edit(make_text(seed % 10), 4 + seed % 23, seed) for seed in range(400)]
    signatures, rows = _signatures([texts], PARAMS), _rows_of_band(PARAMS.threshold, PARAMS.num_permutations)
    expected = np.arange(len(texts))
    for left, right in itertools.combinations(range(len(texts)), 2):
        agree = signatures[left] == signatures[right]
        shares_a_band = agree[: len(agree) // rows * rows].reshape(-1, rows).all(axis=1).any()
        if shares_a_band and agree.mean() >= PARAMS.threshold:
            old, new = sorted((expected[left], expected[right]), reverse=True)
            expected[expected == old] = new
    assert 20 < len(set(expected.tolist())) < 350
    assert clusters_of(texts) == expected.tolist()


def signatures_that_agree(num_agree: int, num_hashes: int) -> np.ndarray:
    """Return two signatures (2, num_hashes) that are equal in the first `num_agree` hashes alone."""
    first = np.arange(num_hashes, dtype=np.uint32)
    second = np.where(np.arange(num_hashes) < num_agree, first, first + num_hashes).astype(np.uint32)
    return np.stack([first, second])


@pytest.mark.parametrize(
    ("threshold", "num_permutations", "least"),
    [
        (0.5, 64, 32),
        (0.7, 64, 45),  # 44.8 hashes
        (0.55, 100, 55),  # 0.55 × 100 is a little more than 55 as a float
        (0.85, 128, 109),  # 108.8
        (1.0, 32, 32),
    ],
)
def test_a_pair_at_the_threshold_is_a_near_duplicate(monkeypatch, threshold, num_permutations, least):
    params = NearDuplicates(threshold, ngram_words=5, num_permutations=num_permutations)
    for num_agree, expected in ((least, [0, 0]), (least - 1, [0, 1])):
        signatures = signatures_that_agree(num_agree, num_permutations)
        monkeypatch.setattr(near_duplicates, "_signatures", lambda batches, params, found=signatures: found)
        assert clusters_of(["", ""], params) == expected, num_agree


@pytest.mark.parametrize(("threshold", "num_permutations"), [(0.5, 64), (0.7, 64), (0.7, 128), (0.8, 128), (0.9, 64)])
def test_a_pair_at_the_threshold_is_compared_with_a_probability_of_98_percent(threshold, num_permutations):
    """A band of r hashes agrees with probability threshold^r, and one of n // r bands is enough."""

    def recall(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (num_permutations // rows)

    rows = _rows_of_band(threshold, num_permutations)
    assert recall(rows) >= 0.98 > recall(rows + 1)
    assert _rows_of_band(0.01, 16) == 1, "where no band is enough"


def test_a_pair_is_compared_if_any_band_agrees(monkeypatch):
    """64 hashes are 16 bands of 4. The two documents differ in one hash of each band but `agreeing`."""
    params = NearDuplicates(0.7, ngram_words=5, num_permutations=64)
    for agreeing in (*range(16), None):
        signatures = np.stack([np.arange(64), np.arange(64)]).astype(np.uint32)
        different = [4 * band + band % 4 for band in range(16) if band != agreeing]
        signatures[1, different] += 100
        monkeypatch.setattr(near_duplicates, "_signatures", lambda batches, params, found=signatures: found)
        assert clusters_of(["", ""], params) == ([0, 1] if agreeing is None else [0, 0]), agreeing


def test_the_members_of_a_bucket_are_compared_with_each_other(monkeypatch):
    """Of three documents that share a band the second and the third are alike, and neither is like the first."""
    params = NearDuplicates(0.7, ngram_words=5, num_permutations=64)
    signatures = np.tile(np.arange(64, dtype=np.uint32), (3, 1))
    signatures[1:, 4:] += 100
    signatures[2, 4::4] += 100  # one of each other band, so that these two share no other one
    monkeypatch.setattr(near_duplicates, "_signatures", lambda batches, params: signatures)
    assert clusters_of(["", "", ""], params) == [0, 1, 1]


def test_what_is_a_word():
    """Runs of letters, digits and underscores, whose case counts outside ASCII alone; in Chinese, each character."""

    def words(text: str) -> list[int]:
        hashes, _ = ngram_hashes([text], 1)
        return hashes.tolist()

    assert words("snake_case AZ az") == [*words("snake_case"), *words("az"), *words("AZ")]
    assert len(words("a_b")) == 1 and len(words("a-b")) == 2 and len(words("a1b2")) == 1
    assert words("@[`{") == words("@[`{") and len(words("x@y[z`q{r")) == 5
    assert words("é") != words("É") and len(words("naïve")) == 1
    assert len(words("漢字")) == 2 and len(words("a\u3000")) == 2 and len(words("かな")) == 2
    assert len(words("a\u2ffb")) == 1, "below U+3000"


def test_a_text_of_fewer_words_than_an_ngram_is_one_hash():
    for num_words, expected in ((0, 1), (1, 1), (4, 1), (5, 1), (6, 2)):
        text = " ".join("abcdef"[:num_words])
        hashes, offsets = ngram_hashes([text], 5)
        assert offsets.tolist() == [0, expected] and len(hashes) == expected
    short, _ = ngram_hashes(["a b c d", "A b c d"], 5)
    assert short[0] != short[1], "compared as a whole"
    whole, _ = ngram_hashes(["a b c d e", "A b c d e"], 5)
    assert whole[0] == whole[1]


def test_hashes_and_signatures_are_the_committed_ones():
    hashes, offsets = ngram_hashes([make_text(1), "Zoë said: 你好, world", "few"], 5)
    assert offsets.tolist() == [0, 296, 297, 298]
    assert hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()[:16] == "8999c29b4f7450e1"
    rows = [RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, n, 1).to_rows() for n in (64, 100, 128)]
    signatures = np.concatenate([np.array(row, "<u4") for row in rows], axis=1)
    assert hashlib.sha256(signatures.tobytes()).hexdigest()[:16] == "fe5c47d753f23964", "of the pinned rensa"


def test_a_long_document_is_hashed_block_by_block():
    words = make_text(1, num_words=400_000).split()
    text = " ".join(words)
    hashes, _ = ngram_hashes([text], 5)
    assert len(hashes) == 399_996
    pieces = [" ".join(words[begin : begin + 10_004]) for begin in range(0, 399_996, 10_000)]
    assert np.array_equal(np.unique(hashes), np.unique(ngram_hashes(pieces, 5)[0])), "no word is cut"
    tracemalloc.start()
    ngram_hashes([text], 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()  # another test of this process would find this peak
    assert peak < 20 * len(text)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((1.1, 5, 128), "threshold is 1.1, needed: above 0, at most 1"),
        ((float("nan"), 5, 128), "threshold is nan"),
        ((0.7, 0, 128), "ngram_words is 0, needed: 1 to 100"),
        ((0.7, 5, 8), "num_permutations is 8, needed: 16 to 4096"),
    ],
)
def test_values_outside_their_range_are_refused(values, problem):
    section = dict(zip(("threshold", "ngram_words", "num_permutations"), values, strict=True))
    with pytest.raises(ParamsError, match=problem):
        coerce(section, NearDuplicates, "near_duplicates", "presets.yaml")


# Properties.


FEW_WORDS = NearDuplicates(threshold=0.5, ngram_words=2, num_permutations=32)
WORDS = st.sampled_from(["red", "green", "blue", "Zoë", "你好", "x1", "-", "...", ""])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=20), max_size=14)


@check_examples
@given(texts=TEXTS)
def test_equal_texts_cluster(texts):
    found = find_clusters([texts], FEW_WORDS)
    assert found.shape == (len(texts),) and found.dtype == np.int64
    assert [found[texts.index(text)] for text in texts] == found.tolist()
    assert (found <= np.arange(len(texts))).all()
    assert (found[found] == found).all()


@check_examples
@given(texts=TEXTS, data=st.data())
def test_order_and_batches_change_no_cluster(texts, data):
    order = data.draw(st.permutations(range(len(texts))))
    found = find_clusters([texts[:3], texts[3:]], FEW_WORDS)
    assert found.tolist() == find_clusters([texts], FEW_WORDS).tolist(), "nor do the borders of batches"
    moved = find_clusters([[texts[i] for i in order]], FEW_WORDS)
    together = lambda clusters: {(a, b) for a in range(len(texts)) for b in range(a) if clusters[a] == clusters[b]}  # noqa: E731
    back = np.empty_like(moved)
    back[order] = moved
    assert together(found) == together(back)

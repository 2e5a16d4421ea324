"""Near-duplicates: planted ones are found, unrelated ones are not, and hashes are alike on every machine."""

import hashlib
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from rensa import RMinHash

from lm.core.errors import ParamsError
from lm.core.params import coerce
from lm.text.near_duplicates import NearDuplicates, _rows_of_band, _signatures, find_clusters, ngram_hashes

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


def test_planted_near_duplicates_are_found_and_unrelated_texts_are_not():
    originals = [make_text(seed) for seed in range(200)]
    copies = [edit(text, num_edits=4, seed=seed) for seed, text in enumerate(originals)]  # similarity about 0.87
    distant = [edit(text, num_edits=40, seed=seed) for seed, text in enumerate(originals)]  # about 0.35
    found = clusters_of(originals + copies + distant)
    assert found[:200] == list(range(200))
    assert sum(copy == number for number, copy in enumerate(found[200:400])) >= 198
    assert found[400:] == list(range(400, 600))


def test_a_chain_is_one_cluster_known_by_its_first_document():
    first = make_text(1)
    second = edit(first, 6, seed=1)
    third = edit(second, 6, seed=2)
    params = NearDuplicates(threshold=0.75, ngram_words=5, num_permutations=512)
    assert clusters_of([first, third], params) == [0, 1], "the ends are too far apart"
    assert clusters_of([make_text(2), third, first, second], params) == [0, 1, 1, 1]


def test_equal_texts_cluster_however_short():
    assert clusters_of(["", "a", "", "b", "a", "!!!", "???", "!!!"]) == [0, 1, 0, 3, 1, 5, 6, 5]


def test_words_are_compared_without_case_and_punctuation_but_not_letter_by_letter():
    text = make_text(1)
    assert clusters_of([text, text.upper().replace(" ", ",\n")]) == [0, 0]
    assert clusters_of(["one two three four fives", "one two three fourfives and"]) == [0, 1]


def test_text_without_spaces_has_a_word_per_character():
    draw = random.Random(1)
    text = "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(200))
    edited = text[:100] + "字" + text[101:]
    assert clusters_of([text, edited, text[::-1]]) == [0, 0, 2]


def test_many_equal_documents_are_not_compared_in_pairs():
    texts = [make_text(0)] * 20_000 + [make_text(1)]
    assert np.bincount(clusters_of(texts), minlength=20_001)[[0, 20_000]].tolist() == [20_000, 1]


def test_clusters_are_those_of_comparing_all_pairs_that_share_a_band():
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


def test_hashes_and_signatures_are_alike_on_every_machine():
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
        ((0.0, 5, 128), "threshold is 0.0, needed: above 0, at most 1"),
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

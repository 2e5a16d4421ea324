"""Pairs come in twos that exchange their words, the same for one seed, and never with a word that may be right."""

import collections

import numpy as np

from extras.probes.pair_choice import LEAST_PAIRS, MAX_USES, Place, choose_pairs, neighbours

LETTERS = "abcdefgh"


def places(count=400, num_documents=20) -> list[Place]:
    """Return places of one letter each, in two groups."""
    return [Place("kind", i % num_documents, i, LETTERS[i % 6], (i % 2,)) for i in range(count)]


def choose(chosen: list[Place], num_pairs: int = 100, seed: int = 1):
    return choose_pairs(chosen, num_pairs, np.random.default_rng(seed))


def test_words_of_one_group_are_exchanged_so_that_each_is_right_as_often_as_wrong():
    pairs = choose(places())
    counts = collections.Counter((pair.right, pair.wrong) for pair in pairs)
    assert len(pairs) == 100 and all(counts[right, wrong] == counts[wrong, right] for right, wrong in counts)
    assert all((LETTERS.index(pair.right) - LETTERS.index(pair.wrong)) % 2 == 0 for pair in pairs)
    assert pairs == sorted(pairs) == choose(places()) != choose(places(), seed=2)


def test_a_word_that_may_be_right_is_never_the_wrong_one():
    refusing = [place._replace(refused=frozenset("ab")) if place.document < 5 else place for place in places()]
    assert any(pair.wrong in "ab" for pair in choose(places()) if pair.document < 5)
    assert not any(pair.wrong in "ab" for pair in choose(refusing) if pair.document < 5)
    assert choose([Place("kind", i, 0, ("word", "words")[i % 2], ()) for i in range(200)]) == []


def test_documents_take_turns_and_places_are_used_again_only_if_they_are_too_few():
    long = [Place("kind", 0, i, LETTERS[i % 7], ()) for i in range(500)]
    others = [Place("kind", i, 0, LETTERS[i % 7], ()) for i in range(1, 101)]
    assert max(collections.Counter(pair.document for pair in choose(long + others, 90)).values()) == 1
    assert max(collections.Counter(pair.character for pair in choose(places(60), 60)).values()) == 1
    few = choose(places(40), 60)
    assert len(few) == len(set(few)) == 60
    assert 1 < max(collections.Counter(pair.character for pair in few).values()) <= MAX_USES
    assert choose(places(), LEAST_PAIRS - 1) == [], "a kind with few pairs is left out"
    assert neighbours("(a)", 1, 2) == ("(", ")") and neighbours("a", 0, 1) == ("", "")

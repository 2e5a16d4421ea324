"""Pairs come in twos that exchange their words, the same for one seed, and never with a word that may be right."""

import collections

import numpy as np

from extras.probes import pair_choice
from extras.probes.pair_choice import LEAST_PAIRS, MAX_USES, Place, choose_pairs, neighbours

LETTERS = "abcdefgh"


def places(count=400, num_documents=20) -> list[Place]:
    """Return places of one letter each, in two groups."""
    return [Place("kind", i % num_documents, i, LETTERS[i % 6], (i % 2,)) for i in range(count)]


def choose(chosen: list[Place], num_pairs: int = 100, seed: int = 1):
    return choose_pairs(chosen, num_pairs, np.random.default_rng(seed))


def test_each_word_is_right_as_often_as_it_is_wrong_for_the_same_other_word():
    pairs = choose(places())
    counts = collections.Counter((pair.right, pair.wrong) for pair in pairs)
    assert len(pairs) == 100 and all(counts[right, wrong] == counts[wrong, right] for right, wrong in counts)


def test_words_are_exchanged_within_a_group_only():
    group = {place.character: place.group for place in places()}
    words = {place.group: {other.word for other in places() if other.group == place.group} for place in places()}
    assert not words[0,] & words[1,]
    assert all(pair.wrong in words[group[pair.character]] for pair in choose(places()))


def test_the_seed_decides_and_the_order_of_the_places_is_the_documents_own():
    assert choose(places()) == choose(places()) != choose(places(), seed=2)
    assert choose(places()) == sorted(choose(places()))


def test_a_refused_word_is_never_the_wrong_one():
    refusing = [place._replace(refused=frozenset("ab")) if place.document < 5 else place for place in places()]
    assert any(pair.wrong in "ab" for pair in choose(places()) if pair.document < 5)
    assert not any(pair.wrong in "ab" for pair in choose(refusing) if pair.document < 5)


def test_words_of_which_one_begins_with_the_other_are_not_exchanged():
    assert choose([Place("kind", i, 0, ("word", "words")[i % 2], ()) for i in range(200)]) == []


def test_each_document_has_a_pair_before_any_has_its_second():
    long = [Place("kind", 0, i, LETTERS[i % 7], ()) for i in range(500)]
    others = [Place("kind", i, 0, LETTERS[i % 7], ()) for i in range(1, 101)]
    counts = collections.Counter(pair.document for pair in choose(long + others, 90))
    assert max(counts.values()) == 1


def test_places_are_used_again_only_if_they_are_too_few():
    few = choose(places(40), 60)
    uses = collections.Counter(pair.character for pair in few)
    assert len(few) == len(set(few)) == 60 and 1 < max(uses.values()) <= MAX_USES
    assert max(collections.Counter(pair.character for pair in choose(places(400), 100)).values()) == 1


def test_a_kind_with_few_pairs_is_left_out(monkeypatch):
    assert choose(places(), LEAST_PAIRS - 1) == []
    monkeypatch.setattr(pair_choice, "LEAST_PAIRS", 2)
    assert len(choose(places(), 5)) == 4  # pairs come in twos


def test_neighbours_are_the_characters_around_a_word():
    assert neighbours("(a)", 1, 2) == ("(", ")") and neighbours("a", 0, 1) == ("", "")

"""Story pairs: the grammar gives the wrong text probability zero, so that its own generator is always right."""

import collections
import functools
import re

import numpy as np
import pytest

from extras.probes import story_pairs
from extras.probes.derivation import follow
from extras.probes.pair_choice import Pair, Place, choose_pairs
from extras.probes.story_pairs import NEW_NAME, OBJECT, OTHER_PERSON, PRONOUN, REACH_CHARS, story_places
from lm.core.errors import DataError
from lm.text.sources.stories.grammar import PRONOUNS, plots, render, story, word_lists

STORIES = [story(5, index).text for index in range(250)]


@functools.cache
def places() -> list[Place]:
    return [place for document, text in enumerate(STORIES) for place in story_places(document, text)]


@functools.cache
def pairs(kind: str) -> list[Pair]:
    return choose_pairs([place for place in places() if place.kind == kind], 100, np.random.default_rng(1))


def bits_of(text: str) -> float:
    """Return the surprisal of the beginning of a story, inf if no story begins so."""
    probabilities = [2.0 ** -follow(plot, text)[0][-1] for plot in plots()]
    return -np.log2(sum(probabilities)) if any(probabilities) else np.inf


@pytest.mark.parametrize("kind", [OTHER_PERSON, NEW_NAME, PRONOUN, OBJECT])
def test_the_exact_generator_is_right_in_all_pairs(kind):
    assert len(pairs(kind)) >= 60
    for pair in pairs(kind):
        text = STORIES[pair.document]
        before, end = text[: pair.character], pair.character + len(pair.right)
        assert text[pair.character : end] == pair.right
        assert np.isfinite(bits_of(before + pair.right)) and bits_of(before + pair.wrong) == np.inf


def test_the_wrong_name_is_another_person_who_was_just_mentioned():
    for pair in pairs(OTHER_PERSON):
        before = STORIES[pair.document][max(0, pair.character - REACH_CHARS) : pair.character]
        assert pair.wrong in before and pair.right in before


def test_a_new_name_is_of_another_story_and_of_the_same_gender():
    slots = ("hero", "friend", "pet", "elder", "neighbor")
    genders = {name: gender for slot in slots for name, gender in word_lists()[slot]}
    for pair in pairs(NEW_NAME):
        assert not re.search(rf"\b{pair.wrong}\b", STORIES[pair.document])
        assert genders[pair.right] == genders[pair.wrong]


def test_the_wrong_pronoun_is_the_same_form_of_the_other_gender():
    forms = set(zip(PRONOUNS["he"].values(), PRONOUNS["she"].values(), strict=True))
    both = forms | {(she, he) for he, she in forms}
    assert {(pair.right.lower(), pair.wrong.lower()) for pair in pairs(PRONOUN)} <= both
    counts = collections.Counter((pair.right, pair.wrong) for pair in pairs(PRONOUN))
    assert all(counts[right, wrong] == counts[wrong, right] for right, wrong in counts)


def test_a_first_mention_is_no_place():
    for place in places():
        if place.kind in (NEW_NAME, OBJECT):
            assert place.word in STORIES[place.document][: place.character]


def test_a_name_that_only_the_gender_of_its_person_has_announced_is_no_place():
    """The first {friend} follows {boy friend}, which narrows the names to those of one gender."""
    number = next(n for n, plot in enumerate(plots()) if "who was new at school" in "".join(plot.literals))
    text = render([number, *[0] * len(plots()[number].num_options)])
    friend = next(f for f in plots()[number].fields if f.slot_name == "friend" and not f.form).words[0]
    found = [place.character for place in story_places(0, text) if place.word == friend]
    assert text.index(friend) not in found and found


def test_a_mention_out_of_reach_does_not_decide(monkeypatch):
    monkeypatch.setattr(story_pairs, "REACH_CHARS", 60)
    near = [place for place in story_places(0, STORIES[0]) if place.kind == NEW_NAME]
    assert len(near) < sum(place.kind == NEW_NAME for place in places() if place.document == 0)
    assert all(place.word in STORIES[0][place.character - 60 : place.character] for place in near)


def test_a_word_that_the_grammar_leaves_open_is_no_place(monkeypatch):
    monkeypatch.setattr(story_pairs, "_is_decided_by", lambda near, field: True)
    for place in story_places(0, STORIES[0]):
        before = STORIES[0][: place.character]
        assert bits_of(before) == bits_of(before + place.word)


def test_other_text_is_refused():
    with pytest.raises(DataError, match="not a story"):
        story_places(0, "There was no story.")

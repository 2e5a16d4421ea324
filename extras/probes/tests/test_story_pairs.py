"""Story pairs: the grammar gives the wrong text probability zero, so that its own generator is always right."""

import functools
import re

import numpy as np
import pytest

from extras.probes.derivation import follow
from extras.probes.pair_choice import Pair, Place, choose_pairs
from extras.probes.story_pairs import NEW_NAME, OBJECT, OTHER_PERSON, PRONOUN, REACH_CHARS, story_places
from lm.text.sources.stories.grammar import plots, render, story

STORIES = [story(5, index).text for index in range(250)]


@functools.cache
def places() -> list[Place]:
    return [place for document, text in enumerate(STORIES) for place in story_places(document, text)]


def pairs(kind: str) -> list[Pair]:
    return choose_pairs([place for place in places() if place.kind == kind], 100, np.random.default_rng(1))


def bits_of(text: str) -> float:
    """Return the surprisal of the beginning of a story, inf if no story begins so."""
    probabilities = [2.0 ** -follow(plot, text)[0][-1] for plot in plots()]
    return -np.log2(sum(probabilities)) if any(probabilities) else np.inf


@pytest.mark.parametrize("kind", [OTHER_PERSON, NEW_NAME, PRONOUN, OBJECT])
def test_the_exact_generator_is_right_in_all_pairs(kind):
    assert len(pairs(kind)) >= 50
    for pair in pairs(kind):
        text = STORIES[pair.document]
        before, end = text[: pair.character], pair.character + len(pair.right)
        assert text[pair.character : end] == pair.right
        assert np.isfinite(bits_of(before + pair.right)) and bits_of(before + pair.wrong) == np.inf
        if kind == OTHER_PERSON:
            assert pair.wrong in before[-REACH_CHARS:] and pair.right in before[-REACH_CHARS:]
        if kind == NEW_NAME:
            assert not re.search(rf"\b{pair.wrong}\b", text) and pair.right in before


def test_a_name_that_only_the_gender_of_its_person_has_announced_is_no_place():
    """The first {friend} follows {boy friend}, which narrows the names to those of one gender."""
    number = next(n for n, plot in enumerate(plots()) if "who was new at school" in "".join(plot.literals))
    text = render([number, *[0] * len(plots()[number].num_options)])
    friend = next(f for f in plots()[number].fields if f.slot_name == "friend" and not f.form).words[0]
    found = [place.character for place in story_places(0, text) if place.word == friend]
    assert text.index(friend) not in found and found

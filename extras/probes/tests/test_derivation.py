"""Prefixes of a story: the probabilities of what may follow add up to 1, and each character belongs to a field."""

import numpy as np
import pytest

from extras.probes import derivation
from extras.probes.derivation import derive
from lm.core.errors import DataError
from lm.text.sources.stories.grammar import Field, Plot, story

STORIES = [story(3, index) for index in range(40)]


@pytest.mark.parametrize("number", range(0, 30, 10))
def test_the_bits_of_the_beginnings_end_with_the_surprisal_and_never_fall(number):
    known = derive(STORIES[number].text)
    assert known.surprisal_bits[0] == 0 and len(known.surprisal_bits) == len(STORIES[number].text) + 2
    assert known.surprisal_bits[-1] == pytest.approx(STORIES[number].surprisal_bits, abs=1e-9)
    assert known.surprisal_bits[-1] == known.surprisal_bits[-2], "a complete story is no beginning of another"
    assert np.diff(known.surprisal_bits).min() > -1e-9
    assert known.num_plots[0] == 64 and known.num_plots[-1] == 1


def test_spans_cover_the_text():
    for s in STORIES[:20]:
        spans = derive(s.text).spans
        assert "".join(s.text[start:end] for start, end, _ in spans) == s.text
        assert all(s.text[start:end] in field.words for start, end, field in spans if field)


def test_a_text_outside_the_grammar_is_refused():
    text = STORIES[0].text
    for wrong in ("", text[:-1], text + " ", text.replace('"', "'"), "Once upon a time there was a model."):
        with pytest.raises(DataError, match="not a story of the grammar"):
            derive(wrong)


def test_a_small_grammar_has_the_probabilities_of_its_whole_list_of_stories(monkeypatch):
    """All derivations of two plots are listed, and the share of those that begin with each prefix is counted."""
    heroes, shes = ("Ann", "Abe", "Bob", "Bea"), ("she", "he", "he", "she")
    field = lambda words, is_first, form="": Field(0, words, "hero", form, is_first)  # noqa: E731
    toy = Field(1, ("kit", "kid"), "toy", "", True)
    two = (
        Plot(("Once ", " ran. ", " fell."), (field(shes, True, "he"), field(heroes, False)), (4,)),
        Plot(("On ", " ran, ", "."), (field(heroes, True), toy), (4, 2)),
    )
    monkeypatch.setattr(derivation, "plots", lambda: two)
    listed = [(f"Once {she} ran. {hero} fell.", 1 / 8) for hero, she in zip(heroes, shes, strict=True)]
    listed += [(f"On {hero} ran, {word}.", 1 / 16) for hero in heroes for word in toy.words]
    assert sum(p for _, p in listed) == 1
    for text, own in listed:
        bits = derive(text).surprisal_bits
        for length in range(len(text) + 1):
            share = sum(p for other, p in listed if other.startswith(text[:length]))
            assert 2 ** -bits[length] == pytest.approx(share, rel=1e-12), text[:length]
        assert 2 ** -bits[-1] == pytest.approx(own, rel=1e-12)

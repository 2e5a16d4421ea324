"""What is known of a story's prefixes: probabilities that add up, and the field behind each character."""

import numpy as np
import pytest

from extras.probes import derivation
from extras.probes.derivation import derive, follow
from lm.core.errors import DataError
from lm.text.sources.stories.grammar import Field, Plot, entropy_bits_per_story, plots, render, story

STORIES = [story(3, index) for index in range(150)]


def probability(beginning: str) -> float:
    """Return the probability that a story begins so."""
    return sum(2 ** -follow(plot, beginning)[0][-1] for plot in plots()) / len(plots())


@pytest.mark.parametrize("number", range(0, 150, 10))
def test_the_bits_of_the_beginnings_end_with_the_surprisal_and_never_fall(number):
    known = derive(STORIES[number].text)
    assert known.surprisal_bits[0] == 0 and len(known.surprisal_bits) == len(STORIES[number].text) + 2
    assert known.surprisal_bits[-1] == pytest.approx(STORIES[number].surprisal_bits, abs=1e-9)
    assert known.surprisal_bits[-1] == known.surprisal_bits[-2], "a complete story is no beginning of another"
    assert np.diff(known.surprisal_bits).min() > -1e-9
    assert known.num_plots[0] == 64 and known.num_plots[-1] == 1


def test_the_mean_surprisal_is_the_entropy():
    assert np.mean([derive(s.text).surprisal_bits[-1] for s in STORIES]) == pytest.approx(
        entropy_bits_per_story(), abs=1.0
    )


@pytest.mark.parametrize("length", [0, 1, 4, 9, 30, 77, 140, 201])
def test_the_next_character_has_probabilities_that_sum_to_one(length):
    text = STORIES[7].text
    characters = sorted({character for s in STORIES for character in s.text})
    beginning = text[:length]
    following = {character: probability(beginning + character) for character in characters}
    assert sum(following.values()) == pytest.approx(probability(beginning), rel=1e-9)
    assert following[text[length]] == pytest.approx(2 ** -derive(text).surprisal_bits[length + 1], rel=1e-9)


def test_a_plot_that_writes_a_pronoun_before_the_name_narrows_the_names():
    number = next(n for n, plot in enumerate(plots()) if any(f.is_first and f.form == "boy" for f in plot.fields))
    plot = plots()[number]
    text = render([number, *[0] * len(plot.num_options)])
    spans = derive(text).spans
    early, *_ = [s for s in spans if s.field and s.field.is_first and s.field.form == "boy"]
    slot = early.field.slot
    name = next(s for s in spans if s.field and s.field.slot == slot and not s.field.form)
    bits, _ = follow(plot, text)
    assert bits[early.end] - bits[early.start] == 1, "girl or boy"
    assert bits[name.end] - bits[name.start] == np.log2(plot.num_options[slot] / 2), "of the names of girls"


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

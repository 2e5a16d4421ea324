"""What is known of a story's beginnings: probabilities that add up, and the field behind each character."""

import numpy as np
import pytest

from lm.core.errors import DataError
from lm.text.sources.stories.derivation import derive, follow
from lm.text.sources.stories.grammar import entropy_bits_per_story, plots, render, story

STORIES = [story(3, index) for index in range(150)]


def probability(beginning: str) -> float:
    """Return the probability that a story begins so."""
    return sum(2 ** -follow(plot, beginning)[0][-1] for plot in plots()) / len(plots())


@pytest.mark.parametrize("number", range(0, 150, 10))
def test_the_bits_of_the_beginnings_end_with_the_surprisal_and_never_fall(number):
    known = derive(STORIES[number].text)
    assert known.bits[0] == 0 and len(known.bits) == len(STORIES[number].text) + 2
    assert known.bits[-1] == pytest.approx(STORIES[number].surprisal_bits, abs=1e-9)
    assert known.bits[-1] == known.bits[-2], "a complete story is no beginning of another"
    assert np.diff(known.bits).min() > -1e-9
    assert known.num_plots[0] == 64 and known.num_plots[-1] == 1


def test_the_mean_surprisal_is_the_entropy():
    assert np.mean([derive(s.text).bits[-1] for s in STORIES]) == pytest.approx(entropy_bits_per_story(), abs=1.0)


@pytest.mark.parametrize("length", [0, 1, 4, 9, 30, 77, 140, 201])
def test_the_next_character_has_probabilities_that_sum_to_one(length):
    text = STORIES[7].text
    characters = sorted({character for s in STORIES for character in s.text})
    beginning = text[:length]
    following = {character: probability(beginning + character) for character in characters}
    assert sum(following.values()) == pytest.approx(probability(beginning), rel=1e-9)
    assert following[text[length]] == pytest.approx(2 ** -derive(text).bits[length + 1], rel=1e-9)


def test_a_plot_that_writes_a_pronoun_before_the_name_narrows_the_names():
    number = next(n for n, plot in enumerate(plots()) if any(f.is_first and f.form == "boy" for f in plot.fields))
    plot = plots()[number]
    text = render([number, *[0] * len(plot.num_options)])
    stretches = derive(text).stretches
    early, *_ = [s for s in stretches if s.field and s.field.is_first and s.field.form == "boy"]
    slot = early.field.slot
    name = next(s for s in stretches if s.field and s.field.slot == slot and not s.field.form)
    bits, _ = follow(plot, text)
    assert bits[early.end] - bits[early.start] == 1, "girl or boy"
    assert bits[name.end] - bits[name.start] == np.log2(plot.num_options[slot] / 2), "of the names of girls"


def test_stretches_cover_the_text():
    for s in STORIES[:20]:
        stretches = derive(s.text).stretches
        assert "".join(s.text[start:end] for start, end, _ in stretches) == s.text
        assert all(s.text[start:end] in field.words for start, end, field in stretches if field)


def test_a_text_outside_the_grammar_is_refused():
    text = STORIES[0].text
    for wrong in ("", text[:-1], text + " ", text.replace('"', "'"), "Once upon a time there was a model."):
        with pytest.raises(DataError, match="not a story of the grammar"):
            derive(wrong)

"""Test that samples are measured by what they copy and repeat."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.evaluate.samples import Sample, describe_samples, measure, repeated_fraction, summarize_samples, to_markdown

TRAIN = np.arange(1000, dtype=np.uint16)
WORDS = SimpleNamespace(decode=lambda ids: " word" * len(ids))


def sample(ids, ended=True):
    return Sample("Once", np.array(ids, np.int64), ended)


def test_copies_and_repetitions_are_measured():
    copied, new, twice = sample(range(50, 70)), sample(range(900, 850, -1), ended=False), sample([5, 3, 1, 9] * 5)
    measures = measure([copied, new, twice], TRAIN)
    assert [entry["longest_copy_tokens"] for entry in measures] == [20, 0, 0]
    assert [entry["new_fraction"] for entry in measures] == [0.0, 1.0, 1.0]
    assert [entry["repeated_fraction"] for entry in measures] == pytest.approx([0.0, 0.0, 13 / 17])
    assert summarize_samples(measures) == {
        "samples": 3,
        "ended_fraction": pytest.approx(2 / 3),
        "longest_copy_tokens": 20,
        "new_8gram_fraction": pytest.approx(2 / 3),
        "repeated_4gram_fraction": pytest.approx(13 / 17 / 3),
    }


def test_an_empty_sample_has_no_fractions():
    measures = measure([sample([])], TRAIN)
    assert measures[0]["new_fraction"] is None and repeated_fraction(np.array([], np.int64)) is None
    assert summarize_samples(measures)["new_8gram_fraction"] is None
    assert "longest copy 0 tokens.\n" in to_markdown(describe_samples([sample([])], measures, "Seed 1.", WORDS))


def test_the_markdown_shows_the_measures_beside_each_text():
    samples = [sample(range(50, 70)), sample([5, 3, 1, 9] * 5, ended=False)]
    text = to_markdown(describe_samples(samples, measure(samples, TRAIN), "Seed 1.", WORDS))
    assert "## 1. `Once`, ended by the model\n\nlongest copy 20 tokens; 0% of its 8-grams are new" in text
    assert "## 2. `Once`, cut after 20 tokens" in text and "76% of its 4-grams are repeated" in text

"""Samples are judged by what they copy and repeat."""

import numpy as np
import pytest

from lm.evaluate.samples import Sample, judge, repeated, summarize, to_markdown

TRAIN = np.arange(1000, dtype=np.uint16)


def sample(ids, ended=True):
    return Sample("Once", "Once upon a time", np.array(ids, np.int64), ended)


def test_copies_and_repetitions_are_measured_sample_by_sample():
    copied, new, twice = sample(range(50, 70)), sample(range(900, 850, -1), ended=False), sample([5, 3, 1, 9] * 5)
    judged = judge([copied, new, twice], TRAIN)
    assert [entry["longest_copy_tokens"] for entry in judged] == [20, 0, 0]
    assert [entry["new_share"] for entry in judged] == [0.0, 1.0, 1.0]
    assert [entry["repeated_share"] for entry in judged] == pytest.approx([0.0, 0.0, 13 / 17])
    assert summarize(judged) == {
        "samples": 3,
        "ended_share": pytest.approx(2 / 3),
        "longest_copy_tokens": 20,
        "new_8gram_share": pytest.approx(2 / 3),
        "repeated_4gram_share": pytest.approx(13 / 17 / 3),
    }


def test_a_sample_of_nothing_has_no_shares():
    judged = judge([sample([])], TRAIN)
    assert judged[0]["new_share"] is None and repeated(np.array([], np.int64)) is None
    assert summarize(judged)["new_8gram_share"] is None
    assert "longest copy 0 tokens.\n" in to_markdown([sample([])], judged, "Seed 1.")


def test_the_judgement_stands_beside_each_text():
    samples = [sample(range(50, 70)), sample([5, 3, 1, 9] * 5, ended=False)]
    text = to_markdown(samples, judge(samples, TRAIN), "Seed 1.")
    assert "## 1. `Once`, ends by itself\n\nlongest copy 20 tokens; 0% of its 8-grams new" in text
    assert "## 2. `Once`, cut after 20 tokens" in text and "76% of its 4-grams repeated" in text

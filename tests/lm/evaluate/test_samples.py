"""Test that samples are measured by what they copy and repeat."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.evaluate import samples
from lm.evaluate.samples import Sample, measure, samples_record, summarize_samples, to_markdown

TRAIN = np.arange(1000, dtype=np.uint16)
WORDS = SimpleNamespace(decode=lambda ids: " word" * len(ids))


def sample(ids, ended=True):
    return Sample("Once", np.array(ids, np.int64), ended)


@pytest.mark.parametrize(
    ("drawn", "kept", "ended"), [([5, 6, 9], [5, 6], True), ([5, 6, 7], [5, 6, 7], False), ([9], [], True)]
)
def test_a_sample_begins_after_end_of_text_and_ends_before_it(monkeypatch, drawn, kept, ended):
    given = []

    def generate(model, prompt_ids, max_new_tokens, *, generator, eot_id, **sampling):
        given.append((prompt_ids, max_new_tokens, generator.initial_seed(), eot_id, sampling))
        return iter(drawn)

    monkeypatch.setattr(samples, "generate", generate)
    tokenizer = SimpleNamespace(eot_id=9, encode=lambda text: [1, 2])
    model = SimpleNamespace(config=SimpleNamespace(max_seq_len=6))
    found = samples.draw(model, tokenizer, "Once", 3, 17, temperature=0.5, top_k=4)
    assert (found.prompt, found.ids.tolist(), found.ended) == ("Once", kept, ended)
    assert given == [([9, 1, 2], 3, 17, 9, {"temperature": 0.5, "top_k": 4})]


def test_ngrams_that_reach_out_of_a_copy_are_new():
    """A text of 30 tokens, of which the 10 from position 5 on are copied: 3 of its 23 8-grams are in the copy."""
    (measures,) = measure([sample([*range(2000, 2005), *range(40, 50), *range(3000, 3015)])], TRAIN)
    assert measures["longest_copy_tokens"] == 10 and measures["new_fraction"] == pytest.approx(20 / 23)
    (short,) = measure([sample([*range(2000, 2005), *range(40, 47), *range(3000, 3015)])], TRAIN)
    assert short["longest_copy_tokens"] == 0, "7 tokens are no copy"


def test_copies_and_repetitions_are_measured():
    copied = sample(range(50, 70))
    new = sample(range(900, 850, -1), ended=False)
    twice = sample([5, 3, 1, 9] * 5)
    measures = measure([new, copied, twice], TRAIN)
    assert [entry["longest_copy_tokens"] for entry in measures] == [0, 20, 0]
    assert [entry["new_fraction"] for entry in measures] == [1.0, 0.0, 1.0]
    assert [entry["repeated_fraction"] for entry in measures] == pytest.approx([0.0, 0.0, 13 / 17])
    assert summarize_samples(measures) == {
        "samples": 3,
        "ended_fraction": pytest.approx(2 / 3),
        "longest_copy_tokens": 20,
        "new_8gram_fraction": pytest.approx(2 / 3),
        "repeated_4gram_fraction": pytest.approx(13 / 17 / 3),
    }


def test_an_empty_sample_has_no_fractions():
    """A text of two tokens has no 8-grams."""
    measures = measure([sample([]), sample([1, 2]), sample(range(50, 70), ended=False)], TRAIN)
    assert measures[0]["new_fraction"] is None and measures[0]["repeated_fraction"] is None
    summary = summarize_samples(measures)
    assert summary["new_8gram_fraction"] == 0.0 and summary["ended_fraction"] == pytest.approx(2 / 3)
    assert summarize_samples(measures[:1])["new_8gram_fraction"] is None


def test_the_markdown_shows_the_measures_beside_each_text():
    drawn = [sample(range(50, 71)), sample([5, 3, 1, 9] * 5, ended=False)]
    text = to_markdown(samples_record(drawn, measure(drawn, TRAIN), "Seed 1.", WORDS))
    assert "## 1. `Once`, ended by the model\n\nlongest copy 21 tokens; 0% of its 8-grams are new" in text
    assert "## 2. `Once`, cut after 20 tokens" in text and "76% of its 4-grams are repeated" in text

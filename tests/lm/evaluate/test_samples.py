"""Samples are measured by what they copy and repeat."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.evaluate import samples
from lm.evaluate.samples import Sample, measure, summarize_samples

TRAIN = np.arange(1000, dtype=np.uint16)
EOT = 9


def sample(ids, ended=True):
    return Sample("Once", np.array(ids, np.int64), ended)


# Of 30 tokens 10 are copied: 3 of the 23 8-grams are in the copy.
PARTLY_NEW = sample([*range(900, 890, -1), *range(50, 60), *range(890, 880, -1)], ended=False)
COPIED = sample(range(50, 70))
REPEATED = sample([5, 3, 1, 9] * 5)


@pytest.mark.parametrize(
    ("drawn", "kept", "ended"),
    [
        ([5, 6, EOT], [5, 6], True),
        ([5, 6, 7], [5, 6, 7], False),
        ([EOT], [], True),
    ],
)
def test_a_sample_is_between_two_ends_of_text(monkeypatch, drawn, kept, ended):
    given = []

    def generate(model, prompt_ids, max_new_tokens, *, generator, **settings):
        given.append((prompt_ids, max_new_tokens, generator.initial_seed(), settings))
        return iter(drawn)

    monkeypatch.setattr(samples, "generate", generate)
    tokenizer = SimpleNamespace(eot_id=EOT, encode=lambda text: [1, 2])
    model = SimpleNamespace(config=SimpleNamespace(max_seq_len=6))

    found = samples.draw(model, tokenizer, "Once", 9, 17, top_k=4)

    assert (found.ids.tolist(), found.ended) == (kept, ended)
    assert given == [([EOT, 1, 2], 3, 17, {"eot_id": EOT, "top_k": 4})]


def test_each_sample_has_its_copies_and_repetitions_and_a_summary_their_means():
    measures = measure([PARTLY_NEW, COPIED, REPEATED], TRAIN)

    assert [each["longest_copy_tokens"] for each in measures] == [10, 20, 0]
    assert [each["new_fraction"] for each in measures] == [pytest.approx(20 / 23), 0, 1]
    assert [each["repeated_fraction"] for each in measures] == [0, 0, pytest.approx(13 / 17)]
    assert summarize_samples(measures) == {
        "samples": 3,
        "ended_fraction": pytest.approx(2 / 3),
        "longest_copy_tokens": 20,
        "new_8gram_fraction": pytest.approx((20 / 23 + 1) / 3),
        "repeated_4gram_fraction": pytest.approx(13 / 17 / 3),
    }


def test_samples_without_ngrams_do_not_count_in_the_means():
    short, copied = measure([sample([1, 2]), COPIED], TRAIN)

    assert short["repeated_fraction"] is None
    assert summarize_samples([short, copied])["new_8gram_fraction"] == 0
    assert summarize_samples([short])["new_8gram_fraction"] is None

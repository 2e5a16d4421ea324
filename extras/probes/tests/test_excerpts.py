"""Excerpts: the places of the largest regret are the right ones, and their tokens are the text."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from extras.probes.excerpts import (
    AFTER,
    BEFORE,
    alternatives,
    largest_regrets,
    make_excerpts,
    token_texts,
    typical_documents,
)
from lm.model.score import score_tokens, window_that_scores
from lm.text.sources.stories.grammar import story
from lm.tokenizer.build import train_ranks, write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

TEXTS = [story(5, index).text for index in range(40)]
SEQ_LEN, STRIDE = 32, 16


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_level(folder, train_ranks([TEXTS], 400), "bpe")
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def stories(tokenizer):
    ids, _ = tokenizer.encode_documents(TEXTS)
    return TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": tokenizer.eot_id}})


@pytest.fixture(scope="module")
def scored(tokenizer, stories):
    """An untrained model, and its losses of the stories."""
    model = build(tokenizer.vocab_size)
    return model, score_tokens(model, stories, SEQ_LEN, STRIDE, 16, torch.float32)[0]


def test_the_largest_regrets_are_found_one_for_each_document_and_id(stories):
    regret = np.random.default_rng(1).gamma(1.0, 4.0, len(stories.ids))
    places = largest_regrets(regret, stories.ids, stories.spans)
    found = [regret[token] for _, token in places]
    assert found == sorted(found, reverse=True) and found[0] == regret.max()
    assert len({document for document, _ in places}) == len({int(stories.ids[token]) for _, token in places}) == 20
    assert all(stories.spans[document, 0] <= token < stories.spans[document, 1] for document, token in places)


def test_a_few_documents_have_several_places_that_do_not_overlap():
    regret, ids = np.random.default_rng(1).random(5000), np.arange(5000)
    places = largest_regrets(regret, ids, np.array([[0, 4000], [4000, 5000]]))
    tokens = sorted(token for document, token in places if document == 0)
    assert len(tokens) == 10 and min(np.diff(tokens)) > BEFORE + AFTER and len(places) > 15


def test_excerpts_are_the_text_around_the_place_with_the_losses(tokenizer, stories, scored):
    (model, losses), ids = scored, stories.ids
    found = make_excerpts(model, losses, losses / 2, stories, tokenizer, SEQ_LEN, STRIDE)
    assert found["has_regret"] and len(found["places"]) == 20 and len(found["documents"]) == 3
    for place in found["places"]:
        start, end = stories.spans[place["document"]].tolist()
        token, marked = start + place["token"], place["marked"]
        first, last = max(start, token - BEFORE), min(end, token + AFTER + 1)
        assert "".join(place["texts"]) == tokenizer.decode(ids[first:last]) and marked == token - first
        assert place["loss_nats"] == [round(float(nats), 3) for nats in losses[first:last]]
        assert place["regret_nats"][marked] == pytest.approx(place["loss_nats"][marked] / 2, abs=0.001)
    assert "".join(found["documents"][0]["texts"]) == TEXTS[found["documents"][0]["document"]] + "<|endoftext|>"
    other = make_excerpts(model, losses, None, stories, tokenizer, SEQ_LEN, STRIDE)
    assert not other["has_regret"] and "regret_nats" not in other["places"][0]


def test_alternatives_are_of_the_window_that_scored_the_token(tokenizer, stories, scored):
    """The probability of a token that is one of the most likely ones is exp(-its loss)."""
    (model, losses), num_likely = scored, 0
    for token in range(0, 2000, 29):
        window = window_that_scores(token, len(stories.ids), SEQ_LEN, STRIDE)
        found = alternatives(model, stories, tokenizer, window, token - window)
        p = [each["probability"] for each in found["alternatives"]]
        assert p == sorted(p, reverse=True) and len(p) == 3
        if found["rank"] <= 3:
            num_likely += 1
            assert p[found["rank"] - 1] == pytest.approx(math.exp(-losses[token]), abs=1e-5)
    assert num_likely


def test_a_character_of_several_tokens_belongs_to_its_last_one(tokenizer):
    text = "naïve 猫 🙂."
    ids = np.array(tokenizer.encode(text))
    texts = token_texts(ids, tokenizer)
    assert "".join(texts) == text and texts.count("猫") == 1 and "" in texts
    begin = texts.index("猫")  # the last of its three bytes
    assert (
        token_texts(ids[begin:], tokenizer)[0] == "\ufffd" and token_texts(ids[:begin], tokenizer)[-1][-1] == "\ufffd"
    )


def test_typical_documents_are_quantiles_of_the_loss_per_token():
    spans = np.stack([np.arange(0, 110, 10), np.arange(10, 120, 10)], 1)
    losses = np.repeat([5, 3, 9, 1, 0, 7, 2, 10, 4, 8, 6], 10).astype(np.float32)
    assert typical_documents(losses, spans) == {3: 0.1, 0: 0.5, 2: 0.9}

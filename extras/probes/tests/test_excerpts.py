"""Excerpts: the places of the largest regret are the right ones, and their tokens are the text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from extras.probes import excerpts
from extras.probes.excerpts import (
    alternatives,
    largest_regrets,
    make_excerpts,
    regret_of,
    token_texts,
    typical_documents,
)
from lm.model.score import score_tokens, window_that_scores
from lm.text.sources.stories.grammar import story
from lm.tokenizer.build import train_ranks, write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

STORIES = [story(5, index) for index in range(40)]
SEQ_LEN, STRIDE = 32, 16


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_level(folder, train_ranks([[s.text for s in STORIES]], 400), "bpe")
    return load_tokenizer(folder)


def corpus(tokenizer, texts, surprisal_bits=None):
    """A token file in memory of these documents."""
    ids, _ = tokenizer.encode_documents(texts)
    meta = {"tokenizer": {"eot_id": tokenizer.eot_id, "vocab_size": tokenizer.vocab_size}}
    return TokenFile(Path("validation.bin"), ids, meta | {"surprisal_bits": surprisal_bits})


@pytest.fixture(scope="module")
def stories(tokenizer):
    return corpus(tokenizer, [s.text for s in STORIES], sum(s.surprisal_bits for s in STORIES))


@pytest.fixture(scope="module")
def scored(tokenizer, stories):
    """An untrained model, and its losses of the stories."""
    model = build(tokenizer.vocab_size)
    return model, score_tokens(model, stories, SEQ_LEN, STRIDE, 16, torch.float32)[0]


def losses_of(validation):
    """Random losses (N,) in nats, one in three of them large."""
    rng = np.random.default_rng(1)
    return rng.gamma(1.0, 4.0, len(validation.ids)).astype(np.float32)


def test_the_largest_losses_are_found_one_for_each_document_and_id(tokenizer, stories):
    losses = losses_of(stories)
    places = largest_regrets(losses, stories, tokenizer, has_regret=False)
    worst = [losses[token] for _, token in places]
    assert len(places) == excerpts.NUM_PLACES and worst == sorted(worst, reverse=True) and worst[0] == losses.max()
    assert len({document for document, _ in places}) == len({int(stories.ids[token]) for _, token in places}) == 20
    for document, token in places:
        start, end = stories.spans[document]
        assert losses[token] == losses[start:end].max()


def test_surprisal_is_no_regret(tokenizer, stories):
    """The documents are searched until no other can have a larger regret."""
    losses = losses_of(stories)
    found = [regret_of(losses, stories, tokenizer, document, True) for document in range(40)]
    bits = losses.sum(dtype="float64") / math.log(2) - sum(s.surprisal_bits for s in STORIES)
    assert sum(regret.sum() for regret in found) / math.log(2) == pytest.approx(bits, abs=1e-2)
    best = {}  # id → its largest regret, of the places that are the largest of their document
    for (start, _), regret in zip(stories.spans, found, strict=True):
        token_id = int(stories.ids[start + regret.argmax()])
        best[token_id] = max(best.get(token_id, 0), regret.max())
    places = largest_regrets(losses, stories, tokenizer, has_regret=True)
    regrets = [found[document][token - stories.spans[document, 0]] for document, token in places]
    assert regrets == sorted(best.values(), reverse=True)[:20]


def test_a_few_documents_have_several_places_that_do_not_overlap(tokenizer):
    validation = corpus(tokenizer, [" ".join(s.text for s in STORIES[:30]), STORIES[30].text])
    places = largest_regrets(losses_of(validation), validation, tokenizer, has_regret=False)
    tokens = sorted(token for document, token in places if document == 0)
    assert len(tokens) >= 8 and min(np.diff(tokens)) > excerpts.BEFORE + excerpts.AFTER
    assert {document for document, _ in places} == {0, 1}


def test_excerpts_are_the_text_around_the_place_with_the_losses(tokenizer, stories, scored):
    (model, losses), ids = scored, stories.ids
    found = make_excerpts(model, losses, stories, tokenizer, SEQ_LEN, STRIDE)
    assert found["has_regret"] and len(found["places"]) == 20 and len(found["documents"]) == 3
    for place in found["places"]:
        start, end = stories.spans[place["document"]].tolist()
        token, marked = start + place["token"], place["marked"]
        first, last = max(start, token - 60), min(end, token + 21)
        assert "".join(place["texts"]) == tokenizer.decode(ids[first:last]) and marked == token - first
        assert place["document_tokens"] == end - start
        assert place["loss_nats"] == [round(float(nats), 3) for nats in losses[first:last]]
        assert place["regret_nats"][marked] == max(place["regret_nats"]) <= place["loss_nats"][marked]
    assert "".join(found["documents"][0]["texts"]) == STORIES[found["documents"][0]["document"]].text + "<|endoftext|>"
    assert len(json.dumps(found)) < 300_000


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
        else:
            assert math.exp(-losses[token]) <= p[2] + 1e-5
    assert num_likely


def test_other_text_has_the_loss_only(tokenizer, capsys):
    """Also if a sidecar knows a surprisal, but the text is none of the grammar's."""
    model = build(tokenizer.vocab_size)
    for bits in (None, 50.0):
        validation = corpus(tokenizer, ["no story at all " * 9, "another one"], bits)
        found = make_excerpts(model, losses_of(validation), validation, tokenizer, SEQ_LEN, STRIDE)
        assert not found["has_regret"] and "regret_nats" not in found["places"][0]
    assert "the loss instead of the regret: not a story" in capsys.readouterr().out


def test_a_character_of_several_tokens_belongs_to_its_last_one(tokenizer):
    text = "naïve 猫 🙂."
    ids = np.array(tokenizer.encode(text))
    texts = token_texts(ids, tokenizer)
    assert "".join(texts) == text and texts.count("猫") == 1 and "" in texts
    begin = texts.index("猫")  # the last of its three bytes
    assert token_texts(ids[begin:], tokenizer)[0] == "\ufffd"
    assert token_texts(ids[:begin], tokenizer)[-1].endswith("\ufffd")


def test_typical_documents_are_quantiles_of_the_loss_per_token():
    spans = np.stack([np.arange(0, 110, 10), np.arange(10, 120, 10)], 1)
    losses = np.repeat([5, 3, 9, 1, 0, 7, 2, 10, 4, 8, 6], 10).astype(np.float32)
    assert typical_documents(losses, spans) == {3: 0.1, 0: 0.5, 2: 0.9}
    assert list(typical_documents(losses[:10], spans[:1])) == [0]

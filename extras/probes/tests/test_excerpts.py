"""Excerpts: the places of the largest excess loss are the right ones, and their tokens are the text."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from extras.probes.excerpts import (
    AFTER,
    BEFORE,
    alternatives,
    choose_places,
    largest_excess_losses,
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


def test_the_largest_excess_losses_are_found_one_for_each_id_and_do_not_overlap(stories):
    excess_losses = np.random.default_rng(1).gamma(1.0, 4.0, len(stories.ids))
    places = choose_places(excess_losses, stories.ids, stories.spans)
    found, tokens = [excess_losses[token] for _, token in places], sorted(token for _, token in places)
    assert found == sorted(found, reverse=True) and found[0] == excess_losses.max()
    assert len({int(stories.ids[token]) for token in tokens}) == 20 and min(np.diff(tokens)) > BEFORE + AFTER
    assert all(stories.spans[document, 0] <= token < stories.spans[document, 1] for document, token in places)


def test_excerpts_are_the_text_around_the_place_with_its_figures(tokenizer, stories, scored):
    (model, losses), excess_losses = scored, scored[1] / 2
    excerpts = largest_excess_losses(model, losses, excess_losses, stories, tokenizer, SEQ_LEN, STRIDE)
    places = choose_places(excess_losses, stories.ids, stories.spans)
    for excerpt, (document, token) in zip(excerpts, places, strict=True):
        start, end = stories.spans[document].tolist()
        first, last = max(start, token - BEFORE), min(end, token + AFTER + 1)
        assert "".join(excerpt.texts) == tokenizer.decode(stories.ids[first:last]) and excerpt.marked == token - first
        assert np.array_equal(excerpt.loss_nats, losses[first:last])
        assert excerpt.excess_nats[excerpt.marked] == excess_losses[token]
        assert (
            f"{excess_losses[token]:.2f} nats, token {token - start + 1} of {end - start} of document {document}, rank"
            in (excerpt.title)
        )


def test_alternatives_are_of_the_window_that_scored_the_token(tokenizer, stories, scored):
    """The probability of a token that is one of the most likely ones is exp(-its loss)."""
    (model, losses), num_likely = scored, 0
    for token in np.argsort(losses[:2000])[::29].tolist():  # from the best predicted to the worst
        window = window_that_scores(token, len(stories.ids), SEQ_LEN, STRIDE)
        rank, likely = alternatives(model, stories, tokenizer, window, token - window)
        p = [probability for _, probability in likely]
        assert p == sorted(p, reverse=True) and len(p) == 3
        if rank <= 3:
            num_likely += 1
            assert p[rank - 1] == pytest.approx(math.exp(-losses[token]), abs=1e-5)
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


def test_typical_documents_are_quantiles_of_the_loss_per_token(tokenizer):
    losses = np.repeat([5, 3, 9, 1, 0, 7, 2, 10, 4, 8, 6], 10).astype(np.float32)
    ids = np.tile(np.array([*range(1, 10), tokenizer.eot_id], np.uint16), 11)
    tokens = TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": tokenizer.eot_id}})
    titles = [excerpt.title for excerpt in typical_documents(losses, losses, tokens, tokenizer)]
    assert [title.split(" of ")[0] for title in titles] == ["document 3: 10%", "document 0: 50%", "document 2: 90%"]

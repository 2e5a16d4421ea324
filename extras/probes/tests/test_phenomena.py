"""The loss on stories by phenomenon: the parts are the whole, and each token is counted where it belongs."""

import dataclasses
import math
import re
import types
from pathlib import Path

import numpy as np
import pytest

from extras.probes.derivation import derive
from extras.probes.phenomena import INDEX_OF, PHENOMENA, split_by_phenomenon, split_loss, summarize_phenomena
from lm.core.errors import DataError
from lm.text.sources.stories.grammar import plots, render, story
from lm.tokens.tokenfile import TokenFile

PIECE = re.compile(r" ?\w{1,4}|.", re.S)  # words of more than four letters are several tokens
EOT = 0


class Pieces:
    """A tokenizer of pieces of the texts that it is given."""

    def __init__(self, texts: list[str]):
        self.pieces = ["", *sorted({piece for text in texts for piece in PIECE.findall(text)})]

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(piece) for piece in PIECE.findall(text)]

    def decode(self, ids) -> str:
        return "".join(self.pieces[i] for i in ids)

    def bytes_of(self, ids) -> np.ndarray:
        return np.array([len(self.pieces[i].encode()) for i in ids], np.uint8)


def corpus(texts: list[str]) -> tuple[np.ndarray, np.ndarray, Pieces]:
    """Return ids (N,), spans (D, 2) and the tokenizer of documents."""
    tokenizer = Pieces(texts)
    documents = [[*tokenizer.encode(text), EOT] for text in texts]
    ends = np.cumsum([len(ids) for ids in documents])
    return np.concatenate(documents), np.stack([np.append(0, ends[:-1]), ends], 1), tokenizer


STORIES = [story(5, index) for index in range(40)]


def test_the_parts_sum_to_the_whole_and_their_surprisal_to_that_of_the_story():
    ids, spans, tokenizer = corpus([s.text for s in STORIES])
    losses = np.random.default_rng(1).gamma(1.0, 1.0, len(ids)).astype(np.float32)  # as a model's
    totals = split_loss(losses, ids, spans, tokenizer)
    assert totals.surprisal_bits.sum(1) == pytest.approx([s.surprisal_bits for s in STORIES], abs=1e-6)
    assert totals.loss_bits.sum() == pytest.approx(losses.sum(dtype=float) / math.log(2), abs=1e-6)
    assert totals.tokens.sum() == len(ids)
    found = summarize_phenomena(totals)
    whole = losses.sum(dtype=float) / math.log(2) - sum(s.surprisal_bits for s in STORIES)
    parts = sum(part["excess_bits_per_story"] for part in found.values())
    assert list(found) == list(PHENOMENA) and parts == pytest.approx(whole / len(STORIES), abs=1e-6)
    above = (totals.loss_bits - totals.surprisal_bits)[:, INDEX_OF["new word"]]
    assert found["new word"]["excess_se"] == pytest.approx(above.std(ddof=1) / math.sqrt(40))


def test_tokens_take_the_surprisal_of_their_own_characters():
    ids, spans, tokenizer = corpus([s.text for s in STORIES])
    losses = []
    for s in STORIES:
        bits = derive(s.text).surprisal_bits
        ends = np.cumsum([len(piece) for piece in PIECE.findall(s.text)])
        losses += [*np.diff(bits[[0, *ends, len(s.text) + 1]]) * math.log(2)]
    totals = split_loss(np.array(losses), ids, spans, tokenizer)
    assert np.abs(totals.loss_bits - totals.surprisal_bits).max() < 1e-9
    assert totals.surprisal_bits[:, INDEX_OF["dialogue"]].max() < 1e-9


def test_every_token_is_counted_where_it_belongs():
    number = next(n for n, plot in enumerate(plots()) if plot.literals[0] == "One ")
    text = render([number, *[0] * len(plots()[number].num_options)])
    hero = next(f for f in plots()[number].fields if f.slot_name == "hero" and not f.form).words[0]
    ids, spans, tokenizer = corpus([text, text])
    tokens = PIECE.findall(text)

    def phenomenon_of(index: int) -> str:
        losses = np.zeros(len(ids))
        losses[index] = 1.0
        return PHENOMENA[int(split_loss(losses, ids, spans, tokenizer).loss_bits[0].argmax())]

    names = [i for i, token in enumerate(tokens) if token.strip() == hero]
    assert [phenomenon_of(i) for i in names[:2]] == ["new name", "repeated name"]
    assert phenomenon_of(0) == "which plot" and phenomenon_of(len(tokens)) == "ending"
    inside = next(i for i, token in enumerate(tokens) if i and token[0].isalpha() and tokens[i - 1][-1].isalpha())
    assert phenomenon_of(inside) == "inside a word"
    pronouns = {phenomenon_of(i) for i, token in enumerate(tokens) if token.strip() in ("her", "She", "she")}
    assert pronouns == {"pronoun and gender"}


def test_tokens_with_other_bytes_than_their_text_are_refused():
    ids, spans, tokenizer = corpus([s.text for s in STORIES[:2]])
    tokenizer.bytes_of = lambda ids: np.full(len(ids), 2)
    with pytest.raises(DataError, match="its tokens have"):
        split_loss(np.zeros(len(ids)), ids, spans, tokenizer)


def test_other_text_is_refused():
    ids, spans, tokenizer = corpus(["Once upon a time", "there was no story."])
    with pytest.raises(DataError, match="not a story"):
        split_loss(np.zeros(len(ids)), ids, spans, tokenizer)


def test_only_stories_that_the_tokenizer_keeps_are_split_by_phenomenon(capsys):
    ids = np.array([1, EOT, 2, EOT], np.uint16)
    validation = TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": EOT}})
    losses, other = np.zeros(len(ids)), types.SimpleNamespace(decode=lambda ids: "no story", bytes_of=np.ones_like)
    headers, stories = (
        dataclasses.replace(validation, meta={**validation.meta, "surprisal_bits": bits}) for bits in (None, 50.0)
    )
    assert split_by_phenomenon(losses, headers, other) == {} and capsys.readouterr().out == ""
    assert split_by_phenomenon(losses, stories, other) == {}
    assert "not split by phenomenon: not a story of the grammar" in capsys.readouterr().out

"""The loss on stories by phenomenon: the parts are the whole, and each token is counted where it belongs."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from extras.probes.phenomena import PHENOMENA, derive_stories, split_by_phenomenon
from lm.text.sources.stories.grammar import plots, render, story
from lm.tokens.tokenfile import TokenFile

PIECE = re.compile(r" ?\w{1,4}|.", re.S)  # words of more than four letters are several tokens
STORIES = [story(5, index) for index in range(25)]


class Pieces:
    """A tokenizer of pieces of the texts that it is given."""

    def __init__(self, texts: list[str]):
        self.pieces = ["", *sorted({piece for text in texts for piece in PIECE.findall(text)})]

    def decode(self, ids) -> str:
        return "".join(self.pieces[i] for i in ids)

    def bytes_of(self, ids) -> np.ndarray:
        return np.array([len(self.pieces[i].encode()) for i in ids], np.uint8)


def corpus(texts: list[str], surprisal_bits: float | None = 1.0) -> tuple[TokenFile, Pieces]:
    """Return a token file in memory and its tokenizer."""
    tokenizer = Pieces(texts)
    ids = [i for text in texts for i in [*map(tokenizer.pieces.index, PIECE.findall(text)), 0]]
    meta = {"tokenizer": {"eot_id": 0}, "surprisal_bits": surprisal_bits}
    return TokenFile(Path("validation.bin"), np.array(ids, np.uint16), meta), tokenizer


def test_the_parts_sum_to_the_whole_and_the_surprisal_to_that_of_the_stories():
    validation, tokenizer = corpus([s.text for s in STORIES])
    derived = derive_stories(validation, tokenizer)
    bits = sum(s.surprisal_bits for s in STORIES)
    assert derived.surprisal_nats.sum() / math.log(2) == pytest.approx(bits, abs=1e-6)
    losses = np.random.default_rng(1).gamma(1.0, 1.0, len(validation.ids)).astype(np.float32)
    found = split_by_phenomenon(losses, derived, validation.spans)
    whole = losses.sum(dtype=float) / math.log(2) - bits
    assert list(found) == list(PHENOMENA)
    assert sum(part["excess_bits_per_story"] for part in found.values()) == pytest.approx(
        whole / len(STORIES), abs=1e-4
    )
    assert sum(part["tokens_per_story"] for part in found.values()) == pytest.approx(len(losses) / len(STORIES))
    exact = split_by_phenomenon(derived.surprisal_nats, derived, validation.spans)
    assert all(abs(part["excess_bits_per_story"]) + part["excess_se"] < 1e-9 for part in exact.values())
    assert exact["dialogue"]["surprisal_bits_per_story"] < 1e-9 < exact["new word"]["surprisal_bits_per_story"]


def test_every_token_is_counted_where_it_belongs():
    number = next(n for n, plot in enumerate(plots()) if plot.literals[0] == "One ")
    text = render([number, *[0] * len(plots()[number].num_options)])
    hero = next(f for f in plots()[number].fields if f.slot_name == "hero" and not f.form).words[0]
    tokens, derived = PIECE.findall(text), derive_stories(*corpus([text]))
    kinds = [PHENOMENA[i] for i in derived.phenomenon]
    names = [i for i, token in enumerate(tokens) if token.strip() == hero]
    assert [kinds[i] for i in names[:2]] == ["new name", "repeated name"]
    assert kinds[0] == "which plot" and kinds[-1] == "ending"
    inside = next(i for i, token in enumerate(tokens) if i and token[0].isalpha() and tokens[i - 1][-1].isalpha())
    assert kinds[inside] == "inside a word"
    pronouns = {kinds[i] for i, token in enumerate(tokens) if token.strip() in ("her", "She", "she")}
    assert pronouns == {"pronoun and gender"}


def test_only_stories_that_the_tokenizer_keeps_are_derived(capsys):
    assert derive_stories(*corpus([s.text for s in STORIES[:2]], None)) is None and capsys.readouterr().out == ""
    assert derive_stories(*corpus(["Once upon a time", "there was no story."])) is None
    assert "the surprisal of the tokens is unknown: not a story of the grammar" in capsys.readouterr().out
    validation, tokenizer = corpus([s.text for s in STORIES[:2]])
    tokenizer.bytes_of = lambda ids: np.full(len(ids), 2)
    assert derive_stories(validation, tokenizer) is None and "its tokens have" in capsys.readouterr().out

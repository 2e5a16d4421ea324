"""Split the loss on generated stories over what a story consists of: names, pronouns, returning objects, …

The grammar (lm.text.sources.stories) knows the probability of each beginning of a story. So the information of a token
is known: the drop of -log2 P from the beginning before it to the one with it. The tokens of a story add up to its
surprisal. What the model's loss has above that is its excess; it is summed over the tokens of each phenomenon.

A single token's excess may be negative, because where a token ends tells something of the characters after it.
"""

import math
from typing import NamedTuple

import numpy as np

from lm.text.sources.stories.derivation import Derivation, derive
from lm.text.sources.stories.grammar import FORMS, Field
from lm.tokenizer.load import Tokenizer

PERSONS = ("hero", "friend", "pet", "elder", "neighbor")
PHENOMENA = (
    "which plot",  # fixed text, while several plots are possible
    "a new name",
    "a name that returns",
    "pronoun and gender",  # he, her, brother, queen, …: words that depend on a name
    "a new word",  # the first mention of anything else
    "an object that returns",
    "dialogue",  # fixed text between quotation marks
    "fixed text",
    "ending",  # the closing sentence, and the end of the story
    "inside a word",  # tokens that continue a word, whatever it is
)
NUMBER = {name: number for number, name in enumerate(PHENOMENA)}


class Excess(NamedTuple):
    """Of D stories and the P phenomena: tokens, bits of information, and bits of loss, each (D, P)."""

    tokens: np.ndarray
    information_bits: np.ndarray
    loss_bits: np.ndarray


def split_loss(losses: np.ndarray, ids: np.ndarray, spans: np.ndarray, tokenizer: Tokenizer) -> Excess:
    """Return the loss of stories by phenomenon: losses (N,) in nats of ids (N,), documents at `spans` (D, 2).

    Raises DataError if a document is not a story of the grammar.
    """
    sums = Excess(*np.zeros((3, len(spans), len(PHENOMENA))))
    for row, (start, end) in enumerate(spans):
        text = tokenizer.decode(ids[start : end - 1])  # the last one is the end of the text
        derivation = derive(text)
        ends = np.append(_characters(text, tokenizer.bytes_of(ids[start : end - 1])), len(text) + 1)
        begins = np.concatenate([[0], ends[:-1]])
        kinds = _kinds(text, derivation)
        numbers = [_phenomenon(text, begin, kinds) for begin in begins]
        information = derivation.bits[ends] - derivation.bits[begins]
        for total, values in zip(sums, (np.ones(len(ends)), information, losses[start:end] / math.log(2)), strict=True):
            total[row] = np.bincount(numbers, values, len(PHENOMENA))
    return sums


def summarize_excess(excess: Excess) -> dict[str, dict[str, float]]:
    """Return phenomenon → tokens, information, loss and excess (bits) per story; `excess_se` needs two stories."""
    num_stories = len(excess.tokens)
    above = excess.loss_bits - excess.information_bits  # (D, P)
    columns = {
        "tokens_per_story": excess.tokens.mean(0),
        "information_bits_per_story": excess.information_bits.mean(0),
        "loss_bits_per_story": excess.loss_bits.mean(0),
        "excess_bits_per_story": above.mean(0),
        "excess_se": above.std(0, ddof=1) / math.sqrt(num_stories),
    }
    return {name: {key: float(values[i]) for key, values in columns.items()} for i, name in enumerate(PHENOMENA)}


def _characters(text: str, token_bytes: np.ndarray) -> np.ndarray:
    """Return after how many characters each token ends, (T,), given its bytes (T,); part of one counts as none."""
    ends = np.cumsum([len(character.encode()) for character in text])
    return np.searchsorted(ends, np.cumsum(token_bytes, dtype=np.int64), side="right")


def _kinds(text: str, derivation: Derivation) -> np.ndarray:
    """Return the number of the phenomenon of each character, and of the end: (n + 1,)."""
    kinds = np.full(len(text) + 1, NUMBER["ending"])
    for start, end, field in derivation.stretches:
        kinds[start:end] = NUMBER["fixed text" if field is None else _kind_of_field(field)]
    quotes = np.cumsum([character == '"' for character in text]) % 2 == 1
    fixed = kinds[:-1] == NUMBER["fixed text"]
    kinds[:-1][fixed & quotes] = NUMBER["dialogue"]
    kinds[:-1][fixed & (derivation.num_plots[:-1] > 1)] = NUMBER["which plot"]
    return kinds


def _kind_of_field(field: Field) -> str:
    """Return the phenomenon of a field's characters."""
    if field.slot_name == "closing":
        return "ending"
    if field.form in FORMS:
        return "pronoun and gender"
    is_name = field.slot_name in PERSONS
    if field.is_first:
        return "a new name" if is_name else "a new word"
    return "a name that returns" if is_name else "an object that returns"


def _phenomenon(text: str, begin: int, kinds: np.ndarray) -> int:
    """Return the phenomenon of the token that begins at a character: that of its first character but a space."""
    if begin > 0 and text[begin - 1 : begin + 1].isalpha() and begin < len(text):
        return NUMBER["inside a word"]
    return int(kinds[min(begin + (text[begin : begin + 1] == " "), len(text))])

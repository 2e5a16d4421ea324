"""Split the loss on generated stories over what a story consists of: names, pronouns, repeated objects, …

The grammar gives the probability of every prefix of a story. The surprisal of a token is the rise of -log2 P from the
prefix before it to the prefix with it; the excess is the model's loss minus this surprisal (README.md says what it
means).
"""

import math
from typing import NamedTuple

import numpy as np

from extras.probes.derivation import Derivation, derive
from lm.core.errors import DataError
from lm.text.sources.stories.grammar import FORMS, Field
from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

PERSONS = ("hero", "friend", "pet", "elder", "neighbor")
PHENOMENA = (
    "which plot",  # fixed text, while several plots are possible
    "new name",
    "repeated name",
    "pronoun and gender",  # he, her, brother, queen, …: words that depend on a name
    "new word",  # the first mention of anything else
    "repeated object",
    "dialogue",  # fixed text between quotation marks
    "fixed text",
    "ending",  # the closing sentence, and the end of the story
    "inside a word",  # tokens that continue a word, whatever it is
)
INDEX_OF = {name: index for index, name in enumerate(PHENOMENA)}


class Stories(NamedTuple):
    """What the grammar knows of tokens: their surprisal in nats (N,), and the index of their phenomenon (N,)."""

    surprisal_nats: np.ndarray
    phenomenon: np.ndarray


def derive_stories(validation: TokenFile, tokenizer: Tokenizer) -> Stories | None:
    """Return what the grammar knows of each token; None for other text, or if the tokenizer has changed a story."""
    if validation.meta["surprisal_bits"] is None:
        return None
    try:
        derived = [_derive_tokens(validation.ids[start:end], tokenizer) for start, end in validation.spans]
    except DataError as error:
        print(f"the surprisal of the tokens is unknown: {error}", flush=True)
        return None
    return Stories(*(np.concatenate(column) for column in zip(*derived, strict=True)))


def split_by_phenomenon(losses: np.ndarray, stories: Stories, spans: np.ndarray) -> dict[str, dict[str, float]]:
    """Return phenomenon → tokens, surprisal, loss and excess in bits per story, and the standard error of the excess.

    losses: (N,) in nats. spans: (D, 2), the tokens of each story. A single story gives no standard error.
    """
    num_stories = len(spans)
    cell = np.repeat(np.arange(num_stories), spans[:, 1] - spans[:, 0]) * len(PHENOMENA) + stories.phenomenon
    tokens, surprisal, loss = (
        np.bincount(cell, values, num_stories * len(PHENOMENA)).reshape(num_stories, -1)
        for values in (np.ones(len(cell)), stories.surprisal_nats / math.log(2), losses / math.log(2))
    )  # (D, P)
    columns = {
        "tokens_per_story": tokens.mean(0),
        "surprisal_bits_per_story": surprisal.mean(0),
        "loss_bits_per_story": loss.mean(0),
        "excess_bits_per_story": (loss - surprisal).mean(0),
    }
    if num_stories > 1:
        columns["excess_se"] = (loss - surprisal).std(0, ddof=1) / math.sqrt(num_stories)
    return {name: {key: float(values[i]) for key, values in columns.items()} for i, name in enumerate(PHENOMENA)}


def _derive_tokens(ids: np.ndarray, tokenizer: Tokenizer) -> Stories:
    """Return what the grammar knows of ids (T,), a story and the end of the text.

    Raises DataError if it is not a story of the grammar, or its tokens have other bytes than its text.
    """
    text = tokenizer.decode(ids[:-1])
    derivation = derive(text)
    # Count the whole characters up to the end of each token.
    character_ends = np.cumsum([len(character.encode()) for character in text])
    token_ends = np.cumsum(tokenizer.bytes_of(ids[:-1]), dtype=np.int64)
    if token_ends[-1] != character_ends[-1]:
        raise DataError(f"its tokens have {token_ends[-1]} bytes, its text has {character_ends[-1]}: {text[:60]!r}…")
    ends = np.append(np.searchsorted(character_ends, token_ends, side="right"), len(text) + 1)
    begins, kinds = np.append(0, ends[:-1]), _kinds(text, derivation)
    bits = derivation.surprisal_bits[ends] - derivation.surprisal_bits[begins]
    return Stories(bits * math.log(2), np.array([_phenomenon(text, begin, kinds) for begin in begins]))


def _kinds(text: str, derivation: Derivation) -> np.ndarray:
    """Return the index of the phenomenon of each character, and of the end: (n + 1,) int64."""
    kinds = np.full(len(text) + 1, INDEX_OF["ending"])
    for start, end, field in derivation.spans:
        kinds[start:end] = INDEX_OF["fixed text" if field is None else _kind_of_field(field)]
    is_quoted = np.cumsum([character == '"' for character in text]) % 2 == 1
    is_fixed = kinds[:-1] == INDEX_OF["fixed text"]
    kinds[:-1][is_fixed & is_quoted] = INDEX_OF["dialogue"]
    kinds[:-1][is_fixed & (derivation.num_plots[:-1] > 1)] = INDEX_OF["which plot"]
    return kinds


def _kind_of_field(field: Field) -> str:
    if field.slot_name == "closing":
        return "ending"
    if field.form in FORMS:
        return "pronoun and gender"
    is_name = field.slot_name in PERSONS
    if field.is_first:
        return "new name" if is_name else "new word"
    return "repeated name" if is_name else "repeated object"


def _phenomenon(text: str, begin: int, kinds: np.ndarray) -> int:
    """Return the phenomenon of the token that begins at a character: that of it, or of the next one after a space."""
    if 0 < begin < len(text) and text[begin - 1 : begin + 1].isalpha():
        return INDEX_OF["inside a word"]
    return int(kinds[min(begin + (text[begin : begin + 1] == " "), len(text))])

"""Split the loss on generated stories over what a story consists of: names, pronouns, repeated objects, …

The grammar (lm.text.sources.stories) gives the probability of every prefix of a story. The surprisal of a token is the
rise of -log2 P from the prefix before it to the prefix with it. The excess is the model's loss minus this surprisal; it
is summed over the tokens of each phenomenon.

Only the sum over a story is exact. The end of a token also says something about the next characters, for which the next
token then pays less, so that the excess of a phenomenon may be slightly negative.
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


class Totals(NamedTuple):
    """Of D stories and P phenomena: tokens, bits of surprisal, and bits of loss, each (D, P) float64."""

    tokens: np.ndarray
    surprisal_bits: np.ndarray
    loss_bits: np.ndarray


def split_by_phenomenon(losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer) -> dict[str, dict]:
    """Return {"phenomena": name → figures} of generated stories, whose grammar is known; {} for other text."""
    if validation.meta["surprisal_bits"] is None or len(validation.spans) < 2:
        return {}
    try:
        return {"phenomena": summarize_phenomena(split_loss(losses, validation.ids, validation.spans, tokenizer))}
    except DataError as error:
        print(f"the loss is not split by phenomenon: {error}", flush=True)
        return {}


def split_loss(losses: np.ndarray, ids: np.ndarray, spans: np.ndarray, tokenizer: Tokenizer) -> Totals:
    """Return the totals of stories by phenomenon, given losses (N,) in nats of ids (N,), and documents' spans (D, 2).

    Raises DataError if a document is not a story of the grammar, or its tokens have other bytes than its text.
    """
    totals = Totals(*np.zeros((3, len(spans), len(PHENOMENA))))
    for row, (start, end) in enumerate(spans):
        text, derivation, begins, surprisal = derive_tokens(ids[start:end], tokenizer)
        kinds = _kinds(text, derivation)
        indices = [_phenomenon(text, begin, kinds) for begin in begins]
        loss_bits = losses[start:end].astype(np.float64) / math.log(2)
        for total, values in zip(totals, (np.ones(end - start), surprisal, loss_bits), strict=True):
            total[row] = np.bincount(indices, values, len(PHENOMENA))
    return totals


def derive_tokens(ids: np.ndarray, tokenizer: Tokenizer) -> tuple[str, Derivation, np.ndarray, np.ndarray]:
    """Return a story's text and derivation, and each token's first character (T,) and surprisal (T,) in bits.

    `ids` (T,) end with that of the end of the text. Raises DataError as `split_loss`.
    """
    text = tokenizer.decode(ids[:-1])
    derivation = derive(text)
    ends = np.append(_ends(text, tokenizer.bytes_of(ids[:-1])), len(text) + 1)
    begins = np.concatenate([[0], ends[:-1]])
    return text, derivation, begins, derivation.surprisal_bits[ends] - derivation.surprisal_bits[begins]


def summarize_phenomena(totals: Totals) -> dict[str, dict[str, float]]:
    """Return phenomenon → tokens, surprisal, loss and excess (bits) per story; `excess_se` needs two stories."""
    num_stories = len(totals.tokens)
    excess = totals.loss_bits - totals.surprisal_bits  # (D, P)
    columns = {
        "tokens_per_story": totals.tokens.mean(0),
        "surprisal_bits_per_story": totals.surprisal_bits.mean(0),
        "loss_bits_per_story": totals.loss_bits.mean(0),
        "excess_bits_per_story": excess.mean(0),
        "excess_se": excess.std(0, ddof=1) / math.sqrt(num_stories),
    }
    return {name: {key: float(values[i]) for key, values in columns.items()} for i, name in enumerate(PHENOMENA)}


def _ends(text: str, token_bytes: np.ndarray) -> np.ndarray:
    """Return the number of whole characters (T,) up to the end of each token, given the tokens' bytes (T,)."""
    character_ends = np.cumsum([len(character.encode()) for character in text])
    token_ends = np.cumsum(token_bytes, dtype=np.int64)
    if token_ends[-1] != character_ends[-1]:
        raise DataError(f"its tokens have {token_ends[-1]} bytes, its text has {character_ends[-1]}: {text[:60]!r}…")
    return np.searchsorted(character_ends, token_ends, side="right")


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
    """Return the phenomenon of a field's characters."""
    if field.slot_name == "closing":
        return "ending"
    if field.form in FORMS:
        return "pronoun and gender"
    is_name = field.slot_name in PERSONS
    if field.is_first:
        return "new name" if is_name else "new word"
    return "repeated name" if is_name else "repeated object"


def _phenomenon(text: str, begin: int, kinds: np.ndarray) -> int:
    """Return the index of the phenomenon of the token that begins at character `begin`.

    It is that of its first character, or of the next one if the first is a space.
    """
    if 0 < begin < len(text) and text[begin - 1 : begin + 1].isalpha():
        return INDEX_OF["inside a word"]
    return int(kinds[min(begin + (text[begin : begin + 1] == " "), len(text))])

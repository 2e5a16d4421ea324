"""Guess that a text repeats itself: a model without training, which is mixed with the trained one.

After two tokens it looks for the last place where they stood side by side, in the document so far or else in the
training text, and guesses the token that followed. As long as its guesses are right, it goes on from there. Compressors
call this a match model (Mahoney 2005, "Adaptive weighing of context models for lossless data compression").

The mixture gives the guess the weight w, and 1 - w times the probabilities of the trained model to all tokens. So it
adds up to 1, and depends on earlier tokens alone. Guesses that follow n right ones share a w: the mean share of the
guess in the probability that the mixture gave the token, w / (w + (1 - w) p) or 0 (the EM algorithm, online). Nothing
but products, quotients and sums decides w, so it is the same on every machine.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lm.exact.order import exp, log

LONGEST_RUN = 32  # right guesses in a row; guesses after more of them share a weight
TRAIN_TOKENS = 2**24  # that are looked up, the last ones of the training text: an index of all could fill the memory
SCALE = 2**16  # of a weight of 1


class Guess(NamedTuple):
    """The next token as the match model guesses it, and the weight of the guess, from 0 to below SCALE."""

    token: int
    weight: int


class MatchModel:
    """Give the `guess` of the next token, then `append` the token; at first, a document begins."""

    def __init__(self, train_ids: np.ndarray, vocab_size: int, eot_id: int):
        """train_ids: (M,) of any integer type."""
        self.vocab_size = vocab_size
        self.eot_id = eot_id
        # The pairs of neighbours in the training text, ascending, and the place after the last occurrence of each.
        self.train_ids = train_ids[-TRAIN_TOKENS:]
        ids = self.train_ids.astype(np.int64)
        pairs = ids[:-1] * vocab_size + ids[1:]
        self.train_pairs, from_end = np.unique(pairs[::-1], return_index=True)
        self.train_places = len(ids) - from_end
        # The document so far, after the end of the one before, and the place after the last occurrence of each pair.
        self.document = [eot_id]
        self.places: dict[int, int] = {}
        # The text and the place from which the next token is guessed, and how many guesses were right before.
        self.text: Sequence[int] | np.ndarray | None = None
        self.place = 0
        self.run = 0
        # The shares and the number of the guesses of each run; they begin with one that was right and one that was not.
        self.shares = [1.0] * (LONGEST_RUN + 1)
        self.counts = [2] * (LONGEST_RUN + 1)

    def guess(self) -> Guess | None:
        """Return the guess of the next token, None if there is none."""
        if self.text is None:
            return None
        weight = int(SCALE * self.shares[self.run] / self.counts[self.run])
        return Guess(int(self.text[self.place]), weight)

    def append(self, token: int, probability: float) -> None:
        """Go on to the token after this one, to which the trained model gave a probability."""
        # Learn from the guess.
        guess = self.guess()
        is_right = False
        if guess is not None:
            is_right = guess.token == token
            self.counts[self.run] += 1
            if is_right:
                weight = guess.weight / SCALE
                self.shares[self.run] += weight / (weight + (1 - weight) * probability)

        # Begin a document.
        if token == self.eot_id:
            self.document = [token]
            self.places = {}
            self.text = None
            return

        # Follow a guess that was right, or look for the last two tokens.
        pair = self.document[-1] * self.vocab_size + token
        self.document.append(token)
        if is_right:
            self.place += 1
            self.run = min(self.run + 1, LONGEST_RUN)
        else:
            self._look_for(pair)
        if self.text is not None and self.place == len(self.text):
            self.text = None
        self.places[pair] = len(self.document)

    def _look_for(self, pair: int) -> None:
        """Set the text and the place after a pair of tokens."""
        self.text = None
        self.run = 0
        if pair in self.places:
            self.text = self.document
            self.place = self.places[pair]
            self.run = 1  # the document itself is a better guide than the training text
            return
        i = int(self.train_pairs.searchsorted(pair))
        if i < len(self.train_pairs) and self.train_pairs[i] == pair:
            self.text = self.train_ids
            self.place = int(self.train_places[i])


def nats_with_copies(nats: np.ndarray, ids: np.ndarray, match_model: MatchModel) -> np.ndarray:
    """Return the nats (N,) float64 of the mixture for ids (N,), of which the trained model has nats (N,)."""
    probabilities = exp(-nats.astype(np.float32)).astype(np.float64)
    weights = np.zeros(len(ids))
    is_right = np.zeros(len(ids), bool)
    for n, (token, probability) in enumerate(zip(ids.tolist(), probabilities.tolist(), strict=True)):
        guess = match_model.guess()
        if guess is not None:
            weights[n] = guess.weight / SCALE
            is_right[n] = guess.token == token
        match_model.append(token, probability)
    mixed = (1 - weights) * probabilities + weights * is_right
    return np.where(weights > 0, -log(mixed), nats)

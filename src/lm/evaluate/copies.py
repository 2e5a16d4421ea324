"""Find which spans of a text a token stream contains, in one pass over the stream and without an index."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.ngrams import ngram_hashes

_BLOCK_TOKENS = 1 << 20


class Copy(NamedTuple):
    """A span of a text that a stream contains, and that is not inside a longer such span of the text."""

    begin: int  # its first token in the text
    end: int  # the token after its last
    count: int  # how often the stream contains it
    positions: list[int]  # where in the stream the first of its occurrences begin

    @property
    def length(self) -> int:
        return self.end - self.begin


def find_copies(texts: list[np.ndarray], stream: np.ndarray, n: int, max_positions: int = 1) -> list[list[Copy]]:
    """Return for each text (N,) its copies of at least n tokens from the stream (M,), in order.

    At most `max_positions` occurrences of a copy are listed. The memory does not grow with M.
    """
    longest: dict[tuple[int, int], Copy] = {}
    for text, begin, positions in _shared_ngrams(texts, stream, n):
        ids = texts[text]
        if begin:  # where the stream also has the token before, a copy began earlier
            positions = positions[(positions == 0) | (stream[positions - 1] != ids[begin - 1])]
        length, positions = _longest_match(ids[begin:], stream, positions)
        known = longest.get((text, begin), Copy(begin, begin + n, 0, []))
        if begin + length > known.end:
            known = Copy(begin, begin + length, 0, [])
        if begin + length == known.end:
            listed = [*known.positions, *positions[:max_positions].tolist()][:max_positions]
            longest[text, begin] = known._replace(count=known.count + len(positions), positions=listed)

    copies: list[list[Copy]] = [[] for _ in texts]
    for (text, _), copy in sorted(longest.items()):
        if not copies[text] or copy.end > copies[text][-1].end:
            copies[text].append(copy)
    return copies


def text_pieces(ids: np.ndarray, copies: list[Copy], tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Return the text of ids (N,) in pieces, each with the tokens of the longest copy that holds it, 0 if it is new."""
    owner = np.full(len(ids), -1)
    for number in sorted(range(len(copies)), key=lambda number: copies[number].length):
        owner[copies[number].begin : copies[number].end] = number
    begins = np.flatnonzero(np.diff(owner, prepend=-2)).tolist()
    places = [len(tokenizer.decode(ids[:begin]).rstrip("\ufffd")) for begin in begins]  # so that no character is cut
    text = tokenizer.decode(ids)
    owners = owner[begins].tolist()
    texts = [text[place:end] for place, end in itertools.pairwise([*places, len(text)])]
    return [(text, copies[i].length if i >= 0 else 0) for text, i in zip(texts, owners, strict=True)]


def _shared_ngrams(texts: list[np.ndarray], stream: np.ndarray, n: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (text, begin, positions) of n-grams of the texts: where the stream has them, by hash, block by block."""
    begins = [(text, begin) for text, ids in enumerate(texts) for begin in range(len(ids) - n + 1)]
    if not begins:
        return
    known, group = np.unique(np.concatenate([ngram_hashes(ids, n) for ids in texts]), return_inverse=True)
    vocabulary = np.unique(np.concatenate(texts))
    for start in range(0, len(stream), _BLOCK_TOKENS):
        block = stream[start : start + _BLOCK_TOKENS + n - 1]
        # Hash only where n ids in a row are among those of the texts: looking them up takes a tenth of the time.
        is_in_texts = np.isin(block, vocabulary)
        is_possible = np.ones(max(0, len(block) - n + 1), bool)
        for i in range(n):
            is_possible &= is_in_texts[i : i + len(is_possible)]
        at = np.flatnonzero(is_possible)
        hashes = ngram_hashes(block[at[:, None] + np.arange(n)].ravel(), n)[::n]
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        is_shared = known[places] == hashes
        positions = start + at[is_shared]
        places = places[is_shared]
        for place in np.unique(places):
            for j in np.flatnonzero(group == place):
                yield *begins[j], positions[places == place]


def _longest_match(ids: np.ndarray, stream: np.ndarray, positions: np.ndarray) -> tuple[int, np.ndarray]:
    """Return how many of ids (N,) the stream has at most in a row from one of the positions on, and at which."""
    for length, token_id in enumerate(ids):
        inside = positions[positions + length < len(stream)]
        matching = inside[stream[inside + length] == token_id]
        if not len(matching):
            return length, positions
        positions = matching
    return len(ids), positions

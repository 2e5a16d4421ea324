"""Find which spans of a text a token stream contains, in one pass over the stream and without an index."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.ngrams import ngram_hashes

_BLOCK_TOKENS = 1 << 20


class Copy(NamedTuple):
    """A span of a text that also occurs in a stream, and is not inside a longer such span."""

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
    # Find the longest copy that begins at each token of each text.
    longest: dict[tuple[int, int], Copy] = {}
    for text, begin, positions in _shared_ngrams(texts, stream, n):
        ids = texts[text]
        if begin > 0:
            # If the stream also has the token before, the copy began earlier.
            begins_here = (positions == 0) | (stream[positions - 1] != ids[begin - 1])
            positions = positions[begins_here]
        length, positions = _longest_match(ids[begin:], stream, positions)
        if length < n:  # no position is left, or only the hash was the same
            continue
        copy = Copy(begin, begin + length, len(positions), positions[:max_positions].tolist())
        longest[text, begin] = _longer(longest.get((text, begin)), copy, max_positions)

    # Leave out a copy that is inside the one before it.
    copies: list[list[Copy]] = [[] for _ in texts]
    for (text, _), copy in sorted(longest.items()):
        copies_of_text = copies[text]
        if not copies_of_text or copy.end > copies_of_text[-1].end:
            copies_of_text.append(copy)
    return copies


def _longer(known: Copy | None, copy: Copy, max_positions: int) -> Copy:
    """Return the longer of two copies that begin at the same token; if they are equally long, both as one."""
    if known is None or copy.end > known.end:
        return copy
    if copy.end < known.end:
        return known
    positions = known.positions + copy.positions
    return known._replace(count=known.count + copy.count, positions=positions[:max_positions])


def text_pieces(ids: np.ndarray, copies: list[Copy], tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Return the text of ids (N,) in pieces, each with the tokens of the longest copy that holds it, 0 if it is new."""
    # Find the longest copy that holds each token: longer copies overwrite shorter ones, and -1 stands for none.
    by_length = sorted(copies, key=lambda copy: copy.length)
    owner = np.full(len(ids), -1)
    for number, copy in enumerate(by_length):
        owner[copy.begin : copy.end] = number

    # A piece begins where the owner changes. A character that would be cut there belongs to the piece after it.
    text = tokenizer.decode(ids)
    begins = np.flatnonzero(np.diff(owner, prepend=-2))
    text_before = [tokenizer.decode(ids[:begin]).rstrip("\ufffd") for begin in begins]
    bounds = [*map(len, text_before), len(text)]

    pieces = []
    for number, (begin, end) in zip(owner[begins], itertools.pairwise(bounds), strict=True):
        length = by_length[number].length if number >= 0 else 0
        pieces.append((text[begin:end], length))
    return pieces


def _shared_ngrams(texts: list[np.ndarray], stream: np.ndarray, n: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (text, begin, positions) of n-grams of the texts: where the stream has them, by hash, block by block."""
    begins = [(text, begin) for text, ids in enumerate(texts) for begin in range(len(ids) - n + 1)]
    if not begins:
        return
    hashes_of_begins = np.concatenate([ngram_hashes(ids, n) for ids in texts])
    known, place_of_begin = np.unique(hashes_of_begins, return_inverse=True)
    vocabulary = np.unique(np.concatenate(texts))
    for start in range(0, len(stream), _BLOCK_TOKENS):
        block = stream[start : start + _BLOCK_TOKENS + n - 1]

        # Hash only where n ids in a row are among those of the texts: looking them up takes a tenth of the time.
        candidates = _runs_of(vocabulary, block, n)
        candidate_ngrams = block[candidates[:, None] + np.arange(n)]
        hashes = ngram_hashes(candidate_ngrams.ravel(), n)[::n]  # those between two candidates are skipped

        # Keep the candidates whose hash is known.
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        is_shared = known[places] == hashes
        positions = start + candidates[is_shared]
        places = places[is_shared]

        for place in np.unique(places):
            positions_of_place = positions[places == place]
            for i in np.flatnonzero(place_of_begin == place):
                text, begin = begins[i]
                yield text, begin, positions_of_place


def _runs_of(vocabulary: np.ndarray, block: np.ndarray, n: int) -> np.ndarray:
    """Return the positions in block (M,) from which n ids in a row are in the vocabulary."""
    is_in_vocabulary = np.isin(block, vocabulary)
    is_run = np.ones(max(0, len(block) - n + 1), bool)
    for i in range(n):
        is_run &= is_in_vocabulary[i : i + len(is_run)]
    return np.flatnonzero(is_run)


def _longest_match(ids: np.ndarray, stream: np.ndarray, positions: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the length of the longest match of ids (N,) from one of the stream's positions on, and where it begins."""
    for length, token_id in enumerate(ids):
        inside = positions[positions + length < len(stream)]
        is_matching = stream[inside + length] == token_id
        matching = inside[is_matching]
        if len(matching) == 0:
            return length, positions
        positions = matching
    return len(ids), positions

"""Choose minimal pairs: two texts that differ in one word, of which the text before the word allows only one.

Pairs come in twos: two places exchange their words, so that each word is right once and wrong once. Both places have
the same characters around their words. A model that sees only the word and these characters is right in half of the
pairs. Places depend on characters only, so that runs with different tokenizers have the same pairs.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MAX_USES = 8  # pairs of one place, each with another wrong word, where there are too few places
LEAST_PAIRS = 50  # a kind with fewer pairs is left out


class Place(NamedTuple):
    """A word of a document that the text before it determines.

    Places of one kind and group may exchange their words, unless one of them refuses the word of the other.
    """

    kind: str
    document: int
    character: int  # where the word begins in the document
    word: str
    group: tuple
    refused: frozenset[str] = frozenset()


class Pair(NamedTuple):
    """A place with its right word and a wrong one."""

    kind: str
    document: int
    character: int
    right: str
    wrong: str


def neighbours(text: str, start: int, end: int) -> tuple[str, str]:
    """Return the characters before and after the word text[start:end], "" at the ends of the text."""
    return text[max(0, start - 1) : start], text[end : end + 1]


def choose_pairs(places: list[Place], num_pairs: int, rng: np.random.Generator) -> list[Pair]:
    """Return up to `num_pairs` pairs of the places of one kind, sorted; none if there are fewer than LEAST_PAIRS.

    A place is used again, up to MAX_USES times, only if using each place once gives too few pairs.
    """
    pairs: set[Pair] = set()
    exchanges = (each for _ in range(MAX_USES) for each in _exchanges(_take_turns(places, rng), pairs))
    for a, b in itertools.islice(exchanges, num_pairs // 2):
        pairs |= {_pair(a, b), _pair(b, a)}
    return sorted(pairs) if len(pairs) >= LEAST_PAIRS else []


def _pair(place: Place, other: Place) -> Pair:
    return Pair(place.kind, place.document, place.character, place.word, other.word)


def _take_turns(places: list[Place], rng: np.random.Generator) -> list[Place]:
    """Return the places in random order, but one of each document before the second one of any document."""
    turns: Counter[int] = Counter()
    numbered = []
    for place in (places[i] for i in rng.permutation(len(places))):
        numbered.append((turns[place.document], place))
        turns[place.document] += 1
    return [place for _, place in sorted(numbered, key=lambda each: each[0])]


def _exchanges(places: list[Place], pairs: set[Pair]) -> Iterator[tuple[Place, Place]]:
    """Yield two places at a time that can exchange their words and have not done so in `pairs`; each place once."""
    waiting: dict[tuple, dict[str, list[Place]]] = defaultdict(dict)  # group → word → places
    for place in places:
        by_word = waiting[place.group]
        partner = next((word for word, others in by_word.items() if _can_exchange(place, others[-1], pairs)), None)
        if partner is None:
            by_word.setdefault(place.word, []).append(place)
            continue
        yield by_word[partner].pop(), place
        if not by_word[partner]:
            del by_word[partner]


def _can_exchange(a: Place, b: Place, pairs: set[Pair]) -> bool:
    """Return True if the word of each place is wrong at the other one; words that begin alike might both be right."""
    if a.word.startswith(b.word) or b.word.startswith(a.word) or a.word in b.refused or b.word in a.refused:
        return False
    return _pair(a, b) not in pairs and _pair(b, a) not in pairs

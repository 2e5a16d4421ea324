"""Parse a story: find the field behind each span of characters, and the probability of each prefix in the grammar."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lm.core.errors import DataError
from lm.text.sources.stories.grammar import Field, Plot, plots


class Span(NamedTuple):
    """Characters start … end - 1 of a story, written by a field, or by the fixed text of the plot (None)."""

    start: int
    end: int
    field: Field | None


class Derivation(NamedTuple):
    """The spans of a story of n characters, in order, and the probabilities of its prefixes.

    surprisal_bits: (n + 2,) float64, -log2 of the probability that a story begins with the first i characters; the last
    entry is that of the story with its end. num_plots: (n + 1,) int64, the plots that can begin so.
    """

    spans: list[Span]
    surprisal_bits: np.ndarray
    num_plots: np.ndarray


def derive(text: str) -> Derivation:
    """Return the derivation of a story, with probabilities summed over all plots; DataError if no plot writes it."""
    followed = [follow(plot, text) for plot in plots()]
    complete = [number for number, (_, spans) in enumerate(followed) if spans is not None]
    if not complete:
        raise DataError(f"not a story of the grammar: {text[:60]!r}…")
    bits = np.array([of_plot for of_plot, _ in followed])  # (plots, n + 1), inf where a plot cannot begin so
    surprisal = math.log2(len(bits)) - np.log2(np.exp2(-bits).sum(0))
    (number,) = complete  # a text has one derivation
    spans = followed[number][1]
    assert spans is not None
    return Derivation(spans, np.append(surprisal, math.log2(len(bits)) + bits[number, -1]), np.isfinite(bits).sum(0))


def follow(plot: Plot, text: str) -> tuple[np.ndarray, list[Span] | None]:
    """Return -log2 P(first i characters | plot), (n + 1,) float64, and the spans if the plot writes the whole text.

    A plot chooses the options of a slot with equal probability, so that P is, for each slot, the fraction of its
    options that the text so far allows. No option begins with another, so a field ends where one of them is complete.
    """
    bits, position, known = np.full(len(text) + 1, np.inf), 0, 0.0
    bits[0] = 0.0
    options: list[Sequence[int]] = [range(count) for count in plot.num_options]
    spans: list[Span] = []
    for literal, field in zip(plot.literals, [*plot.fields, None], strict=True):
        shared = _shared_length(literal, text[position : position + len(literal)])
        bits[position : position + shared + 1] = known
        if shared < len(literal):
            return bits, None
        spans.append(Span(position, position + shared, None))
        position += shared
        if field is None:
            break
        matching, length = list(options[field.slot]), 0
        num_before = len(matching)
        while length < len(field.words[matching[0]]):
            length += 1
            matching = [i for i in matching if text[position : position + length] == field.words[i][:length]]
            if not matching:
                return bits, None
            bits[position + length] = known + math.log2(num_before / len(matching))
        spans.append(Span(position, position + length, field))
        position, known = position + length, float(bits[position + length])
        options[field.slot] = matching
    return bits, spans if position == len(text) else None


def _shared_length(a: str, b: str) -> int:
    """Return the length of the longest common prefix of two texts; b is not the longer one."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b))

"""Parse a story: name the field of each span of characters, and compute the probability of each prefix."""

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
    bits_of_plots, all_spans = zip(*(follow(plot, text) for plot in plots()), strict=True)
    bits = np.array(bits_of_plots)  # (plots, n + 1), inf where a plot cannot begin so
    number = next((number for number, spans in enumerate(all_spans) if spans), None)  # a text has one derivation
    if number is None:
        raise DataError(f"not a story of the grammar: {text[:60]!r}…")
    surprisal = math.log2(len(bits)) - np.log2(np.exp2(-bits).sum(0))
    whole = math.log2(len(bits)) + bits[number, -1]
    return Derivation(all_spans[number], np.append(surprisal, whole), np.isfinite(bits).sum(0))


def follow(plot: Plot, text: str) -> tuple[np.ndarray, list[Span]]:
    """Return -log2 P(first i characters | plot), (n + 1,) float64, and the spans; [] if the plot does not write it all.

    A plot chooses the options of a slot with equal probability, so that P is, for each slot, the fraction of its
    options that the text so far allows. No option begins with another, so a field ends where one of them is complete.
    """
    bits, spans, position = np.full(len(text) + 1, np.inf), [], 0
    bits[0] = 0.0
    allowed: list[Sequence[int]] = [range(count) for count in plot.num_options]
    for literal, field in zip(plot.literals, [*plot.fields, None], strict=True):
        for words, writer in (((literal,), None), *([(field.words, field)] if field else [])):
            options, start = allowed[writer.slot] if writer else [0], position
            before, known = len(options), bits[start]
            while position - start < len(words[options[0]]):
                position += 1
                options = [i for i in options if text.startswith(words[i][: position - start], start)]
                if not options:
                    return bits, []
                bits[position] = known + math.log2(before / len(options))
            spans.append(Span(start, position, writer))
            if writer:
                allowed[writer.slot] = options
    return bits, spans if position == len(text) else []

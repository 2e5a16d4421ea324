"""The range coder gives back every sequence of symbols, and its bytes are as many as their information."""

import itertools
import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from extras.compress.range_coder import Decoder, Encoder
from support.properties import check_examples

MAX_TOTAL = 2**50


class Step(NamedTuple):
    """One symbol of a sequence: the weights of all possible symbols, and which of them it is."""

    weights: list[int]
    symbol: int


LARGE = MAX_TOTAL // 5
WEIGHTS = st.one_of(
    st.integers(1, 3),
    st.sampled_from([255, 256, 2**30, LARGE - 1, LARGE]),
    st.integers(1, LARGE),
)


@st.composite
def random_steps(draw) -> Step:
    weights = draw(st.lists(WEIGHTS, min_size=1, max_size=5))
    symbol = draw(st.integers(0, len(weights) - 1))
    return Step(weights, symbol)


# Its middle symbol halves an interval around 1/2, which contains 1/2 at any depth.
HALVES = [1, 2, 1]
BELOW, MIDDLE, ABOVE = (Step(HALVES, symbol) for symbol in range(3))


@st.composite
def late_carries(draw) -> list[Step]:
    """Draw symbols of which the last ones decide on all bits before, so that a carry passes through many bytes."""
    depth = draw(st.integers(1, 300))
    return [MIDDLE] * depth + draw(st.lists(st.sampled_from([BELOW, MIDDLE, ABOVE]), max_size=30))


@check_examples
@given(st.one_of(st.lists(random_steps(), max_size=80), late_carries()))
def test_symbols_come_back_from_as_many_bytes_as_they_have_information(steps):
    encoder = Encoder()
    for weights, symbol in steps:
        encoder.encode(sum(weights[:symbol]), weights[symbol], sum(weights))
    encoded = encoder.finish()

    decoder = Decoder(encoded)
    for weights, symbol in steps:
        point = decoder.point(sum(weights))
        ends = itertools.accumulate(weights)
        assert sum(end <= point for end in ends) == symbol
        decoder.remove(sum(weights[:symbol]), weights[symbol], sum(weights))
    bits = sum(math.log2(sum(weights) / weights[symbol]) for weights, symbol in steps)
    assert len(encoded) <= bits / 8 + 1.01

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


def encode(steps: list[Step]) -> bytes:
    encoder = Encoder()
    for step in steps:
        before = sum(step.weights[: step.symbol])
        encoder.encode(before, step.weights[step.symbol], sum(step.weights))
    return encoder.finish()


def decode(encoded: bytes, all_weights: list[list[int]]) -> list[int]:
    decoder = Decoder(encoded)
    symbols = []
    for weights in all_weights:
        total = sum(weights)
        point = decoder.point(total)
        ends = itertools.accumulate(weights)
        symbol = sum(end <= point for end in ends)
        decoder.remove(sum(weights[:symbol]), weights[symbol], total)
        symbols.append(symbol)
    return symbols


def check(steps: list[Step]) -> None:
    """Check that the symbols come back from as many bytes as they have information."""
    encoded = encode(steps)
    decoded = decode(encoded, [step.weights for step in steps])
    assert decoded == [step.symbol for step in steps]
    bits = sum(math.log2(sum(step.weights) / step.weights[step.symbol]) for step in steps)
    assert len(encoded) <= bits / 8 + 1.01


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


@check_examples
@given(st.lists(random_steps(), max_size=80))
def test_symbols_come_back(steps):
    check(steps)


# Its middle symbol halves an interval around 1/2, which contains 1/2 at any depth.
HALVES = [1, 2, 1]
BELOW, MIDDLE, ABOVE = (Step(HALVES, symbol) for symbol in range(3))


@check_examples
@given(st.integers(1, 300), st.lists(st.sampled_from([BELOW, MIDDLE, ABOVE]), max_size=30))
def test_a_carry_passes_through_any_number_of_bytes(depth, steps):
    """What follows the middle symbols decides on all bits before."""
    check([MIDDLE] * depth + steps)

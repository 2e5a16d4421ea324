"""The range coder gives back every sequence of symbols, and its bytes are as many as their information."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extras.compress.range_coder import Decoder, Encoder
from support.properties import check_examples

MAX_TOTAL = 2**50
LARGE = MAX_TOTAL // 5
WEIGHTS = st.one_of(st.integers(1, 3), st.sampled_from([255, 256, 2**30, LARGE - 1, LARGE]), st.integers(1, LARGE))
STEPS = st.lists(WEIGHTS, min_size=1, max_size=5).flatmap(
    lambda weights: st.tuples(st.just(weights), st.integers(0, len(weights) - 1))
)

# A symbol of a sequence: the weights of all possible symbols, and which of them it is.
Step = tuple[list[int], int]


def encode(steps: list[Step]) -> bytes:
    encoder = Encoder()
    for weights, symbol in steps:
        encoder.encode(sum(weights[:symbol]), weights[symbol], sum(weights))
    return encoder.finish()


def decode(encoded: bytes, all_weights: list[list[int]]) -> list[int]:
    decoder = Decoder(encoded)
    symbols = []
    for weights in all_weights:
        point = decoder.point(sum(weights))
        symbol = next(i for i in range(len(weights)) if point < sum(weights[: i + 1]))
        decoder.remove(sum(weights[:symbol]), weights[symbol], sum(weights))
        symbols.append(symbol)
    return symbols


def information_bytes(steps: list[Step]) -> float:
    return sum(math.log2(sum(weights)) - math.log2(weights[symbol]) for weights, symbol in steps) / 8


def check(steps: list[Step]) -> bytes:
    """Check that the symbols come back from as many bytes as they have information; return the bytes."""
    encoded = encode(steps)
    assert decode(encoded, [weights for weights, _ in steps]) == [symbol for _, symbol in steps]
    assert len(encoded) <= information_bytes(steps) + 1.01
    return encoded


@check_examples
@given(st.lists(STEPS, max_size=80))
def test_symbols_come_back(steps):
    check(steps)


HALVES = [1, 2, 1]  # its middle symbol halves an interval around 1/2, which contains 1/2 at any depth


@check_examples
@given(st.integers(1, 300), st.lists(st.sampled_from([0, 1, 2]), max_size=30))
def test_a_carry_passes_through_any_number_of_bytes(depth, symbols):
    """What follows the middle symbols decides on all bits before."""
    check([(HALVES, symbol) for symbol in [1] * depth + symbols])


def test_a_carry_changes_bytes_that_were_written():
    undecided = [(HALVES, 1)] * 400
    below, above = (check([*undecided, (HALVES, symbol)]) for symbol in (0, 2))
    assert below[:50] == b"\x7f" + b"\xff" * 49
    assert above[:50] == b"\x80" + b"\x00" * 49


def test_the_size_is_the_information():
    draw = random.Random(1)
    steps = []
    for _ in range(5000):
        weights = [draw.randrange(1, 2 ** draw.randrange(1, 40)) for _ in range(6)]
        (symbol,) = draw.choices(range(6), weights)
        steps.append((weights, symbol))
    encoded = check(steps)
    assert len(encoded) >= information_bytes(steps) - 1


@pytest.mark.parametrize("total", [MAX_TOTAL, MAX_TOTAL - 1])
def test_a_symbol_of_weight_1_takes_the_bits_of_the_largest_total(total):
    first = ([1, total - 1], 0)
    last = ([total - 1, 1], 1)
    for steps in ([last] * 100, [first, last] * 50):
        assert len(check(steps)) >= 100 * 50 / 8 - 1


def test_a_long_run_of_a_likely_symbol_is_short():
    certain = ([9], 0)
    likely = ([1, 2**30, 1], 1)
    assert encode([certain] * 10_000) == b""
    assert len(check([likely] * 100_000)) <= 1


def test_other_bytes_give_other_symbols():
    steps = [([3, 1, 4], symbol) for symbol in [0, 1, 2, 2, 0, 1] * 30]
    encoded = encode(steps)
    all_weights = [weights for weights, _ in steps]
    for place in range(len(encoded) - 1):  # the last bits of the last byte may be any
        changed = bytearray(encoded)
        changed[place] ^= 1
        assert decode(bytes(changed), all_weights) != decode(encoded, all_weights)

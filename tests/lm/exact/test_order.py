"""lm.exact.order is the definition of exact numerics, and lm.exact.cpu has its bits."""

import itertools
import math
from fractions import Fraction

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from lm.exact import functions, order
from lm.exact.cpu import elementary
from lm.exact.cpu import kernels as cpu
from lm.exact.cpu.reductions import row_dot, row_max, row_sum
from lm.exact.cpu.registers import fma
from lm.exact.order import LANES
from support.exact_cases import CASES, Numbers, definition, num_differences


@pytest.fixture(autouse=True)
def quiet():
    """Let NumPy say nothing about numbers that are not finite."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def defined() -> dict[str, list[Tensor]]:
    """The results of all cases by their definition."""
    return {name: case(definition, "cpu") for name, case in CASES.items()}


def differences(expected: list[Tensor], found: list[Tensor]) -> int:
    """Return how many numbers of these results differ in their bits."""
    return sum(num_differences(ours, theirs) for ours, theirs in zip(expected, found, strict=True))


# The definition.


def to_float32(number: Fraction) -> float:
    """Return the nearest float32 number, of two the one whose last bit is 0."""
    if number == 0:
        return 0.0
    _, exponent = math.frexp(abs(float(number)))
    exponent -= 1
    if abs(number) < Fraction(2) ** exponent:  # float() has rounded up to a power of two
        exponent -= 1
    unit = Fraction(2) ** max(exponent - 23, -149)
    return float(round(number / unit) * unit)


def fma_in_fractions(a: np.float32, b: np.float32, c: np.float32) -> float:
    """Return a b + c, computed without rounding and then rounded once."""
    return to_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def triples(kind: str) -> list[np.ndarray]:
    """Return three arrays (2000,) of float32 numbers: factors, and what is added to their products."""
    random = np.random.default_rng(1)
    a, b, c = random.standard_normal((3, 2000))
    if kind == "of all sizes":
        c *= 2.0 ** random.integers(-40, 40, 2000)
    if kind == "subnormal":
        a *= 2.0**-70
        b *= 2.0**-70
        c *= 2.0**-140
    if kind == "ties":  # or so near to one that float64 sees no difference
        a = random.choice([1, -1], 2000) * (1 + 2.0**-12)
        b = np.full(2000, 1 + 2.0**-12)  # the square is 1 + 2^-11 + 2^-24
        c = random.choice([0.0, 2.0**-80, -(2.0**-80), 2.0**-120, -(2.0**-120)], 2000)
    return [np.float32(each) for each in (a, b, c)]


@pytest.mark.parametrize("kind", ["of all sizes", "subnormal", "ties"])
def test_fma_rounds_once(kind):
    a, b, c = triples(kind)

    found = order.fma(a, b, c).tolist()

    assert found == [fma_in_fractions(*triple) for triple in zip(a, b, c, strict=True)]
    if kind == "ties":
        assert found != np.float32(np.float64(a) * b + c).tolist(), "an fma that rounds twice could pass"


@numba.njit
def fma_of_the_processor(a, b, c):
    return fma(a, b, c)


def test_fma_of_special_numbers_is_that_of_the_processor():
    special = [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan]
    triples = np.array(list(itertools.product(special, repeat=3)), np.float32)
    expected = torch.tensor([fma_of_the_processor(*triple) for triple in triples])

    a, b, c = triples.T.copy()
    found = torch.from_numpy(order.fma(a, b, c))

    assert num_differences(expected, found) == 0


def test_a_sum_of_integers_has_every_term_once():
    for length in range(1, 3 * LANES + 2):
        x = np.random.default_rng(length).integers(-200, 200, length).astype(np.float32)
        wide = x.astype(np.float64)

        assert order.row_sum(x) == wide.sum()
        assert order.row_dot(x, x) == np.square(wide).sum()
        assert order.row_max(x) == wide.max()
        assert order.product(x[None], x[:, None]) == np.square(wide).sum()


# Its implementation.


@pytest.mark.parametrize("case", CASES)
def test_the_cpu_has_the_bits_of_the_definition_for_any_number_of_threads(case, defined, threads):
    for number in (1, 3):
        threads(number)
        found = CASES[case](cpu, "cpu")

        assert differences(defined[case], found) == 0, number


@numba.njit
def reductions(x, y):
    """Return sums and the largest number, by instructions that only a loop can call."""
    return row_sum(x), row_dot(x, y), row_max(x)


def test_rows_of_any_length_have_the_bits_of_the_definition():
    numbers = Numbers(1, "cpu")
    for length in range(1, 3 * LANES + 2):
        x = numbers.cancelling(length).numpy()
        y = numbers.normal(length).numpy()
        expected = np.array([order.row_sum(x), order.row_dot(x, y), order.row_max(x)], np.float32)

        found = np.array(reductions(x, y), np.float32)

        assert found.tobytes() == expected.tobytes(), length


LOW = np.float32([0.0, -0.0, -1e-45, -1e-30, -41.5, -42.0, -1e30, -np.inf, *np.linspace(-42, 0, 50_000)])
ABOVE_1 = np.float32([*np.linspace(1, 3, 20_000), *np.geomspace(1, 1e9, 20_000)])


@numba.njit
def of_each(function, x, out):
    for i in range(len(x)):
        out[i] = function(x[i])
    return out


@pytest.mark.parametrize(
    ("name", "x"),
    [("exp", LOW), ("sigmoid", LOW), ("sigmoid", -LOW), ("log", ABOVE_1)],
    ids=["exp", "sigmoid of negative numbers", "sigmoid of positive numbers", "log"],
)
def test_functions_of_numbers_have_the_bits_of_the_definition(name, x):
    expected = getattr(order, name)(x)

    found = of_each(getattr(elementary, name), x, np.empty_like(expected))

    assert found.tobytes() == expected.tobytes()


def test_a_mean_of_nats_has_the_bits_of_the_definition():
    nats = 1e4 * Numbers(2, "cpu").positive(1000)

    found = functions.mean_nats(nats)

    assert found.dtype == torch.float32
    assert float(found) == order.mean_nats(nats.numpy())
    nats[0] = torch.inf
    assert functions.mean_nats(nats).isnan()
    assert np.isnan(order.mean_nats(nats.numpy()))


def test_sums_of_rows_by_id_have_the_bits_of_the_definition():
    numbers = Numbers(18, "cpu")
    rows = numbers.cancelling(60, 16)
    ids = numbers.ids(24, 60)

    found = functions.sum_rows_by_id(rows, ids, 25)

    assert found.numpy().tobytes() == order.sum_rows_by_id(rows.numpy(), ids.numpy(), 25).tobytes()


def test_the_loss_and_its_gradients_have_the_bits_of_the_definition(monkeypatch):
    monkeypatch.setattr("lm.exact.cpu.loss.LOSS_ROWS", 256)
    numbers = Numbers(3, "cpu")
    h = numbers.normal(600, 8)
    head = numbers.normal(30, 8)
    targets = numbers.ids(30, 600)
    factors = numbers.normal(11)

    # The definition, of which the logits become their own gradient.
    logits = order.product(h.numpy(), head.numpy().T)
    nats = order.softmax_less_targets(logits, factors.numpy(), targets.numpy())
    loss = order.mean_nats(nats)
    scale = np.float32(1) / np.float32(600)
    grad_h = order.product(logits, head.numpy()) * scale
    grad_head = order.product(logits.T, h.numpy()) * scale

    # What a model calls.
    h.requires_grad_()
    head.requires_grad_()
    found = functions.cross_entropy(h, head, targets, 10**6, factors)
    found.backward()

    assert found.item() == loss
    assert h.grad.numpy().tobytes() == grad_h.tobytes()
    assert head.grad.numpy().tobytes() == grad_head.tobytes()

"""Calls of the functions that lm.exact.order, cpu and gpu have in common, and their results.

A case yields the results of one of these modules for numbers on a device; in CASES it takes both and returns a list.
Whoever computes, the results must be equal bit for bit. The numbers are hard to add: another order of additions gives
other bits. The shapes fit no tile, and the longest sums have three chains.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lm.exact import order
from lm.exact.order import AdamWScalars

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Newton-Schulz iteration


# The definition, for tensors.


def for_tensors(function):
    """Return a function of arrays as one of tensors, which updates them in place where the function does."""

    def call(*arguments):
        with np.errstate(all="ignore"):
            results = function(*tree_map_only(Tensor, Tensor.numpy, arguments))
        return tree_map_only(np.ndarray, torch.from_numpy, results)

    return call


def multiply_as_defined(a: Tensor, b: Tensor, out: Tensor, adds: bool = False) -> Tensor:
    return out.copy_(for_tensors(order.product)(a, b, out if adds else None))


def square_sums_as_defined(tensors: list[Tensor]) -> list[float]:
    return [for_tensors(order.square_sum)(x.reshape(-1)) for x in tensors]


definition = SimpleNamespace(
    **{name: for_tensors(function) for name, function in inspect.getmembers(order, inspect.isfunction)},
    pack=lambda b: b,
    multiply=multiply_as_defined,
    square_sums=square_sums_as_defined,
)


# Numbers.


class Numbers:
    """Draw tensors of one seed, on a CPU, and move them to a device."""

    def __init__(self, seed: int, device: str):
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def of_kind(self, kind: str, *shape: int) -> Tensor:
        """Return numbers of one of KINDS, which are methods."""
        return getattr(self, kind)(*shape)

    def normal(self, *shape: int) -> Tensor:
        return self.draw(*shape).to(self.device)

    def positive(self, *shape: int) -> Tensor:
        return (self.draw(*shape).abs() + 0.1).to(self.device)

    def ids(self, number: int, *shape: int) -> Tensor:
        return torch.randint(number, shape, generator=self.generator).to(self.device)

    def subnormal(self, *shape: int) -> Tensor:
        return (self.draw(*shape) * 1e-39).to(self.device)

    def vanishing(self, *shape: int) -> Tensor:
        """Return numbers whose products with a positive number like them round to -0."""
        return (self.draw(*shape).abs() * -1e-30).to(self.device)

    def cancelling(self, *shape: int) -> Tensor:
        """Return numbers from 1e-8 to 1e8 whose neighbours in a row have the other sign and often the same size."""
        sizes = 10 ** (8 * self.draw(*shape).clamp(-1, 1))
        signs = 1.0 - 2.0 * (torch.arange(shape[-1]) % 2)
        return (sizes * signs).to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros of both signs, and few other numbers."""
        x = self.draw(*shape)
        return torch.where(x.abs() < 2, x * 0.0, x).to(self.device)

    def with_nan(self, *shape: int) -> Tensor:
        """Return numbers of which one row is not a number."""
        x = self.draw(*shape)
        x.view(torch.int32)[shape[0] // 2] = 0x7FFFFFFF  # the NaN of a GPU
        return x.to(self.device)


KINDS = ("normal", "subnormal", "vanishing", "cancelling", "zeros", "with_nan")


def add_case(cases: dict, results: Callable[..., Iterator[Tensor]]) -> Callable[..., Iterator[Tensor]]:
    """Add a generator of the results of `kernels` for `numbers`, whose seed is the same on every device."""
    seed = len(cases)
    cases[results.__name__] = lambda kernels, device: list(results(kernels, Numbers(seed, device)))
    return results


CASES = {}
case = functools.partial(add_case, CASES)


# Products.


def multiply(kernels, a, b, out=None):
    """Return a @ b, added to `out` if it is given."""
    packed = kernels.pack(b)
    if out is not None:
        return kernels.multiply(a, packed, out.clone(), adds=True)
    undefined = torch.full((len(a), b.shape[1]), torch.nan, device=a.device)
    return kernels.multiply(a, packed, undefined)


# Every kind of number in one shape (M, K, N), and other shapes.
PRODUCTS = [
    *((kind, 19, 300, 21) for kind in KINDS),
    ("normal", 1, 1, 1),
    ("normal", 1, 513, 67),
    ("normal", 3, 16, 130),
    ("normal", 64, 256, 64),
    ("normal", 130, 90, 3),
    ("normal", 2, 1024, 5),
    ("normal", 7, 1792, 9),
]


@case
def products(kernels, numbers):
    for kind, M, K, N in PRODUCTS:
        a = numbers.of_kind(kind, M, K)
        b = numbers.of_kind(kind, K, N)
        yield multiply(kernels, a, b)
    negative = numbers.vanishing(3, 300)
    positive = -numbers.vanishing(300, 5)
    yield multiply(kernels, negative, positive)


@case
def product_of_layouts(kernels, numbers):
    a = numbers.normal(37, 270)
    b = numbers.normal(270, 41)
    out = numbers.normal(37, 41)
    for x in (a, a.T.contiguous().T):
        for y in (b, b.T.contiguous().T):
            yield multiply(kernels, x, y)
            yield multiply(kernels, x, y, out)


# Rows.


# Every kind of number in one shape, and other shapes.
ROWS = [
    *((kind, 11, 70) for kind in KINDS),
    ("normal", 1, 1),
    ("normal", 3, 64),
    ("normal", 300, 7),
    ("normal", 2, 200),
]


@case
def norms(kernels, numbers):
    """Return norms and their gradients."""
    for kind, *shape in ROWS:
        x = numbers.of_kind(kind, *shape)
        weight = numbers.normal(shape[1])
        r = numbers.positive(shape[0])
        grad = numbers.normal(*shape)
        yield from kernels.rms_norm(x, weight, 1e-6)
        yield from kernels.rms_norm_gradient(grad, x, weight, r)


@case
def sums_that_vanish(kernels, numbers):
    """Return gradients of a norm in which every term of a sum rounds to -0, and the sum must be +0."""
    for width in (60, 64, 70, 128):
        x = -numbers.vanishing(3, width)
        grad = numbers.vanishing(3, width)
        grad[:, :9] = 0  # x - (+0) and x - (-0) differ where x is -0
        grad[:, 9:12] = -0.0
        weight = numbers.normal(width) * 0
        r = numbers.positive(3)
        yield from kernels.rms_norm_gradient(grad, x, weight, r)


@case
def gates(kernels, numbers):
    for kind in KINDS:
        gate = 4 * numbers.of_kind(kind, 7, 40)
        up = numbers.normal(7, 40)
        grad = numbers.normal(7, 40)
        yield kernels.gated_gelu(gate, up)
        yield from kernels.gated_gelu_gradient(grad, gate, up)


# Attention.


def attend(
    kernels, numbers, B, T, H, K, D, window, past=0, short=False, documents=False, kind="normal"
) -> list[Tensor]:
    """Return the result, the weights, and without a `past` the gradients of queries, keys and values.

    The queries are those of the last T positions, after `past` ones. `documents` begin every nine positions.
    """
    S = past + T
    q = numbers.of_kind(kind, B, T, H, D)
    grad = numbers.of_kind(kind, B, T, H, D)
    k = numbers.of_kind(kind, B, S, K, D)
    v = numbers.of_kind(kind, B, S, K, D)
    position = torch.arange(S - T, S, dtype=torch.int32, device=q.device)
    first = (position - (window - 1)).clamp(min=0)
    if documents:
        first = first.maximum(position // 9 * 9)
    first = first.expand(B, T).contiguous()

    if short:
        out, p = kernels.short_attention(q, k, v, first, window)
        # The weights of what a query does not see are undefined.
        key_position = first[:, :, None, None] + torch.arange(p.shape[3], device=p.device)
        p = torch.where(key_position <= position[None, :, None, None], p, 0.0)
        gradient = kernels.short_attention_gradient
    else:
        out, p = kernels.attention(q, k, v, first)
        gradient = kernels.attention_gradient
    gradients = () if past else gradient(grad, q, k, v, first, p)
    return [out, p, *gradients]


FINITE = ("subnormal", "vanishing", "cancelling", "zeros")


# The numbers below are B, T, H, K, D and the window.


@case
def attention(kernels, numbers):
    yield from attend(kernels, numbers, 1, 70, 2, 1, 16, 70)
    yield from attend(kernels, numbers, 2, 40, 4, 2, 24, 20)
    yield from attend(kernels, numbers, 1, 40, 2, 2, 80, 40, documents=True)
    yield from attend(kernels, numbers, 1, 1, 1, 1, 1, 17)
    for kind in FINITE:
        yield from attend(kernels, numbers, 1, 21, 2, 1, 4, 18, kind=kind)


@case
def attention_of_long_sums(kernels, numbers):
    yield from attend(kernels, numbers, 1, 530, 1, 1, 2, 520)


@case
def attention_to_a_past(kernels, numbers):
    yield from attend(kernels, numbers, 2, 1, 2, 1, 16, 37, past=36)
    yield from attend(kernels, numbers, 1, 5, 2, 2, 8, 290, past=295)
    yield from attend(kernels, numbers, 2, 1, 2, 1, 16, 4, past=8, short=True)


@case
def short_attention(kernels, numbers):
    yield from attend(kernels, numbers, 2, 9, 4, 2, 16, 4, short=True)
    yield from attend(kernels, numbers, 1, 20, 2, 1, 24, 16, short=True, documents=True)
    yield from attend(kernels, numbers, 1, 3, 1, 1, 80, 7, short=True)
    yield from attend(kernels, numbers, 1, 1, 1, 1, 1, 1, short=True)
    for kind in FINITE:
        yield from attend(kernels, numbers, 1, 11, 2, 1, 4, 5, short=True, kind=kind)


# Cross-entropy.


@case
def losses(kernels, numbers):
    # The kind of the logits, their shape, and the number of entries with a factor.
    shapes = [
        *((kind, 5, 131, 0) for kind in KINDS),
        ("normal", 1, 1, 0),
        ("normal", 4, 64, 64),
        ("normal", 6, 200, 50),
    ]
    for kind, num_rows, num_entries, num_factors in shapes:
        logits = 3 * numbers.of_kind(kind, num_rows, num_entries)
        targets = numbers.ids(num_entries, num_rows)
        factors = numbers.normal(num_factors)
        each_nats = kernels.softmax_less_targets(logits, factors, targets)
        yield from (each_nats, logits)


@case
def nats(kernels, numbers):
    h = numbers.normal(5, 32)
    head = numbers.normal(101, 32)
    targets = numbers.ids(101, 5)
    yield kernels.token_nats(h, head, targets)


@case
def softmax(kernels, numbers):
    x = numbers.normal(131)
    x[3] = -torch.inf
    yield kernels.softmax(x)
    yield kernels.softmax(numbers.normal(1))


# Gradients and optimizers.


@case
def square_sums(kernels, numbers):
    tensors = [
        numbers.normal(9000),
        numbers.normal(0),
        numbers.normal(30, 50),
        numbers.subnormal(1),
        numbers.normal(5000),
    ]
    yield torch.tensor(kernels.square_sums(tensors), dtype=torch.float64)


@case
def multiples(kernels, numbers):
    unit = order.GRADIENT_UNIT
    special = [torch.nan, torch.inf, -torch.inf, 1e9, -1e9, 0.0, -0.0]
    ties = [0.5 * unit, -0.5 * unit, 1.5 * unit, 2.5 * unit]
    hard = torch.tensor([*special, *ties], device=numbers.device)
    x = torch.cat([hard, 1e-6 * numbers.normal(1100)])
    yield kernels.multiples(x, unit, order.LARGEST_GRADIENT)


@case
def adamw(kernels, numbers):
    scalars = AdamWScalars(beta1=0.9, beta2=0.95, decay=0.999, size=0.01, root=0.7, eps=1e-8)
    for kind in KINDS:
        p = numbers.normal(300, 4)
        grad = numbers.of_kind(kind, 300, 4)
        mean = numbers.normal(300, 4)
        square = numbers.positive(300, 4)
        kernels.adamw(p, grad, mean, square, scalars)
        yield from (p, mean, square)


@case
def orthogonalize(kernels, numbers):
    for shape in ((2, 16, 24), (1, 70, 90), (1, 1, 5)):
        yield kernels.orthogonalize(numbers.normal(*shape), COEFFICIENTS, 2)


@case
def sums_of_bags(kernels, numbers):
    starts = torch.tensor([0, 5, 5, 30, 60], device=numbers.device)
    yield kernels.sum_bags(numbers.normal(20, 16), numbers.ids(20, 60), starts)
    yield kernels.sum_bags(numbers.zeros(20, 70), numbers.ids(20, 60), starts)


INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int64: torch.int64}


def num_differences(expected: Tensor, found: Tensor) -> int:
    """Return how many numbers differ in their bits; all NaN are one."""
    found = found.cpu()
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return max(expected.numel(), found.numel(), 1)
    integers = INTEGERS[expected.dtype]
    differs = expected.contiguous().view(integers) != found.contiguous().view(integers)
    both_nan = expected.isnan() & found.isnan()
    return int((differs & ~both_nan).sum())

"""Calls of the functions that lm.exact.order, cpu and gpu have in common, and their results.

A case takes one of these modules and a device, and returns tensors. Whoever computes, they must be equal bit for bit.
The numbers are hard to add, the shapes fit no tile, and masks reveal the order of additions.
"""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from lm.exact import order

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Newton-Schulz iteration
HUGE = 2.0**30  # a float32 number that takes in every 1 added to it


# The definition, for tensors.


def for_tensors(function):
    """Return a function of arrays as one of tensors, which updates them in place where the function does."""

    def tensor_of(result):
        return torch.from_numpy(np.asarray(result)) if isinstance(result, np.ndarray) else result

    def call(*arguments):
        arrays = [each.numpy() if isinstance(each, Tensor) else each for each in arguments]
        with np.errstate(all="ignore"):
            result = function(*arrays)
        return tuple(map(tensor_of, result)) if isinstance(result, tuple) else tensor_of(result)

    return call


def multiply_as_defined(a: Tensor, b: Tensor, out: Tensor, adds: bool = False) -> Tensor:
    return out.copy_(for_tensors(order.product)(a, b, out if adds else None))


def square_sums_as_defined(tensors: list[Tensor]) -> list[float]:
    return [for_tensors(order.square_sum)(x.reshape(-1)) for x in tensors]


SAME_NAMES = (
    "rms_norm",
    "rms_norm_gradient",
    "gated_gelu",
    "gated_gelu_gradient",
    "attention",
    "attention_gradient",
    "short_attention",
    "short_attention_gradient",
    "softmax_less_targets",
    "token_nats",
    "softmax",
    "multiples",
    "adamw",
    "orthogonalize",
    "sum_rows_by_id",
    "sum_bags",
)
definition = SimpleNamespace(
    **{name: for_tensors(getattr(order, name)) for name in SAME_NAMES},
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


# Products.


def multiply(kernels, a, b, out=None):
    """Return a @ b, added to `out` if it is given."""
    if out is None:
        return kernels.multiply(a, kernels.pack(b), torch.full((len(a), b.shape[1]), torch.nan, device=a.device))
    return kernels.multiply(a, kernels.pack(b), out.clone(), adds=True)


def product_of_kinds(kernels, device):
    numbers = Numbers(0, device)
    pairs = [(getattr(numbers, kind)(19, 300), getattr(numbers, kind)(300, 21)) for kind in KINDS]
    pairs.append((numbers.vanishing(3, 300), -numbers.vanishing(300, 5)))
    return [multiply(kernels, a, b) for a, b in pairs]


def product_of_shapes(kernels, device):
    numbers = Numbers(1, device)
    shapes = [(1, 1, 1), (1, 513, 67), (3, 16, 130), (64, 256, 64), (130, 90, 3), (2, 1024, 5), (7, 1792, 9)]
    return [multiply(kernels, numbers.normal(M, K), numbers.normal(K, N)) for M, K, N in shapes]


def product_of_layouts(kernels, device):
    numbers = Numbers(2, device)
    a = numbers.normal(37, 270)
    b = numbers.normal(270, 41)
    out = numbers.normal(37, 41)
    turned_a = a.T.contiguous().T
    turned_b = b.T.contiguous().T
    pairs = [(a, b), (turned_a, b), (a, turned_b), (turned_a, turned_b)]
    return [multiply(kernels, *pair, start) for pair in pairs for start in (None, out)]


# Orders of additions.


def masks(num_terms: int, pairs: list[tuple[int, int]], device: str) -> Tensor:
    """Return rows of ones, but for HUGE and -HUGE at a pair of places.

    The sum of a row is the number of ones that are added after both: it tells the order of additions from outside
    (FPRev, arXiv 2411.00442).
    """
    rows = torch.ones(len(pairs), num_terms, device=device)
    for row, (i, j) in zip(rows, pairs, strict=True):
        row[i] = HUGE
        row[j] = -HUGE
    return rows


PRODUCT_TERMS = 700
PRODUCT_PAIRS = [
    (i, j) for i in (0, 1, 100, 255, 256, 300, 511, 512, 690) for j in range(0, PRODUCT_TERMS, 23) if i != j
]
ROW_NUMBERS = 256
ROW_PAIRS = [(i, j) for i in (0, 1, 17, 63, 64, 70, 130, 199) for j in range(0, ROW_NUMBERS, 7) if i != j]


def product_tree(kernels, device):
    rows = masks(PRODUCT_TERMS, PRODUCT_PAIRS, device)
    return [multiply(kernels, rows, torch.ones(PRODUCT_TERMS, 2, device=device))[:, 0]]


def row_dot_tree(kernels, device):
    """Return x - mean(x), the gradient of a norm of ones, where x is 1: ROW_NUMBERS is a power of two."""
    rows = masks(ROW_NUMBERS, ROW_PAIRS, device)
    ones = torch.ones_like(rows)
    grad_x = kernels.rms_norm_gradient(rows, ones, torch.zeros_like(rows[0]), torch.ones_like(rows[:, 0]))[0]
    return [torch.where(rows == 1, grad_x, 0.0).amax(1)]


def row_sum_tree(kernels, device):
    """Return nats of a 1 that takes in every number added to it one by one, but not the sum of two of them."""
    rows = torch.full((ROW_NUMBERS, ROW_NUMBERS), -17.4, device=device)
    rows.fill_diagonal_(0)
    targets = torch.arange(ROW_NUMBERS, device=device)
    return [kernels.softmax_less_targets(rows, rows.new_empty(0), targets), rows]


LONG = 530  # positions: more than two chains
LONG_PAIRS = [(3, 10), (3, 257), (100, 255), (255, 256), (256, 300), (310, 490), (511, 512), (520, 257), (480, 529)]
EARLIEST = (5, 300)  # key positions


def seen_by_all(device, window=LONG):
    position = torch.arange(LONG, dtype=torch.int32, device=device)
    return (position - (window - 1)).clamp(min=0)[None].contiguous()


def attention_value_tree(kernels, device):
    """Return the sums of values, of which the last position sees 512, all alike."""
    v = masks(LONG, LONG_PAIRS, device).T.reshape(1, LONG, 1, -1).contiguous()
    zeros = torch.zeros_like(v)
    return [kernels.attention(zeros, zeros, v, seen_by_all(device, 512))[0][:, 512:]]


def attention_gradient_trees(kernels, device):
    """Return gradients of keys, values and queries that are sums of masks."""
    some = masks(LONG, LONG_PAIRS, device).T.reshape(1, LONG, 1, -1).contiguous()
    zeros = torch.zeros_like(some)
    first = seen_by_all(device)
    causal = torch.ones(LONG, LONG, device=device).tril()

    # Values: all weights are 1.
    results = [kernels.attention_gradient(some, zeros, zeros, zeros, first, causal[None, None].contiguous())[2]]

    # Keys: each position s is the only one that counts, and the gradient of its scores is 1.
    grad = zeros.clone()
    grad[..., 0] = 1
    for s in EARLIEST:
        p = torch.zeros(1, 1, LONG, LONG, device=device)
        p[:, :, s:, s] = 2
        v = zeros.clone()
        v[0, s, 0, 0] = -0.5
        results.append(kernels.attention_gradient(grad, some, zeros, v, first, p)[1][0, s, 0])

    # Queries: the gradients of the scores of neighbours have different signs, and so have keys.
    v = zeros.clone()
    v[0, ::2, 0, 0] = 1
    v[0, 1::2, 0, 0] = -1
    keys = some * v[..., :1]
    results.append(kernels.attention_gradient(grad, zeros, keys, v, first, causal[None, None].contiguous())[0])
    return results


# Rows.


def norms(kernels, device):
    numbers = Numbers(4, device)
    results = []
    for kind in KINDS:
        x = getattr(numbers, kind)(11, 70)
        weight = numbers.normal(70)
        results += kernels.rms_norm(x, weight, 1e-6)
    for shape in ((1, 1), (3, 64), (2, 200), (40, 24)):
        results += kernels.rms_norm(numbers.normal(*shape), numbers.normal(shape[1]), 1e-6)
    return results


def norm_gradients(kernels, device):
    numbers = Numbers(5, device)
    results = []
    for kind in KINDS:
        x = getattr(numbers, kind)(9, 70)
        weight = numbers.normal(70)
        r = numbers.positive(9)
        results += kernels.rms_norm_gradient(numbers.normal(9, 70), x, weight, r)
    for shape in ((1, 1), (300, 7), (128, 64)):
        grad = numbers.normal(*shape)
        x = numbers.normal(*shape)
        r = numbers.positive(shape[0])
        results += kernels.rms_norm_gradient(grad, x, numbers.normal(shape[1]), r)
    return results


def sums_that_vanish(kernels, device):
    """Return gradients of a norm in which every term of a sum rounds to -0, and the sum must be +0."""
    numbers = Numbers(19, device)
    results = []
    for width in (60, 64, 70, 128):
        x = -numbers.vanishing(3, width)
        grad = numbers.vanishing(3, width)
        grad[:, :9] = 0  # x - (+0) and x - (-0) differ where x is -0
        grad[:, 9:12] = -0.0
        results += kernels.rms_norm_gradient(grad, x, numbers.normal(width) * 0, numbers.positive(3))
    return results


def gates(kernels, device):
    numbers = Numbers(6, device)
    results = []
    for kind in KINDS:
        gate = 4 * getattr(numbers, kind)(7, 40)
        up = numbers.normal(7, 40)
        grad = numbers.normal(7, 40)
        results += [kernels.gated_gelu(gate, up), *kernels.gated_gelu_gradient(grad, gate, up)]
    return results


# Attention.


def attend(kernels, numbers, shape, window, documents=False, is_short=False, gradients=True, kind="normal"):
    """Return the results and gradients of attention: (B, T, S, H, K, D), and whether documents begin in the texts."""
    B, T, S, H, K, D = shape
    draw = getattr(numbers, kind)
    q = draw(B, T, H, D)
    grad = draw(B, T, H, D)
    k = draw(B, S, K, D)
    v = draw(B, S, K, D)
    position = torch.arange(S - T, S, dtype=torch.int32, device=q.device)
    first = (position - (window - 1)).clamp(min=0)
    if documents:
        first = first.maximum(position // 9 * 9)
    first = first.expand(B, T).contiguous()
    if is_short:
        out, p = kernels.short_attention(q, k, v, first, window)
        seen = first[:, :, None, None] + torch.arange(p.shape[3], device=q.device) <= position[None, :, None, None]
        p = torch.where(seen, p, 0.0)  # the rest is undefined
    else:
        out, p = kernels.attention(q, k, v, first)
    if not gradients:
        return [out, p]
    gradient = kernels.short_attention_gradient if is_short else kernels.attention_gradient
    return [out, p, *gradient(grad, q, k, v, first, p)]


FINITE = ("subnormal", "vanishing", "cancelling", "zeros")


def attention(kernels, device):
    numbers = Numbers(7, device)
    results = attend(kernels, numbers, (1, 70, 70, 2, 1, 16), 70)
    results += attend(kernels, numbers, (2, 40, 40, 4, 2, 24), 20)
    results += attend(kernels, numbers, (1, 40, 40, 2, 2, 80), 40, documents=True)
    results += attend(kernels, numbers, (1, 1, 1, 1, 1, 1), 17)
    return results


def attention_of_kinds(kernels, device):
    numbers = Numbers(20, device)
    results = []
    for kind in FINITE:
        results += attend(kernels, numbers, (1, 21, 21, 2, 1, 4), 18, kind=kind)
    return results


def attention_of_long_sums(kernels, device):
    return attend(kernels, Numbers(8, device), (1, 270, 270, 2, 1, 2), 300)


def attention_to_a_past(kernels, device):
    numbers = Numbers(9, device)
    results = attend(kernels, numbers, (2, 1, 37, 2, 1, 16), 37, gradients=False)
    results += attend(kernels, numbers, (1, 5, 300, 2, 2, 8), 290, gradients=False)
    return results


def short_attention(kernels, device):
    numbers = Numbers(10, device)
    results = attend(kernels, numbers, (2, 9, 9, 4, 2, 16), 4, is_short=True)
    results += attend(kernels, numbers, (1, 20, 20, 2, 1, 24), 16, documents=True, is_short=True)
    results += attend(kernels, numbers, (1, 3, 3, 1, 1, 80), 7, is_short=True)
    results += attend(kernels, numbers, (1, 1, 1, 1, 1, 1), 1, is_short=True)
    results += attend(kernels, numbers, (2, 1, 9, 2, 1, 16), 4, is_short=True, gradients=False)
    return results


def short_attention_of_kinds(kernels, device):
    numbers = Numbers(21, device)
    results = []
    for kind in FINITE:
        results += attend(kernels, numbers, (1, 11, 11, 2, 1, 4), 5, is_short=True, kind=kind)
    return results


# Cross-entropy.


def losses(kernels, device):
    numbers = Numbers(11, device)
    results = []
    for kind in KINDS:
        logits = 3 * getattr(numbers, kind)(5, 131)
        targets = numbers.ids(131, 5)
        results += [kernels.softmax_less_targets(logits, numbers.normal(0), targets), logits]
    for num_rows, num_entries, num_factors in ((1, 1, 0), (4, 64, 64), (6, 200, 50)):
        logits = numbers.normal(num_rows, num_entries)
        targets = numbers.ids(num_entries, num_rows)
        results += [kernels.softmax_less_targets(logits, numbers.normal(num_factors), targets), logits]
    return results


def nats(kernels, device):
    numbers = Numbers(12, device)
    return [kernels.token_nats(numbers.normal(5, 32), numbers.normal(101, 32), numbers.ids(101, 5))]


def softmax(kernels, device):
    numbers = Numbers(13, device)
    x = numbers.normal(131)
    x[3] = -torch.inf
    return [kernels.softmax(x), kernels.softmax(numbers.normal(1))]


# Gradients and optimizers.


def square_sums(kernels, device):
    numbers = Numbers(14, device)
    tensors = [
        numbers.normal(9000),
        numbers.normal(0),
        numbers.normal(30, 50),
        numbers.subnormal(1),
        numbers.normal(5000),
    ]
    return [torch.tensor(kernels.square_sums(tensors), dtype=torch.float64)]


def multiples(kernels, device):
    numbers = Numbers(15, device)
    unit = order.GRADIENT_UNIT
    hard = [torch.nan, torch.inf, -torch.inf, 1e9, -1e9, 0.5 * unit, -0.5 * unit, 1.5 * unit, 2.5 * unit, 0.0, -0.0]
    x = torch.cat([torch.tensor(hard, device=device), 1e-6 * numbers.normal(1100)])
    return [kernels.multiples(x, unit, order.LARGEST_GRADIENT)]


def adamw(kernels, device):
    numbers = Numbers(16, device)
    results = []
    for kind in KINDS:
        p = numbers.normal(300, 4)
        grad = getattr(numbers, kind)(300, 4)
        mean = numbers.normal(300, 4)
        square = numbers.positive(300, 4)
        kernels.adamw(p, grad, mean, square, 0.9, 0.95, 0.999, 0.01, 0.7, 1e-8)
        results += [p, mean, square]
    return results


def orthogonalize(kernels, device):
    numbers = Numbers(17, device)
    shapes = [(2, 16, 24), (1, 70, 90), (1, 1, 5)]
    return [kernels.orthogonalize(numbers.normal(*shape), COEFFICIENTS, 2) for shape in shapes]


def sums_by_id(kernels, device):
    numbers = Numbers(18, device)
    many = kernels.sum_rows_by_id(numbers.cancelling(60, 16), numbers.ids(20, 60), 25)
    few = kernels.sum_rows_by_id(numbers.zeros(5, 130), numbers.ids(2, 5), 3)
    starts = torch.tensor([0, 5, 5, 30, 60], device=device)
    bags = kernels.sum_bags(numbers.normal(20, 16), numbers.ids(20, 60), starts)
    wide = kernels.sum_bags(numbers.zeros(20, 70), numbers.ids(20, 60), starts)
    return [many, few, bags, wide]


CASES = {
    case.__name__: case
    for case in (
        product_of_kinds,
        product_of_shapes,
        product_of_layouts,
        product_tree,
        row_dot_tree,
        row_sum_tree,
        attention_value_tree,
        attention_gradient_trees,
        norms,
        norm_gradients,
        sums_that_vanish,
        gates,
        attention,
        attention_of_kinds,
        attention_of_long_sums,
        attention_to_a_past,
        short_attention,
        short_attention_of_kinds,
        losses,
        nats,
        softmax,
        square_sums,
        multiples,
        adamw,
        orthogonalize,
        sums_by_id,
    )
}


def num_differences(expected: Tensor, found: Tensor) -> int:
    """Return how many numbers differ in their bits; all NaN are one."""
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int64: torch.int64}
    expected = expected.contiguous()
    found = found.cpu().contiguous()
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return max(expected.numel(), found.numel(), 1)
    differs = expected.view(kinds[expected.dtype]) != found.view(kinds[found.dtype])
    return int((differs & ~(expected.isnan() & found.isnan())).sum())

"""Exact float32: products with the bits of their definition in any order and layout, close to plain torch."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model import exact
from lm.model.exact import BLOCK, LEVELS, grid, product
from lm.model.kernels import SHORT_WINDOW, attend, cross_entropy, gated_gelu, linear
from support.model_cases import build

SHAPES = [(1, 5, 1), (3, 700, 1), (1, 128, 9), (64, 1100, 33), (33, 1, 2), (5, 257, 7)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layouts(x: Tensor) -> list[Tensor]:
    """Return equal matrices stored by rows, by columns, and as a part of a larger one."""
    padded = torch.zeros(x.shape[0] + 1, x.shape[1] + 3)
    padded[1:, 2:-1] = x
    return [x, x.mT.contiguous().mT, padded[1:, 2:-1]]


def defined_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b (M, N) by the definition: integers, which int64 adds, times two powers of two, block by block."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], BLOCK):
        (left, left_step), (right, right_step) = integers(a[:, k : k + BLOCK], 1), integers(b[k : k + BLOCK], 0)
        total += ((left @ right) * left_step * right_step).astype(np.float32)
    return total


def integers(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x as integers of at most LEVELS, and the power of two of which they are multiples."""
    largest = np.abs(x).max(axis, keepdims=True).astype(np.float32) * np.float32(2 / LEVELS[0])
    step = 2.0 ** (np.frexp(np.maximum(largest, np.float32(exact.SMALLEST_STEP)))[1] - 1)
    rounded = np.rint(x.astype(np.float64) / step).astype(np.int64)  # halves to even, as IEEE 754 does
    assert np.abs(rounded).max() <= LEVELS[0]
    return rounded, step


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_has_the_bits_of_its_definition(shape, threads):
    M, K, N = shape
    a, b = draw(M, K) * 10 ** draw(M, 1), draw(K, N, seed=1)
    a[0], b[:, 0] = 0, -b[:, 0].abs()  # of which some library makes -0
    wanted, before = defined_product(a.numpy(), b.numpy()), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x, y in itertools.product(layouts(a), layouts(b)):
            found = product(x, y).numpy()
            assert np.array_equal(found.view(np.int32), wanted.view(np.int32)), (x.stride(), y.stride())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("levels", [LEVELS, exact.WEIGHT_LEVELS])
def test_float32_holds_every_partial_sum(levels):
    assert BLOCK * levels[0] * levels[1] < 2**24


def test_the_order_of_the_terms_of_a_block_does_not_matter():
    a, b, order = draw(50, BLOCK), draw(BLOCK, 60, seed=1), torch.randperm(BLOCK)
    assert torch.equal(product(a, b), product(a[:, order], b[order]))
    assert not torch.equal(a @ b, a[:, order] @ b[order])  # as it does for other numbers
    a, b = grid(a, -1, LEVELS[0]), grid(b, -2, LEVELS[1])
    assert torch.equal((a @ b).double(), a.double() @ b.double())


def test_products_of_batches_are_those_of_their_matrices():
    a, b = draw(3, 4, 200), draw(3, 200, 5, seed=2)
    assert torch.equal(product(a, b), torch.stack([product(x, y) for x, y in zip(a, b, strict=True)]))


def test_tiny_numbers_are_dropped_and_others_stay_finite():
    assert product(torch.full((2, 3), 1e-30), torch.full((3, 2), 1e30)).abs().max() == 0
    assert product(torch.full((2, 3), torch.nan), torch.ones(3, 2)).isnan().all()
    assert product(torch.full((2, 3), 1e15), torch.full((3, 2), 1e15)).isfinite().all()


def test_exponentials_logarithms_and_roots_are_close_to_true_ones():
    x = torch.linspace(-41, 0, 100_001)
    assert torch.allclose(exact.exp_(x.clone()).double(), x.double().exp(), rtol=5e-6, atol=0)
    y = torch.cat([x.exp(), torch.linspace(1, 1e6, 10_001)])
    assert torch.allclose(exact.log(y).double(), y.double().log(), rtol=2e-7, atol=1e-7)
    assert torch.allclose(exact.sqrt(y).double(), y.double().sqrt(), rtol=2e-7, atol=0)
    assert exact.sqrt(torch.zeros(1)) == 0


def test_a_softmax_gives_nothing_to_what_is_masked():
    scores = draw(40, 300) * 9
    scores[:, 7] = -torch.inf
    found = exact.softmax_(scores.clone())
    assert torch.allclose(found, scores.softmax(-1), atol=1e-6)
    assert (found[:, 7] == 0).all()


def test_torch_computes_when_exact_numerics_are_switched_off():
    a, b = draw(30, 40), draw(40, 50, seed=1)
    with exact.switched_off(), exact.switched_off(False):
        assert torch.equal(product(a, b), a @ b)
    assert not torch.equal(product(a, b), a @ b)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def plain_loss(h: Tensor, head: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(h @ head.mT, torch.arange(len(h)))


@pytest.mark.parametrize(
    ("ours", "plain", "shapes"),
    [
        (linear, torch.nn.functional.linear, [(2, 7, 600), (30, 600)]),
        (gated_gelu, lambda x, y: torch.nn.functional.gelu(x, approximate="tanh") * y, [(2, 7, 33)] * 2),
        (lambda q, k, v: attend(q, k, v, 0.3, 9), plain_attention, [(2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8)]),
        (lambda q, k, v: attend(q, k, v, 0.3, 40), plain_attention, [(2, 4, 30, 8), (2, 2, 30, 8), (2, 2, 30, 8)]),
        (lambda h, head: cross_entropy(h, head, torch.arange(20), 7), plain_loss, [(20, 16), (50, 16)]),
    ],
    ids=["linear", "gated_gelu", "short window", "attention", "cross_entropy"],
)
@pytest.mark.parametrize("rounds", [False, True])
def test_results_and_gradients_are_those_of_plain_torch(ours, plain, shapes, rounds, request):
    assert SHORT_WINDOW < 30
    if not rounds:
        request.getfixturevalue("unrounded")
    inputs = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    grad, found = None, []
    for function in (ours, plain):
        out = function(*inputs)
        grad = draw(*out.shape, 1, seed=9)[..., 0] if grad is None else grad
        found.append([out, *torch.autograd.grad(out, inputs, grad)])
    for one, other in zip(*found, strict=True):
        error = (one - other).norm() / other.norm()
        assert error < (0.008 if rounds else 1e-5)


@pytest.mark.parametrize("window", [4, 300])
def test_the_future_changes_no_bit(window):
    model = build(1000, sliding_window=window, max_seq_len=300)
    ids = torch.randint(1000, (2, 300), generator=torch.Generator().manual_seed(1))
    changed = torch.cat([ids[:, :170], ids[:, 170:].flip(1)], 1)
    assert torch.equal(model.hidden(ids)[:, :170], model.hidden(changed)[:, :170])

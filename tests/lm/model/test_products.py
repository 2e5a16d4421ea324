"""Products in the fixed order: the bits of their definition in every shape and layout, and their gradients."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model import products
from lm.model.kernels import attend, gated_gelu, linear
from lm.model.products import BLOCK, add_products, defined_product, product

pytestmark = pytest.mark.skipif(not products.is_available(), reason="needs an x86-64 processor with AVX2")
SHAPES = [(1, 5, 1), (3, 700, 1), (1, 700, 9), (64, 1100, 33), (33, 1, 2), (5, 513, 7)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layouts(x: Tensor) -> list[Tensor]:
    """Return equal matrices stored by rows, by columns, and as a part of a larger one."""
    padded = torch.zeros(x.shape[0] + 1, x.shape[1] + 3)
    padded[1:, 2:-1] = x
    return [x, x.mT.contiguous().mT, padded[1:, 2:-1]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_has_the_bits_of_its_definition(shape, threads):
    M, K, N = shape
    a, b = draw(M, K), draw(K, N, seed=1)
    wanted, before = defined_product(a.numpy(), b.numpy()), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x, y in itertools.product(layouts(a), layouts(b)):
            assert np.array_equal(product(x, y).numpy(), wanted), (x.stride(), y.stride())
    finally:
        torch.set_num_threads(before)


def test_the_definition_adds_blocks_one_after_the_other():
    a, b = draw(1, 2 * BLOCK), draw(2 * BLOCK, 1, seed=1)
    halves = [defined_product(a[:, k].numpy(), b[k].numpy()) for k in (slice(BLOCK), slice(BLOCK, None))]
    assert defined_product(a.numpy(), b.numpy()) == halves[0] + halves[1]
    assert defined_product(a.numpy(), b.numpy()) == pytest.approx((a.double() @ b.double()).item(), abs=1e-4)


def test_batches_are_products_of_their_matrices():
    x, a, b = draw(3, 4, 5), draw(3, 4, 6, seed=1), draw(3, 6, 5, seed=2)
    torch.testing.assert_close(add_products(x, a, b, beta=0.5, alpha=2.0), 0.5 * x + 2 * a @ b)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


@pytest.mark.parametrize(
    ("ours", "plain", "shapes"),
    [
        (linear, torch.nn.functional.linear, [(2, 7, 600), (30, 600)]),
        (gated_gelu, lambda x, y: torch.nn.functional.gelu(x, approximate="tanh") * y, [(2, 7, 33)] * 2),
        (lambda q, k, v: attend(q, k, v, 0.3, 9), plain_attention, [(2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8)]),
    ],
    ids=["linear", "gated_gelu", "attention"],
)
def test_gradients_are_those_of_plain_torch(ours, plain, shapes):
    inputs = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    grad, found = None, []
    for function in (ours, plain):
        out = function(*inputs)
        grad = draw(*out.shape, seed=9) if grad is None else grad
        found.append([out, *torch.autograd.grad(out, inputs, grad)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_order_is_checked_on_the_processor_that_computes(monkeypatch):
    products.are_in_order.cache_clear()
    assert products.are_in_order()
    products.are_in_order.cache_clear()
    monkeypatch.setattr(products, "product", lambda a, b: (a.double() @ b.double()).float())
    assert not products.are_in_order()
    products.are_in_order.cache_clear()

"""Exact numerics: the same bits for any layout and neighbours, close to plain torch. test_order.py has the order."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lm.exact import functions as exact
from lm.exact.cpu import parts
from lm.exact.functions import product
from lm.model.kernels import visible
from lm.model.score import token_losses
from support.model_cases import build


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def draw_operands(M: int, K: int, N: int) -> tuple[Tensor, Tensor]:
    """Return matrices (M, K), whose rows differ in size, and (K, N)."""
    row_sizes = 10 ** draw(M, 1)
    return draw(M, K) * row_sizes, draw(K, N, seed=1)


# Products.


def layouts(x: Tensor) -> list[Tensor]:
    """Return equal matrices stored by rows, by columns, and as a part of a larger one."""
    by_columns = x.mT.contiguous().mT
    larger = torch.zeros(x.shape[0] + 1, x.shape[1] + 3)
    part = larger[1:, 2:-1]
    part.copy_(x)
    return [x, by_columns, part]


# Rows of a, terms of a sum, columns of b.
@pytest.mark.parametrize(
    ("M", "K", "N"),
    [
        (3, 700, 1),
        (33, 1, 2),
        (7, 300, 129),
    ],
)
def test_a_product_has_the_same_bits_for_every_layout_threads_and_neighbours(M, K, N, threads):
    a, b = draw_operands(M, K, N)
    wanted = torch.empty(M, N)
    for i, j in itertools.product(range(M), range(N)):
        wanted[i, j] = product(a[i : i + 1], b[:, j : j + 1])

    for number in (1, 3):
        threads(number)
        for x, y in itertools.product(layouts(a), layouts(b)):
            assert torch.equal(product(x, y), wanted), (x.stride(), y.stride(), number)


def test_an_error_in_any_thread_is_raised(threads):
    def fail(part: int, parts: int) -> None:
        if part == 2:
            raise MemoryError

    threads(3)
    with pytest.raises(MemoryError):
        parts.run(fail, work=3)


# Layers: ours, and the same in plain torch.


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return exact.rms_norm(x, weight, 0.01)


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    mean_square = x.square().mean(-1, keepdim=True)
    return x / (mean_square + 0.01).sqrt() * (1 + weight)


def plain_gelu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def attention(window: int):
    return lambda q, k, v: exact.attend(q, k, v, 0.25, window)


def plain_attention(window: int):
    """Return attention of 30 tokens with two query heads for each key head."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k.repeat_interleave(2, 1)
        v = v.repeat_interleave(2, 1)
        is_hidden = ~visible(30, 30, window, "cpu")
        return (0.25 * q @ k.mT).masked_fill(is_hidden, -torch.inf).softmax(-1) @ v

    return attend


QUERIES_KEYS_VALUES = [(2, 4, 30, 8), (2, 2, 30, 8), (2, 2, 30, 8)]
TARGETS = torch.arange(20)
FACTORS = torch.arange(30) / 10  # added to the logits of the last entries


def loss(h: Tensor, head: Tensor) -> Tensor:
    return exact.cross_entropy(h, head, TARGETS, 7, FACTORS)


def plain_loss(h: Tensor, head: Tensor) -> Tensor:
    factors = torch.cat([torch.zeros(20), FACTORS])
    return F.cross_entropy(h @ head.mT + factors, TARGETS)


def result_and_gradients(operation, inputs: list[Tensor]) -> list[Tensor]:
    """Return the result, and the gradients of the inputs for a gradient of the result that is always the same."""
    result = operation(*inputs)
    grad = draw(*result.shape, seed=9) if result.ndim else torch.ones(())
    return [result, *torch.autograd.grad(result, inputs, grad.to(result.dtype))]


@pytest.mark.parametrize(
    ("ours", "plain", "shapes"),
    [
        pytest.param(exact.linear, F.linear, [(2, 7, 100), (30, 100)], id="linear"),
        pytest.param(exact.gated_gelu, plain_gelu, [(2, 7, 33), (2, 7, 33)], id="gated_gelu"),
        pytest.param(rms_norm, plain_norm, [(2, 150, 33), (33,)], id="rms_norm"),
        pytest.param(attention(9), plain_attention(9), QUERIES_KEYS_VALUES, id="short attention"),
        pytest.param(attention(400), plain_attention(400), QUERIES_KEYS_VALUES, id="attention"),
        pytest.param(loss, plain_loss, [(20, 16), (50, 16)], id="cross_entropy"),
    ],
)
def test_results_and_gradients_are_those_in_float64(ours, plain, shapes):
    inputs = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    wide_inputs = [x.detach().double().requires_grad_() for x in inputs]
    wanted = result_and_gradients(plain, wide_inputs)

    found = result_and_gradients(ours, inputs)

    for number, true in zip(found, wanted, strict=True):
        assert (number - true).norm() < 2e-6 * true.norm()


# Models.


def draw_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 100, shape, generator=seeded(seed))


def compute_under_autocast(model) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(draw_ids(1, 8))


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        pytest.param(lambda model: model.bfloat16()(draw_ids(1, 8)), "in bfloat16 on cpu", id="dtype"),
        pytest.param(compute_under_autocast, "in autocast on cpu", id="autocast"),
        pytest.param(lambda model: model.compile(), "to compile a model", id="compiled"),
    ],
)
def test_exact_numerics_refuse_what_they_do_not_define(use, problem):
    with pytest.raises(ValueError, match=f"^numerics is exact.* {problem}"):
        use(build(100, numerics="exact"))


def test_the_document_before_changes_no_bit():
    model = build(100, numerics="exact", sliding_window=20)
    model.document_start_id = 0
    ids = draw_ids(1, 40)
    ids[0, 25] = 0
    other_ids = ids.clone()
    other_ids[:, :17] = draw_ids(1, 17, seed=2)

    found = model.hidden(ids)
    other = model.hidden(other_ids)

    assert torch.equal(found[0, 25:], other[0, 25:])
    assert not torch.equal(found[0, 17:25], other[0, 17:25]), "which are of the changed document"


@pytest.mark.parametrize("within_documents", [False, True])
@pytest.mark.parametrize("window", [4, 20])
def test_a_window_has_the_same_bits_whatever_its_neighbours(window, within_documents):
    """Its losses, and the gradients of its embeddings; half of the windows have a document start inside."""
    model = build(100, numerics="exact", sliding_window=window)
    model.document_start_id = 0 if within_documents else None
    ids = draw_ids(4, 40)
    ids[::2, 17] = 0
    targets = draw_ids(4, 40, seed=2)
    grad = draw(4, 40, 32)
    embeddings = []
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: embeddings.append(inputs[0]))

    def results(batch_size: int) -> tuple[Tensor, Tensor]:
        """Return losses and gradients of all windows, computed `batch_size` at a time."""
        losses = []
        gradients = []
        for start in range(0, 4, batch_size):
            rows = slice(start, start + batch_size)
            hidden = model.hidden(ids[rows])
            gradients += torch.autograd.grad(hidden, embeddings[-1], grad[rows])
            losses.append(token_losses(model, ids[rows], targets[rows]))
        return torch.cat(losses), torch.cat(gradients)

    losses_alone, gradients_alone = results(1)

    for batch_size in (2, 4):
        losses, gradients = results(batch_size)
        assert torch.equal(losses, losses_alone), batch_size
        assert torch.equal(gradients, gradients_alone), batch_size

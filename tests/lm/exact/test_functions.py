"""Exact numerics: the same bits for any layout and neighbours, close to plain torch. test_order.py has the order."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.exact import cpu
from lm.exact import functions as exact
from lm.exact.functions import product
from lm.exact.order import SMALLEST_EXPONENT
from lm.model.kernels import visible
from support.model_cases import build

SHAPES = [(1, 5, 1), (3, 700, 1), (1, 256, 9), (64, 1100, 33), (33, 1, 2), (5, 257, 7), (13, 40, 70), (7, 300, 129)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layouts(x: Tensor) -> list[Tensor]:
    """Return equal matrices stored by rows, by columns, and as a part of a larger one."""
    padded = torch.zeros(x.shape[0] + 1, x.shape[1] + 3)
    padded[1:, 2:-1] = x
    return [x, x.mT.contiguous().mT, padded[1:, 2:-1]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_has_the_same_bits_for_every_layout_threads_and_neighbours(shape, threads):
    M, K, N = shape
    a = draw(M, K) * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    wanted = torch.cat([product(row[None], column[:, None]) for row in a for column in b.mT]).view(M, N)
    for number in (1, 2, 3):
        threads(number)
        for x, y in itertools.product(layouts(a), layouts(b)):
            assert torch.equal(product(x, y), wanted), (x.stride(), y.stride(), number)


def test_an_error_in_any_thread_is_raised(threads):
    def fail(part: int, parts: int) -> None:
        if part == 2:
            raise MemoryError

    threads(3)
    with pytest.raises(MemoryError):
        cpu.run(fail, work=3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_as_close_as_a_sum_in_order_can_be(shape):
    M, K, N = shape
    a = draw(M, K) * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    wanted = a.double() @ b.double()
    bound = K * 2.0**-24 * (a.double().abs() @ b.double().abs())  # Higham 2002, section 3.1
    found = product(a, b)
    assert ((found - wanted).abs() <= bound).all()
    added = product(a, b, found.clone())
    assert ((added - 2 * wanted).abs() <= 2.1 * bound + 2.0**-24 * (2 * wanted).abs()).all()


def test_numbers_that_are_not_finite_stay_so():
    a = torch.ones(9, 300)
    a[3, 200], a[5, 1] = torch.nan, torch.inf
    found = product(a, torch.ones(300, 5))
    assert found[3].isnan().all() and (found[5] == torch.inf).all() and found[[0, 8]].isfinite().all()
    h = draw(8, 4)
    head = draw(20, 4, seed=1)
    h[2, 1] = torch.nan
    assert exact.token_nats(h, head, torch.arange(8), 512).isnan().nonzero().tolist() == [[2]]
    assert exact.cross_entropy(h, head, torch.arange(8), 512).isnan()
    assert exact.softmax(torch.tensor([1.0, torch.nan])).isnan().any()


def test_exponentials_and_logarithms_are_close_to_true_ones():
    x = torch.linspace(-41, 0, 100_001).numpy()
    found = np.array([cpu.exp(each) for each in x], np.float64)
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 2 * 2.0**-24
    assert cpu.exp(np.float32(-1e30)) == cpu.exp(SMALLEST_EXPONENT) < 1e-18
    for y in [*np.linspace(1, 3, 1001), *np.linspace(1, 1e6, 1001)]:
        assert cpu.log(np.float32(y)) == pytest.approx(math.log(np.float32(y)), rel=1e-14, abs=1e-14)


def test_powers_and_cosines_are_close_to_true_ones():
    for base in (0.8, 0.999, 1.0, 0.0):
        for exponent in (0, 1, 2, 3, 7, 900, 10**6):
            assert exact.power(base, exponent) == pytest.approx(base**exponent, rel=1e-9, abs=1e-300)
    for x in np.linspace(0, 1, 1001).tolist():
        assert exact.cos_pi(x) == pytest.approx(math.cos(math.pi * x), abs=1e-15)


def test_a_norm_is_close_to_the_true_one():
    for length in (1, 2, 3, 100, 5000, 20_000):
        x = draw(length)
        y = draw(3, length, seed=1)
        wanted = math.sqrt(x.double().square().sum() + y.double().square().sum())
        assert exact.norm([x, y]) == pytest.approx(wanted, rel=100 * 2.0**-24)


def test_a_softmax_gives_nothing_to_what_is_masked():
    scores = draw(300) * 9
    scores[7] = -torch.inf
    found = exact.softmax(scores)
    assert torch.allclose(found, scores.softmax(-1), atol=1e-6)
    assert found[7] == 0 and scores[7] == -torch.inf


# Layers.


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt() * (1 + weight)


def plain_gelu(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def plain_attention(window: int):
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k.repeat_interleave(2, 1)
        v = v.repeat_interleave(2, 1)
        seen = visible(q.shape[2], k.shape[2], window, "cpu")
        return (0.25 * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    return attention


FACTORS = torch.arange(30) / 10  # added to the logits of the last entries


def loss_of_a_sample(h: Tensor, head: Tensor) -> Tensor:
    logits = h @ head.mT + torch.cat([torch.zeros(20), FACTORS])
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(h)))


def plain_loss(h: Tensor, head: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(h @ head.mT, torch.arange(len(h)) % len(head))


OPERATIONS = pytest.mark.parametrize(
    ("ours", "plain", "shapes"),
    [
        (exact.linear, torch.nn.functional.linear, [(2, 7, 100), (30, 100)]),
        (exact.gated_gelu, plain_gelu, [(2, 7, 33)] * 2),
        (lambda x, w: exact.rms_norm(x, w, 0.01), plain_norm, [(2, 150, 33), (33,)]),
        (lambda *x: exact.attend(*x, 0.25, 9), plain_attention(9), [(2, 4, 30, 8), *[(2, 2, 30, 8)] * 2]),
        (lambda *x: exact.attend(*x, 0.25, 20), plain_attention(20), [(2, 4, 300, 8), *[(2, 2, 300, 8)] * 2]),
        (lambda *x: exact.attend(*x, 0.25, 400), plain_attention(400), [(2, 4, 300, 8), *[(2, 2, 300, 8)] * 2]),
        (lambda h, head: exact.cross_entropy(h, head, torch.arange(20), 7), plain_loss, [(20, 16), (50, 16)]),
        (
            lambda h, head: exact.cross_entropy(h, head, torch.arange(20), 7, FACTORS),
            loss_of_a_sample,
            [(20, 16), (50, 16)],
        ),
    ],
    ids=["linear", "gated_gelu", "rms_norm", "short window", "window", "attention", "cross_entropy", "of a sample"],
)


@OPERATIONS
def test_results_and_gradients_are_those_in_float64(ours, plain, shapes):
    inputs = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = ours(*inputs)
    wanted = plain(*wide)
    grad = draw(*out.shape, 1, seed=9)[..., 0] if out.ndim else torch.ones(())
    pairs = zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, wide, grad.double()), strict=True)
    for found, true in [(out, wanted), *pairs]:
        assert (found - true).norm() / true.norm() < 2e-6


@OPERATIONS
def test_results_and_gradients_have_the_same_bits_for_any_number_of_threads(ours, plain, shapes, threads):
    inputs = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    found = []
    for number in (1, 2, 3):
        threads(number)
        out = ours(*inputs)
        grad = draw(*out.shape, 1, seed=9)[..., 0] if out.ndim else torch.ones(())
        found.append([out, *torch.autograd.grad(out, inputs, grad)])
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.parametrize("window", [9, 20])
def test_attention_to_a_cached_past_is_that_in_float64(window):
    q = draw(2, 4, 7, 8)
    k = draw(2, 2, 30, 8, seed=1)
    v = draw(2, 2, 30, 8, seed=2)
    wanted = plain_attention(window)(q.double(), k.double(), v.double())
    assert (exact.attend(q, k, v, 0.25, window) - wanted).norm() / wanted.norm() < 2e-6


@pytest.mark.parametrize("number", [1, 3])
def test_token_nats_are_those_in_float64(number, threads):
    threads(number)
    h = draw(300, 40)
    head = draw(50, 40, seed=1)
    targets = torch.arange(300) % 50
    wanted = torch.nn.functional.cross_entropy(h.double() @ head.double().mT, targets, reduction="none")
    assert torch.allclose(exact.token_nats(h, head, targets, 512).double(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_token_sees_its_window_of_its_document(window):
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [5, 5, 5, 5, 5, 5, 5, 6]])
    found = exact.mask(documents, window, 1, torch.ones(1))
    for b, t in itertools.product(range(2), range(8)):
        seen = [s for s in range(max(0, t - window + 1), t + 1) if documents[b, s] == documents[b, t]]
        assert found[b, t] == seen[0]


# Models.


def draw_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 100, shape, generator=torch.Generator().manual_seed(seed))


def test_a_model_computes_in_torchs_arithmetic_unless_told():
    ids = draw_ids(2, 60)
    fast = build(100)
    ordered = build(100, numerics="exact")
    logits = fast(ids)
    assert fast.numerics == "fast" and torch.equal(logits, build(100, numerics="fast")(ids))
    assert 0 < (ordered(ids) - logits).norm() / logits.norm() < 1e-5
    loss = fast.loss(ids, ids.roll(-1, 1)).item()
    assert ordered.loss(ids, ids.roll(-1, 1)).item() == pytest.approx(loss, rel=1e-5)
    assert float(fast.token_losses(ids, ids.roll(-1, 1)).mean()) == pytest.approx(loss, rel=1e-5)


def test_exact_numerics_refuse_what_they_cannot_compute():
    ids = draw_ids(1, 8)
    for model in (build(100, numerics="exact").bfloat16(), build(100, numerics="exact").to("meta")):
        with pytest.raises(
            ValueError, match=r"numerics is exact, and the model computes in .*must compute in float32 on cpu or cuda"
        ):
            model(ids)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="computes in autocast on cpu"):
        build(100, numerics="exact")(ids)
    with pytest.raises(ValueError, match="numerics is exact; to compile a model, it must be fast"):
        build(100, numerics="exact").compile()


@pytest.mark.parametrize("window", [4, 300])
def test_the_future_changes_no_bit(window):
    model = build(1000, numerics="exact", sliding_window=window, max_seq_len=300)
    ids = torch.randint(1000, (2, 300), generator=torch.Generator().manual_seed(1))
    changed = torch.cat([ids[:, :170], ids[:, 170:].flip(1)], 1)
    assert torch.equal(model.hidden(ids)[:, :170], model.hidden(changed)[:, :170])
    assert torch.equal(model.hidden(ids)[:, :170], model.hidden(ids[:, :170])), "nor does the length of the text"


@pytest.mark.parametrize("every", [1, 9], ids=["full", "sliding"])
@pytest.mark.parametrize("window", [4, 20])
def test_the_document_before_changes_no_bit(window, every):
    model = build(100, numerics="exact", sliding_window=window, full_attention_every=every)
    model.document_start_id = 0
    ids = draw_ids(2, 40)
    ids[0, 17] = ids[1, 25] = 0
    changed = ids.clone()
    changed[:, :17] = draw_ids(2, 17, seed=2)
    found = model.hidden(ids)
    other = model.hidden(changed)
    assert torch.equal(found[0, 17:], other[0, 17:]) and torch.equal(found[1, 25:], other[1, 25:])
    assert not torch.equal(found[1, 17:25], other[1, 17:25]), "which are of the changed document"


@pytest.mark.parametrize("within_documents", [False, True])
@pytest.mark.parametrize("window", [4, 20])
def test_a_window_has_the_same_bits_whatever_its_neighbours(window, within_documents):
    """Its losses, and the gradients of its embeddings; half of the windows have a document start inside."""
    model = build(100, numerics="exact", sliding_window=window)
    model.document_start_id = 0 if within_documents else None
    ids = draw_ids(8, 40)
    targets = draw_ids(8, 40, seed=2)
    grad = draw(8, 40, 32)
    ids[::2, 17], ids[4, 30], ids[1, 0] = 0, 0, 0

    def results(size: int) -> list[Tensor]:
        """Return losses and gradients of all windows, computed `size` at a time."""
        inputs = []
        gradients = []
        hook = model.layers[0].register_forward_pre_hook(lambda layer, arguments: inputs.append(arguments[0]))
        for start in range(0, 8, size):
            rows = slice(start, start + size)
            gradients += torch.autograd.grad(model.hidden(ids[rows]), inputs[-1:], grad[rows])
        hook.remove()
        losses = [model.token_losses(ids[i : i + size], targets[i : i + size]) for i in range(0, 8, size)]
        return [torch.cat(losses), torch.cat(gradients)]

    alone = results(1)
    for size in (2, 4, 8):
        assert all(map(torch.equal, results(size), alone)), size

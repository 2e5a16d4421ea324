"""Exact float32: products with the bits of their definition in any order and layout, close to plain torch."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model import exact
from lm.model.attention_masks import visible
from lm.model.exact import BLOCK, LEVELS, grid, product
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
    a = draw(M, K) * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    a[0], b[:, 0] = 0, -b[:, 0].abs()  # of which some library makes -0
    wanted = defined_product(a.numpy(), b.numpy())
    before = torch.get_num_threads()
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
    a = draw(50, BLOCK)
    b = draw(BLOCK, 60, seed=1)
    order = torch.randperm(BLOCK)
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


def test_the_polynomial_is_a_power_of_two():
    f = np.linspace(-0.5, 0.5, 100_001)
    assert np.abs(np.polyval(exact.EXP2, f) / 2**f - 1).max() < 1e-7


def test_exponentials_logarithms_and_roots_are_close_to_true_ones():
    x = torch.linspace(-41, 0, 100_001)
    error = exact.exp_(x.clone()).double() / x.double().exp() - 1
    # The polynomial and the roundings of its sums, and the two roundings in x log2(e).
    assert (error.abs() <= 3e-7 + x.abs() * 1.5 * 2.0**-24).all()
    assert exact.exp_(torch.tensor([-1e30])) == 2.0**exact.SMALLEST_LOG2
    y = torch.cat([torch.linspace(1, 3, 10_001), torch.linspace(1, 1e6, 10_001)])
    assert torch.allclose(exact.log(y).double(), y.double().log(), rtol=2.0**-23, atol=1e-14)
    y = torch.cat([x.exp(), y])
    assert torch.allclose(exact.sqrt(y).double(), y.double().sqrt(), rtol=2.0**-22, atol=0)  # three roundings
    assert exact.sqrt(torch.zeros(1)) == 0


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sums_have_every_term_once(dim):
    for length in range(1, 40):
        integers = torch.randint(-1000, 1000, (length, length, 3) if dim != -1 else (2, length))
        x = integers.float()
        assert torch.equal(exact.sum_tree(x, dim), integers.sum(dim, keepdim=True).float()), length
        if dim == -1:
            assert torch.equal(exact.sum_padded_tree(x), integers.sum(dim, keepdim=True).float()), length


def test_zeros_at_the_end_change_no_sum():
    for length in range(1, 40):
        x = draw(5, length)
        sums = [exact.sum_padded_tree(torch.nn.functional.pad(x, (0, zeros))) for zeros in range(30)]
        assert all(torch.equal(found, sums[0]) for found in sums), length
        assert torch.allclose(sums[0].double(), x.double().sum(-1, keepdim=True), rtol=0, atol=2.0**-24 * 6 * length)


def test_norms_are_close_to_true_ones():
    for length in (1, 2, 3, 7, 100, 1001):
        x = draw(4, length)
        assert torch.allclose(exact.norms(x).double(), x.double().norm(dim=1), rtol=20 * 2.0**-24, atol=0)


def rounding_errors(x: Tensor, dim: int, levels: int) -> Tensor:
    """Return how far each number of x may be rounded: half a step of the grid of its block, at most 2 / levels."""
    blocks = [block.abs().amax(dim, keepdim=True).expand_as(block) for block in x.double().split(BLOCK, dim)]
    return torch.cat(blocks, dim) / levels


@pytest.mark.parametrize("levels", [LEVELS, exact.WEIGHT_LEVELS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_within_the_rounding_of_its_operands(shape, levels):
    M, K, N = shape
    a = draw(M, K).abs() * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    wide_a, wide_b = a.double(), b.double()
    error_a, error_b = rounding_errors(a, 1, levels[0]), rounding_errors(b, 0, levels[1])
    bound = error_a @ wide_b.abs() + wide_a @ error_b + error_a @ error_b
    error = (product(a, b, levels).double() - wide_a @ wide_b).abs()
    assert (error <= bound + 2.0**-20 * (wide_a @ wide_b.abs())).all()
    assert error.max() > 0 or K == 1


def test_weighted_sums_are_within_the_rounding_of_their_operands():
    p = draw(3, 20, 300).softmax(-1)
    v = draw(3, 300, 8, seed=1)
    found = exact.weighted_sums(p, v).double()
    wanted = p.double() @ v.double()
    # Half a step of the largest weighted vector of a block for each weight, and of its own largest for each vector.
    largest = v.double().abs().amax(-1, keepdim=True)
    blocks = zip((p.double() * largest.mT).split(BLOCK, -1), p.split(BLOCK, -1), strict=True)
    of_weights = sum(block.amax(-1, keepdim=True) / exact.WEIGHT_LEVELS[0] * 2 * own.shape[-1] for block, own in blocks)
    of_vectors = p.double() @ (largest / exact.WEIGHT_LEVELS[1]).expand_as(v)
    assert ((found - wanted).abs() <= of_weights + of_vectors + 1e-6).all()


def test_a_softmax_gives_nothing_to_what_is_masked():
    scores = draw(40, 300) * 9
    scores[:, 7] = -torch.inf
    found = exact.softmax_(scores.clone())
    assert torch.allclose(found, scores.softmax(-1), atol=1e-6)
    assert (found[:, 7] == 0).all()


# Layers. Operands that are multiples of 1/4 up to 1 are on every grid: all else then shows at full precision.


def lattice(*shape: int, seed: int) -> Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)) / 4


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt() * (1 + weight)


def plain_gelu(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def plain_attention(window: int):
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        seen = visible(q.shape[2], k.shape[2], window, "cpu")
        return (0.25 * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    return attention


def plain_loss(h: Tensor, head: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(h @ head.mT, torch.arange(len(h)) % len(head))


# A step is at most 2 / 361 of the largest number of a block, about 3 times the typical one; its rounding is 1/√12 of it
# on average: 0.5 % for an operand.
ROUNDED, FULL = 0.008, 2e-6


@pytest.mark.parametrize(
    ("ours", "plain", "shapes", "of_result", "of_gradients"),
    [
        (exact.linear, torch.nn.functional.linear, [(2, 7, 100), (30, 100)], FULL, FULL),
        (exact.gated_gelu, plain_gelu, [(2, 7, 33)] * 2, FULL, FULL),
        (lambda x, w: exact.rms_norm(x, w, 0.01), plain_norm, [(2, 7, 33), (33,)], FULL, FULL),
        (lambda *x: exact.attend(*x, 0.25, 9), plain_attention(9), [(2, 4, 30, 8), *[(2, 2, 30, 8)] * 2], FULL, FULL),
        (lambda *x: exact.attend(*x, 0.25, 9), plain_attention(9), [(2, 4, 5, 8), *[(2, 2, 30, 8)] * 2], FULL, FULL),
        (lambda *x: exact.attend(*x, 0.25, 40), plain_attention(40), [(2, 4, 30, 8), *[(2, 2, 30, 8)] * 2],
         ROUNDED, ROUNDED),
        (lambda *x: exact.attend(*x, 0.25, 20), plain_attention(20), [(2, 4, 7, 8), *[(2, 2, 30, 8)] * 2],
         ROUNDED, ROUNDED),
        (lambda h, head: exact.cross_entropy(h, head, torch.arange(20), 7), plain_loss, [(20, 16), (50, 16)],
         FULL, ROUNDED),
    ],
    ids=["linear", "gated_gelu", "rms_norm", "short window", "short, cached", "attention", "cached", "cross_entropy"],
)  # fmt: skip
@pytest.mark.parametrize("on_grid", [False, True])
def test_results_and_gradients_are_those_in_float64(ours, plain, shapes, of_result, of_gradients, on_grid):
    make = lattice if on_grid else draw
    inputs = [make(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = ours(*inputs)
    wanted = plain(*wide)
    grad = make(*out.shape, 1, seed=9)[..., 0] if out.ndim else torch.ones(())
    pairs = zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, wide, grad.double()), strict=True)
    assert (out - wanted).norm() / wanted.norm() < (of_result if on_grid else ROUNDED)
    for found, true in pairs:
        assert (found - true).norm() / true.norm() < (of_gradients if on_grid else ROUNDED)


def test_many_rows_of_a_loss_have_the_bits_of_512_at_a_time():
    h = draw(1100, 8)
    head = draw(30, 8, seed=1)
    targets = torch.arange(1100) % 30
    found = []
    for rows in (512, 1100, 10**6):
        inputs = [x.clone().requires_grad_() for x in (h, head)]
        loss = exact.cross_entropy(*inputs, targets, rows)
        found.append([loss, *torch.autograd.grad(loss, inputs)])
    assert all(torch.equal(one, other) for others in found[1:] for one, other in zip(found[0], others, strict=True))


def test_a_window_is_short_whatever_is_computed():
    assert exact.is_short(16, 128) and not exact.is_short(17, 128) and not exact.is_short(16, 129)


def test_token_nats_are_those_in_float64():
    logits = draw(300, 50) * 4
    targets = torch.arange(300) % 50
    wanted = torch.nn.functional.cross_entropy(logits.double(), targets, reduction="none")
    assert torch.allclose(exact.token_nats(logits.clone(), targets).double(), wanted, rtol=1e-6, atol=1e-6)


# Models.


def draw_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 100, shape, generator=torch.Generator().manual_seed(seed))


def test_a_model_computes_in_torchs_arithmetic_unless_told():
    ids = draw_ids(2, 60)
    fast, rounded = build(100), build(100, numerics="exact")
    logits = fast(ids)
    assert fast.numerics == "fast" and torch.equal(logits, build(100, numerics="fast")(ids))
    error = (rounded(ids) - logits).norm() / logits.norm()
    assert 1e-4 < error < 0.05
    loss = fast.loss(ids, ids.roll(-1, 1)).item()
    assert rounded.loss(ids, ids.roll(-1, 1)).item() == pytest.approx(loss, rel=0.02)
    assert float(fast.token_losses(ids, ids.roll(-1, 1)).mean()) == pytest.approx(loss, rel=1e-5)


def test_exact_numerics_refuse_what_they_cannot_compute():
    ids = draw_ids(1, 8)
    for model in (build(100, numerics="exact").bfloat16(), build(100, numerics="exact").to("meta")):
        with pytest.raises(ValueError, match=r"numerics is exact, and the model computes in .*needed: float32 on cpu"):
            model(ids)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="computes in autocast on cpu"):
        build(100, numerics="exact")(ids)
    with pytest.raises(ValueError, match="needed: fast, to compile a model"):
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
    found, other = model.hidden(ids), model.hidden(changed)
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
        inputs, gradients = [], []
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

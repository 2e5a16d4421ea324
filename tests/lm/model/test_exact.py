"""Exact numerics: products with the bits of their definition in any order and layout, close to plain torch."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model import exact
from lm.model.attention_masks import visible
from lm.model.exact import REPORTING, TRAINING, Precision, product
from support.model_cases import build

SHAPES = [(1, 5, 1), (3, 700, 1), (1, 128, 9), (64, 1100, 33), (33, 1, 2), (5, 257, 7), (2, 5000, 3)]

precisions = pytest.mark.parametrize("precision", [TRAINING, REPORTING], ids=["training", "reporting"])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layouts(x: Tensor) -> list[Tensor]:
    """Return equal matrices stored by rows, by columns, and as a part of a larger one."""
    padded = torch.zeros(x.shape[0] + 1, x.shape[1] + 3)
    padded[1:, 2:-1] = x
    return [x, x.mT.contiguous().mT, padded[1:, 2:-1]]


def defined_product(a: np.ndarray, b: np.ndarray, precision: Precision, levels: tuple[int, int]) -> np.ndarray:
    """Return a @ b (M, N) by the definition: integers, which int64 adds, times two powers of two, block by block."""
    dtype = {torch.float32: np.float32, torch.float64: np.float64}[precision.dtype]
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for k in range(0, a.shape[1], precision.block):
        left, left_step = integers(a[:, k : k + precision.block], 1, levels[0], precision)
        right, right_step = integers(b[k : k + precision.block], 0, levels[1], precision)
        total += ((left @ right) * left_step * right_step).astype(dtype)
    return total.astype(np.float32)


def integers(x: np.ndarray, axis: int, levels: int, precision: Precision) -> tuple[np.ndarray, np.ndarray]:
    """Return x as integers of at most `levels`, and the power of two of which they are multiples."""
    largest = np.abs(x).max(axis, keepdims=True).astype(np.float32) * np.float32(2 / levels)
    step = 2.0 ** (np.frexp(np.maximum(largest, np.float32(precision.smallest_step)))[1] - 1)
    rounded = np.rint(x.astype(np.float64) / step).astype(np.int64)  # halves to even, as IEEE 754 does
    assert np.abs(rounded).max() <= levels
    return rounded, step


def has_the_bits(found: Tensor, wanted: np.ndarray) -> bool:
    return np.array_equal(found.numpy().view(np.int32), wanted.view(np.int32))


@precisions
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_has_the_bits_of_its_definition(shape, threads, precision):
    M, K, N = shape
    a = draw(M, K) * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    a[0], b[:, 0] = 0, -b[:, 0].abs()  # of which some library makes -0
    wanted = defined_product(a.numpy(), b.numpy(), precision, precision.levels)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x, y in itertools.product(layouts(a), layouts(b)):
            assert has_the_bits(product(x, y, precision), wanted), (x.stride(), y.stride())
    finally:
        torch.set_num_threads(before)


def with_an_outlier(x: Tensor) -> Tensor:
    x[:, 3] = 1000
    return x


ADVERSARIAL = {
    "of all sizes": lambda x: x * 10 ** (6 * x.roll(1)),
    "powers of two": lambda x: x.sign() * 2 ** x.round(),
    "halves of a step": lambda x: (x * 300).round() + 0.5,
    "next to the largest level": lambda x: x.sign() * (361 - x.abs() * 1e-4),
    "tiny": lambda x: x * 2.0**-70,
    "subnormal": lambda x: x * 2.0**-130,
    "big": lambda x: x * 2.0**50,
    "zeros of both signs": lambda x: torch.where(x > 0.5, x, x.sign() * 0.0),
    "equal": lambda x: torch.full_like(x, 1 / 3),
    "beside an outlier": with_an_outlier,
}


@precisions
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_a_product_of_difficult_numbers_has_the_bits_of_its_definition(kind, precision):
    a, b = ADVERSARIAL[kind](draw(7, 300)), ADVERSARIAL[kind](draw(5, 300, seed=1)).mT
    for levels in (precision.levels, precision.weight_levels):
        wanted = defined_product(a.numpy(), b.numpy(), precision, levels)
        assert has_the_bits(product(a, b, precision, levels), wanted), levels


@precisions
def test_the_dtype_holds_every_partial_sum(precision):
    largest_integer = {torch.float32: 2**24, torch.float64: 2**53}[precision.dtype]
    for of_a, of_b in (precision.levels, precision.weight_levels):
        assert precision.block * of_a * of_b <= largest_integer


@precisions
def test_the_order_of_the_terms_of_a_block_does_not_matter(precision):
    a = draw(50, 128)
    b = draw(128, 60, seed=1)
    order = torch.randperm(128)
    assert torch.equal(product(a, b, precision), product(a[:, order], b[order], precision))
    assert not torch.equal(a @ b, a[:, order] @ b[order])  # as it does for other numbers


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


def test_powers_and_cosines_are_close_to_true_ones():
    for base in (0.8, 0.999, 1.0, 0.0):
        for exponent in (0, 1, 2, 3, 7, 900, 10**6):
            assert exact.power(base, exponent) == pytest.approx(base**exponent, rel=1e-9, abs=1e-300)
    for x in np.linspace(0, 1, 1001).tolist():
        assert exact.cos_pi(x) == pytest.approx(math.cos(math.pi * x), abs=1e-15)


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


def rounding_errors(x: Tensor, dim: int, levels: int, block: int) -> Tensor:
    """Return how far each number of x may be rounded: half a step of the grid of its block, at most 2 / levels."""
    blocks = [part.abs().amax(dim, keepdim=True).expand_as(part) for part in x.double().split(block, dim)]
    return torch.cat(blocks, dim) / levels


@precisions
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_within_the_rounding_of_its_operands(shape, weights, precision):
    M, K, N = shape
    a = draw(M, K).abs() * 10 ** draw(M, 1)
    b = draw(K, N, seed=1)
    wide_a, wide_b = a.double(), b.double()
    levels = precision.weight_levels if weights else precision.levels
    error_a = rounding_errors(a, 1, levels[0], precision.block)
    error_b = rounding_errors(b, 0, levels[1], precision.block)
    bound = error_a @ wide_b.abs() + wide_a @ error_b + error_a @ error_b
    error = (product(a, b, precision, levels).double() - wide_a @ wide_b).abs()
    assert (error <= bound + 2.0**-20 * (wide_a @ wide_b.abs())).all()
    assert error.max() > 0 or K == 1


@precisions
def test_weighted_sums_are_within_the_rounding_of_their_operands(precision):
    p = draw(3, 20, 300).softmax(-1)
    v = draw(3, 300, 8, seed=1)
    of_weights, of_vectors = precision.weight_levels
    found = exact.weighted_sums(p, v, precision).double()
    wanted = p.double() @ v.double()
    # Half a step of the largest weighted vector of a block for each weight, and of its own largest for each vector.
    largest = v.double().abs().amax(-1, keepdim=True)
    blocks = zip(*((x.split(precision.block, -1)) for x in (p.double() * largest.mT, p)), strict=True)
    error = sum(block.amax(-1, keepdim=True) / of_weights * 2 * own.shape[-1] for block, own in blocks)
    error = error + p.double() @ (largest / of_vectors).expand_as(v)
    assert ((found - wanted).abs() <= error + 2.0**-20 * wanted.abs().max()).all()


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


@pytest.mark.parametrize("window", [9, 40], ids=["short window", "attention"])
@pytest.mark.parametrize("T", [30, 7], ids=["whole", "cached"])
def test_what_is_reported_is_as_accurate_as_float32(window, T):
    x, weight = draw(2, 7, 100), draw(30, 100, seed=1)
    wanted = x.double() @ weight.double().mT
    assert (exact.linear(x, weight, training=False) - wanted).norm() / wanted.norm() < FULL
    q, k, v = (draw(2, heads, tokens, 8, seed=heads) for heads, tokens in ((4, T), (2, 30), (2, 30)))
    wanted = plain_attention(window)(q.double(), k.double(), v.double())
    assert (exact.attend(q, k, v, 0.25, window, training=False) - wanted).norm() / wanted.norm() < FULL


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


@pytest.mark.parametrize("rows", [7, 300])
def test_token_nats_are_those_in_float64(rows):
    h, head = draw(300, 40) * 2, draw(50, 40, seed=1)
    targets = torch.arange(300) % 50
    wanted = torch.nn.functional.cross_entropy(h.double() @ head.double().mT, targets, reduction="none")
    of_logits = 40 * 2 * h.abs().max() * head.abs().max() / REPORTING.levels[0]  # both roundings of 40 products
    found = exact.token_nats(h, head, targets, rows).double()
    assert torch.allclose(found, wanted, rtol=2e-6, atol=2 * of_logits.item())


# Models.


def draw_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 100, shape, generator=torch.Generator().manual_seed(seed))


def test_a_model_computes_in_torchs_arithmetic_unless_told():
    ids = draw_ids(2, 60)
    fast, rounded = build(100), build(100, numerics="exact")
    logits = fast(ids)
    assert fast.numerics == "fast" and torch.equal(logits, build(100, numerics="fast")(ids))
    assert 1e-4 < (rounded(ids) - logits).norm() / logits.norm() < 0.05
    reported = rounded.eval()(ids)
    assert (reported - logits).norm() / logits.norm() < 1e-5 and not reported.requires_grad
    rounded.train()
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


modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@modes
@pytest.mark.parametrize("window", [4, 300])
def test_the_future_changes_no_bit(window, training):
    model = build(1000, numerics="exact", sliding_window=window, max_seq_len=300).train(training)
    ids = torch.randint(1000, (2, 300), generator=torch.Generator().manual_seed(1))
    changed = torch.cat([ids[:, :170], ids[:, 170:].flip(1)], 1)
    assert torch.equal(model.hidden(ids)[:, :170], model.hidden(changed)[:, :170])
    assert torch.equal(model.hidden(ids)[:, :170], model.hidden(ids[:, :170])), "nor does the length of the text"


@modes
@pytest.mark.parametrize("every", [1, 9], ids=["full", "sliding"])
@pytest.mark.parametrize("window", [4, 20])
def test_the_document_before_changes_no_bit(window, every, training):
    model = build(100, numerics="exact", sliding_window=window, full_attention_every=every).train(training)
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
        model.eval()
        losses = [model.token_losses(ids[i : i + size], targets[i : i + size]) for i in range(0, 8, size)]
        model.train()
        return [torch.cat(losses), torch.cat(gradients)]

    alone = results(1)
    for size in (2, 4, 8):
        assert all(map(torch.equal, results(size), alone)), size

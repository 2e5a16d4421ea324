"""Test the model against transformers' Gemma 3, against its definition, and its counts of parameters and FLOP."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lm.core.params import read_yaml
from lm.model import kernels
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token
from lm.model.kernels import attend, cross_entropy, visible
from lm.model.score import token_losses, token_nats
from support import ROOT
from support.model_cases import SHAPE, assert_close
from support.model_cases import random_model as build
from tools.export_hf.hugging_face import hugging_face_config, to_hugging_face

# No two sizes are equal, so that no test passes with one in place of another.
TINY = ModelConfig(**SHAPE | {"d_model": 48, "d_ff": 96, "norm_eps": 1e-3, "max_seq_len": 128}, vocab_size=61)
ONE_BLOCK = dataclasses.replace(TINY, n_layer=1, full_attention_every=1)
GEMMA3_270M = ModelParams(**read_yaml(ROOT / "presets.yaml")["models"]["gemma3_270m"])
# The published shape, smaller: one key head, and more layers.
SMALL_270M = dataclasses.replace(
    GEMMA3_270M,
    n_layer=7,
    head_dim=32,
    d_model=80,
    d_ff=256,
    sliding_window=11,
    query_pre_attn_scalar=24,
    norm_eps=1e-3,
    max_seq_len=128,
).config(vocab_size=301)
BFLOAT16_ROUNDING = 2.0**-9  # largest relative error of rounding to bfloat16, which has 8 bits


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_ids(config: ModelConfig, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(config.vocab_size, shape, generator=seeded(seed))


def draw_batch(config: ModelConfig, *shape: int) -> tuple[Tensor, Tensor]:
    """Return ids and targets."""
    return draw_ids(config, *shape), draw_ids(config, *shape, seed=1)


def gradients(model, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def assert_gradients_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raise AssertionError unless each gradient is within 1e-5 of its largest entry."""
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        largest = gradient.abs().max()
        assert (found[name] - gradient).abs().max() <= 1e-5 * largest, name


# Parity with transformers.


def published(config: ModelConfig, model: Gemma3Model):
    """Return the model of transformers with these weights."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(config), attn_implementation="eager"))
    missing, unexpected = theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    assert missing == ["lm_head.weight"]
    assert unexpected == []
    theirs.tie_weights()
    return theirs


@pytest.mark.parametrize("config", [TINY, SMALL_270M], ids=["two_key_heads", "one_key_head"])
def test_logits_and_gradients_are_those_of_transformers(config):
    ids, targets = draw_batch(config, 2, 40)
    model = build(config)
    theirs = published(config, model)
    wanted_logits = theirs(ids).logits
    wanted_loss = F.cross_entropy(wanted_logits.flatten(0, 1), targets.flatten())
    wanted = gradients(theirs, wanted_loss)

    logits = model(ids)
    found = gradients(model, model.loss(ids, targets))

    assert_close(logits, wanted_logits)
    assert_gradients_close(to_hugging_face(found), wanted)
    smallest = min(gradient.abs().max() for gradient in wanted.values())
    assert smallest > 1e-4, "each weight matters here"


# Positions and attention.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [5, 64])
def test_attention_is_its_definition(window, dtype):
    """Compare to softmax(scale q k^T + mask) v in float64, with four query heads per key head."""
    draws = torch.randn(6, 2, 24, 16, generator=seeded()).to(dtype)
    q, k, v = (x.transpose(0, 1) for x in draws.split([4, 1, 1]))
    scores = 0.3 * q.double() @ k.double().mT
    is_hidden = ~visible(24, 24, window, "cpu")
    wanted = scores.masked_fill(is_hidden, -math.inf).softmax(-1) @ v.double()

    found = attend(q, k, v, 0.3, window)

    # Scores, weights and values are rounded one after the other; a sum of 24 terms adds their errors.
    assert (found - wanted).abs().max() <= 6 * torch.finfo(dtype).eps * wanted.abs().max()


# Counts, and the first weights.


def test_parameters_are_counted_by_component():
    counts = count_parameters(GEMMA3_270M.config(vocab_size=262_144))

    assert counts["total"] == 268_098_176, "as published"
    assert counts["embedding"] == 262_144 * 640
    total = counts.pop("total")
    assert total == sum(counts.values())


def test_flops_are_those_of_the_products_and_of_the_scores_that_the_mask_lets_through():
    seq_len = 30
    model = build(TINY)
    ids, targets = draw_batch(TINY, 2, seq_len)
    with FlopCounterMode(display=False) as counter:
        model.loss(ids, targets).backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    windows = [seq_len if TINY.is_full(layer) else TINY.sliding_window for layer in range(TINY.n_layer)]
    num_scores = sum(min(position, window) for window in windows for position in range(1, seq_len + 1))

    flops = flops_per_token(TINY, seq_len)

    assert flops["attention"] + flops["mlp"] + flops["head"] == counted / (2 * seq_len)
    # A product for the score and one with the value, two FLOP a multiply-add, forward and twice as much backward.
    flops_per_score = 2 * 2 * 3 * TINY.n_head * TINY.head_dim
    assert flops["scores"] == pytest.approx(flops_per_score * num_scores / seq_len)


def test_a_norm_under_autocast_is_rounded_once():
    x = torch.randn(64, 32, generator=seeded(0))
    weight = torch.randn(32, generator=seeded(1))

    with torch.autocast("cpu", torch.bfloat16):
        found = kernels.rms_norm(x, weight, 1e-6)

    wanted = F.rms_norm(x.double(), (32,), 1 + weight.double(), 1e-6).bfloat16()
    differs = found != wanted
    assert differs.float().mean() < 0.01  # float32 may be on the other side of the middle of two bfloat16 numbers


# The loss.


ONE_HEAD = dataclasses.replace(ONE_BLOCK, d_model=16, n_head=1, n_kv_head=1)


@pytest.mark.parametrize(
    ("config", "seq_len", "rows"),
    [
        pytest.param(TINY, 30, 7, id="the last chunk has four rows"),
        pytest.param(dataclasses.replace(ONE_HEAD, vocab_size=2**17), 9, 512, id="the softmax takes four rows of 18"),
    ],
)
def test_the_loss_in_chunks_is_the_cross_entropy(config, seq_len, rows):
    model = build(config)
    model.max_logits = rows * config.vocab_size
    ids, targets = draw_batch(config, 2, seq_len)
    wanted = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="none")
    wanted_gradients = gradients(model, wanted.mean())

    loss = model.loss(ids, targets)
    each = token_losses(model, ids, targets, rows=rows)

    assert each.shape == targets.shape
    assert_close(each.flatten(), wanted, 1e-6)
    assert_close(loss, wanted.mean(), 1e-6)
    assert_gradients_close(gradients(model, loss), wanted_gradients)


@pytest.mark.parametrize("num_padding", [0, 3])
def test_cross_entropy_of_a_sample_is_that_of_its_logits_and_factors(monkeypatch, num_padding):
    """On a GPU, zeros pad the head; their logits are -inf."""
    padding = (0, 0, 0, num_padding)
    monkeypatch.setattr(kernels, "padded_head", lambda head, dtype: F.pad(head.to(dtype), padding))
    h = torch.randn(30, 16, generator=seeded(0)).requires_grad_()
    head = torch.randn(61, 16, generator=seeded(1)).requires_grad_()
    targets = torch.arange(30)
    log_factors = torch.randn(20, generator=seeded(2))
    logits = h @ head.mT
    wanted = F.cross_entropy(logits + F.pad(log_factors, (41, 0)), targets)

    loss = cross_entropy(h, head, targets, 7, log_factors)

    assert_close(loss, wanted, 1e-6)
    gradients = zip(torch.autograd.grad(loss, [h, head]), torch.autograd.grad(wanted, [h, head]), strict=True)
    for ours, plain in gradients:
        assert_close(ours, plain, 1e-6)
    each = token_nats(h.detach(), head.detach(), targets, 7)
    assert_close(each, F.cross_entropy(logits, targets, reduction="none"))


def test_cross_entropy_in_bfloat16_is_within_its_rounding():
    """Compare to float64, of the operands in bfloat16."""
    h = torch.randn(60, 48, generator=seeded(0)).requires_grad_()
    head = (0.3 * torch.randn(61, 48, generator=seeded(1))).requires_grad_()
    targets = torch.arange(60)
    wide = [x.detach().bfloat16().double().requires_grad_() for x in (h, head)]
    wanted = F.cross_entropy(wide[0] @ wide[1].T, targets)

    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(h, head, targets, 1)

    found = [loss, *torch.autograd.grad(loss, [h, head])]
    # A rounding of the logits, of their gradient, of the products and of the sum of each chunk; some of them add up.
    for ours, exact in zip(found, [wanted, *torch.autograd.grad(wanted, wide)], strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() <= 4 * BFLOAT16_ROUNDING * exact.norm()


def test_the_fused_softmax_is_the_plain_one():
    num_entries = 58
    logits = 5 * torch.randn(20, 61, generator=seeded())
    logits[:, num_entries:] = -math.inf  # padding
    targets = torch.arange(20)
    plain = logits.clone()
    wanted = kernels.nats_and_gradient_(plain, targets)

    fused = logits.clone()
    nats = kernels.fused_nats_and_gradient_(fused, targets)

    assert_close(nats, wanted, 1e-6)
    assert (fused - plain).abs().max() <= 1e-6
    assert (fused[:, num_entries:] == 0).all()


# Compiled models.


def test_compiled_blocks_give_the_same_loss_and_gradients():
    config = dataclasses.replace(TINY, full_attention_every=2)
    ids, targets = draw_batch(config, 2, 20)
    model = build(config)
    names = list(model.state_dict())
    wanted_loss = model.loss(ids, targets)
    wanted = gradients(model, wanted_loss)

    torch._dynamo.reset()
    model.compile(backend="eager", fullgraph=True)
    loss = model.loss(ids, targets)

    assert_close(loss, wanted_loss)
    assert_gradients_close(gradients(model, loss), wanted)
    assert list(model.state_dict()) == names


# Refusals.


def test_text_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match=r"129 tokens; there must be at most max_seq_len \(128\)"):
        Gemma3Model(TINY)(draw_ids(TINY, 1, 129))


@pytest.mark.parametrize(("field", "value"), [("n_head", 5), ("head_dim", 15)])
def test_invalid_shapes_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        dataclasses.replace(TINY, **{field: value})

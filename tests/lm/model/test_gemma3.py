"""Test the model against transformers' Gemma 3, against its definition, and its counts of parameters and FLOP."""

import dataclasses
import math
import shutil
import tempfile
from pathlib import Path

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
from tools.export_hf.hugging_face import from_hugging_face, hugging_face_config, to_hugging_face

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
FLOAT32_ROUNDING = 2.0**-24
AUTOCAST = pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])


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


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference, as a fraction of that of `wanted`."""
    difference = (found - wanted).detach()
    return (difference.norm() / wanted.detach().norm()).item()


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


def test_weights_convert_both_ways():
    model = build(TINY)
    state = model.state_dict()

    for theirs in (to_hugging_face(state), published(TINY, model).state_dict()):
        found = from_hugging_face(theirs)

        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)


# Positions and attention.


@AUTOCAST
@pytest.mark.parametrize("window", [5, 20, 64])
def test_attention_is_its_definition(window, autocast):
    """Compare values and gradients to softmax(scale q k^T + mask) v in float64, with four query heads per key head."""
    generator = seeded()
    dtype = torch.bfloat16 if autocast else torch.float32
    num_tokens = 24
    q = torch.randn(2, 4, num_tokens, 16, generator=generator).to(dtype).requires_grad_()
    k = torch.randn(2, 1, num_tokens, 16, generator=generator).to(dtype).requires_grad_()
    v = torch.randn(2, 1, num_tokens, 16, generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(2, 4, num_tokens, 16, generator=generator).to(dtype)
    wide_q, wide_k, wide_v = (x.detach().double().requires_grad_() for x in (q, k, v))
    hidden_scores = ~visible(num_tokens, num_tokens, window, "cpu")
    scores = (0.3 * wide_q @ wide_k.mT).masked_fill(hidden_scores, -math.inf)
    wanted = scores.softmax(-1) @ wide_v
    wanted.backward(grad.double())

    found = attend(q, k, v, 0.3, window)
    found.backward(grad)

    # Scores, weights and their gradients are rounded one after the other; a sum of 24 terms adds their errors.
    bound = 10 * (BFLOAT16_ROUNDING if autocast else FLOAT32_ROUNDING)
    pairs = [(found, wanted), (q.grad, wide_q.grad), (k.grad, wide_k.grad), (v.grad, wide_v.grad)]
    for ours, exact in pairs:
        assert (ours - exact).abs().max() <= bound * exact.abs().max()


# Counts, and the first weights.


def test_parameters_are_counted_by_component():
    parts = {"norm": "norms", "mlp": "mlp", "attn": "attention", "embed": "embedding"}
    wanted = dict.fromkeys(parts.values(), 0)
    for name, weight in Gemma3Model(TINY).named_parameters():
        part = next(part for word, part in parts.items() if word in name)
        wanted[part] += weight.numel()

    assert count_parameters(TINY) == wanted | {"total": sum(wanted.values())}
    assert count_parameters(GEMMA3_270M.config(vocab_size=262_144))["total"] == 268_098_176  # as published


def test_flops_are_those_of_the_products_and_of_the_scores_that_the_mask_lets_through():
    seq_len = 30
    model = build(TINY)
    ids, targets = draw_batch(TINY, 2, seq_len)
    with FlopCounterMode(display=False) as counter:
        model.loss(ids, targets).backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    num_scores = 0
    for layer in range(TINY.n_layer):
        window = seq_len if TINY.is_full(layer) else TINY.sliding_window
        num_scores += sum(min(position, window) for position in range(1, seq_len + 1))
    # A product for the score and one with the value, two FLOP a multiply-add, forward and twice as much backward.
    flops_per_score = 2 * 2 * 3 * TINY.n_head * TINY.head_dim

    flops = flops_per_token(TINY, seq_len)
    total = flops.pop("total")

    assert flops["attention"] + flops["mlp"] + flops["head"] == counted / (2 * seq_len)
    assert flops["scores"] == pytest.approx(flops_per_score * num_scores / seq_len)
    assert total == pytest.approx(sum(flops.values()))


def test_a_norm_under_autocast_is_rounded_once():
    x = torch.randn(64, 32, generator=seeded(0))
    weight = torch.randn(32, generator=seeded(1))

    with torch.autocast("cpu", torch.bfloat16):
        found = kernels.rms_norm(x, weight, 1e-6)

    wide = x.double()
    normalized = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    wanted = (normalized * (1 + weight.double())).bfloat16()
    differs = found != wanted
    assert differs.float().mean() < 0.01  # float32 may be on the other side of the middle of two bfloat16 numbers


# The loss.


ONE_HEAD = dataclasses.replace(ONE_BLOCK, d_model=16, n_head=1, n_kv_head=1)


@pytest.mark.parametrize(
    ("config", "seq_len", "rows"),
    [
        pytest.param(TINY, 30, 1, id="a row at a time"),
        pytest.param(TINY, 30, 7, id="the last chunk has four rows"),
        pytest.param(dataclasses.replace(ONE_HEAD, vocab_size=2**17), 9, 512, id="the softmax takes four rows of 18"),
        pytest.param(dataclasses.replace(ONE_HEAD, vocab_size=2**19 + 1), 2, 512, id="the softmax takes one row"),
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


@pytest.mark.parametrize("sampled", [False, True])
def test_a_padded_head_gives_the_same_loss_and_gradients(monkeypatch, sampled):
    """As on a GPU: zeros below the head, whose logits are -inf."""
    on_gpu = kernels.padded_head(torch.empty(50_257, 4, device="meta"), torch.bfloat16)
    assert on_gpu.shape == (50_304, 4)
    generator = seeded()
    h = torch.randn(30, 16, generator=generator)
    head = torch.randn(61, 16, generator=generator)
    targets = torch.randint(40, (30,), generator=generator)
    log_factors = torch.randn(20, generator=generator) if sampled else None

    def losses_and_gradients() -> list[Tensor]:
        trained_h = h.clone().requires_grad_()
        trained_head = head.clone().requires_grad_()
        loss = cross_entropy(trained_h, trained_head, targets, 7, log_factors)
        loss.backward()
        each = token_nats(h, head, targets, 7)
        return [loss, each, trained_h.grad, trained_head.grad]

    wanted = losses_and_gradients()
    monkeypatch.setattr(kernels, "padded_head", lambda head, dtype: F.pad(head.to(dtype), (0, 0, 0, 3)))
    found = losses_and_gradients()

    for padded, plain in zip(found, wanted, strict=True):
        assert_close(padded, plain, 1e-6)


@pytest.mark.parametrize("rows", [7, 60], ids=["several chunks", "one chunk"])
def test_cross_entropy_in_bfloat16_is_within_its_rounding(rows):
    """Compare to float64; each bound is the rounding of logits, of their gradient and of the result."""
    generator = seeded()
    h = torch.randn(60, 48, generator=generator).requires_grad_()
    head = (0.3 * torch.randn(61, 48, generator=generator)).requires_grad_()
    targets = torch.randint(61, (60,), generator=generator)
    # The same in float64, of the operands in bfloat16.
    wide_h = h.detach().bfloat16().double().requires_grad_()
    wide_head = head.detach().bfloat16().double().requires_grad_()
    logits = wide_h @ wide_head.T
    logits.retain_grad()
    wanted = F.cross_entropy(logits, targets)
    wanted.backward()

    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(h, head, targets, rows)
    loss.backward()

    assert loss.dtype == h.grad.dtype == head.grad.dtype == torch.float32
    # A rounded logit is off by half a unit of its last place, and so is the logarithm of a probability, twice.
    log_error = 2 * BFLOAT16_ROUNDING * logits.detach().abs().max()
    assert abs(loss - wanted) <= log_error
    # A gradient of a logit is p / N, less 1 / N at the target: p is off by the factor exp(log_error), and both are
    # rounded. The products with the other operand add these errors up. A sum is rounded once, for the head one of each
    # chunk, and float32 adds those.
    p = logits.detach().softmax(-1) / len(logits)
    errors = p * log_error.expm1() + 2 * BFLOAT16_ROUNDING * logits.grad.abs()
    h_bound = errors @ wide_head.detach().abs()
    head_bound = errors.T @ wide_h.detach().abs()
    assert ((h.grad - wide_h.grad).abs() <= h_bound).all()
    assert ((head.grad - wide_head.grad).abs() <= head_bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_softmax_is_the_plain_one(dtype):
    generator = seeded()
    num_entries = 58
    logits = (5 * torch.randn(20, 61, generator=generator)).to(dtype)
    logits[:, num_entries:] = -math.inf  # padding
    targets = torch.randint(num_entries, (20,), generator=generator)
    plain = logits.clone()
    wanted = kernels.nats_and_gradient_(plain, targets)

    fused = logits.clone()
    nats = kernels.fused_nats_and_gradient_(fused, targets)

    assert_close(nats, wanted, 1e-6)
    bound = BFLOAT16_ROUNDING if dtype == torch.bfloat16 else 1e-6
    assert (fused - plain).abs().max() <= bound
    assert (fused[:, num_entries:] == 0).all()


# Compiled models.


class RecordingBackend:
    """A compiler that keeps the graphs that it gets, and runs them as they are."""

    def __init__(self):
        torch._dynamo.reset()
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward


def test_compiled_blocks_give_the_same_loss_and_gradients():
    config = dataclasses.replace(TINY, full_attention_every=2)
    ids, targets = draw_batch(config, 2, 20)
    model = build(config)
    names = list(model.state_dict())
    wanted_loss = model.loss(ids, targets)
    wanted = gradients(model, wanted_loss)
    backend = RecordingBackend()

    model.compile(backend=backend, fullgraph=True)
    loss = model.loss(ids, targets)

    assert_close(loss, wanted_loss)
    assert_gradients_close(gradients(model, loss), wanted)
    assert list(model.state_dict()) == names
    assert len(backend.graphs) == 4, "two kinds of blocks, the last norm, and the softmax of the loss"


NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")


@pytest.fixture(scope="module")
def inductor_cache():
    """Keep compiled kernels in a folder for each set of instructions: those for others crash (`make test-numerics`)."""
    cache = Path(tempfile.gettempdir()) / f"torchinductor-{torch.backends.cpu.get_cpu_capability()}"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        yield


def loss_and_gradients(model: Gemma3Model, ids: Tensor, targets: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = model.loss(ids, targets)
    return {"loss": loss, **gradients(model, loss)}


@dataclasses.dataclass
class CompiledStep:
    """What a forward and backward pass in bfloat16 gives, without a compiler and by Inductor."""

    plain: dict[str, Tensor]
    compiled: dict[str, Tensor]


@pytest.fixture(scope="module")
def compiled_step(inductor_cache) -> CompiledStep:
    """Compile in half a minute of processor time."""
    config = dataclasses.replace(ONE_BLOCK, vocab_size=500)
    ids, targets = draw_batch(config, 2, 20)
    model = build(config)
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Attend as on a GPU, by one kernel of torch's.
        monkeypatch.setattr(kernels, "takes_products", lambda q, S: False)
        plain = loss_and_gradients(model, ids, targets, torch.bfloat16)
        model.compile()
        compiled = loss_and_gradients(model, ids, targets, torch.bfloat16)
    return CompiledStep(plain, compiled)


@NEEDS_COMPILER
def test_a_model_compiled_by_inductor_gives_the_same_loss_and_gradients(compiled_step):
    bound = 6 * BFLOAT16_ROUNDING * (2 * 15) ** 0.5

    assert compiled_step.compiled.keys() == compiled_step.plain.keys()
    for name, wanted in compiled_step.plain.items():
        assert relative_error(compiled_step.compiled[name], wanted) <= bound, name


# Refusals.


def test_text_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match=r"129 tokens; there must be at most max_seq_len \(128\)"):
        Gemma3Model(TINY)(draw_ids(TINY, 1, 129))


@pytest.mark.parametrize(("field", "value"), [("n_head", 5), ("d_model", 50), ("head_dim", 15), ("sliding_window", 0)])
def test_invalid_shapes_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        dataclasses.replace(TINY, **{field: value})

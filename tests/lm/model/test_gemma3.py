"""Test the model against transformers' Gemma 3, against its definition, and its counts of parameters and FLOP."""

import dataclasses
import math
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lm.core.params import read_yaml
from lm.model import kernels
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token, rows_of_equal_chunks
from lm.model.kernels import attend, cross_entropy, visible
from lm.model.score import token_losses, token_nats
from support import ROOT
from support.model_cases import SHAPE, assert_close
from support.model_cases import random_model as build
from tools.common.models import from_hugging_face, hugging_face_config, to_hugging_face

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
CUDA = torch.device("cuda")
GIB = 2**30


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


def test_embedding_scale_is_rounded_as_published():
    model = build(SMALL_270M).bfloat16()
    theirs = published(SMALL_270M, model).bfloat16()
    ids = draw_ids(SMALL_270M, 1, 30)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))

    model.hidden(ids)

    assert torch.equal(seen[0], theirs.model.embed_tokens(ids))


def test_weights_convert_both_ways():
    model = build(TINY)
    state = model.state_dict()

    for theirs in (to_hugging_face(state), published(TINY, model).state_dict()):
        found = from_hugging_face(theirs)

        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)


# Positions and attention.


def test_rotary_tables_are_made_again_only_for_a_text_twice_as_long():
    """A GPU waits for each new table; a text that grows token by token must not need one each time."""
    model = build(TINY)
    tables = []

    for length in (20, 12, 32, 33, 64, TINY.max_seq_len, 5):
        cos, _ = model.rotary_tables(0, length, model.device)[TINY.rope_base_local]
        tables.append(cos.untyped_storage().data_ptr())

    first, second, last = tables[0], tables[3], tables[5]
    assert tables == [first, first, first, second, second, last, last]
    assert len({first, second, last}) == 3


def test_a_model_that_moves_to_another_device_gets_its_rotary_tables_there():
    model = build(TINY)
    model.hidden(draw_ids(TINY, 1, 20))

    model.to("meta")

    cos, signed_sin = model.rotary_tables(0, 5, model.device)[TINY.rope_base_local]
    assert cos.device.type == signed_sin.device.type == "meta"


@AUTOCAST
@pytest.mark.parametrize(("every", "reach"), [(3, 2 * (8 - 1)), (2, 40)], ids=["sliding", "with_full"])
def test_causality_and_reach_by_gradient(every, reach, autocast):
    """Each position depends on itself and exactly `reach` positions before it."""
    config = dataclasses.replace(TINY, n_layer=2, full_attention_every=every)
    model = build(config)
    position = torch.arange(40)
    ids = position[None]  # each position has its own embedding

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.hidden(ids).float()

    for t in (0, 7, 8, 14, 15, 39):
        (grad,) = torch.autograd.grad(hidden[0, t].sum(), model.embed_tokens.weight, retain_graph=True)
        depends = grad.to_dense()[:40].abs().amax(1) > 0
        within_reach = (position <= t) & (position >= t - reach)
        assert torch.equal(depends, within_reach), t


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


@pytest.mark.parametrize(
    ("dtype", "window", "wanted_key_heads"),
    [
        pytest.param(torch.bfloat16, 8, 2, id="bfloat16"),
        pytest.param(torch.bfloat16, 4, 4, id="bfloat16 with a mask"),
        pytest.param(torch.float32, 8, 4, id="float32"),
    ],
)
def test_on_a_gpu_float32_and_masks_get_a_key_for_each_query_head(monkeypatch, dtype, window, wanted_key_heads):
    """Fused kernels exist there with fewer key heads for bfloat16 without a mask only."""
    seen_key_heads = []

    def record(q, k, v, *mask, enable_gqa, **options):
        seen_key_heads.append(k.shape[1])
        assert enable_gqa == (k.shape[1] < q.shape[1])
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    q = torch.empty(1, 4, 8, 16, dtype=dtype, device="meta")
    k = torch.empty(1, 2, 8, 16, dtype=dtype, device="meta")

    attend(q, k, k, 1.0, window)

    assert seen_key_heads == [wanted_key_heads]


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


def test_first_loss_is_about_ln_of_the_vocabulary():
    config = dataclasses.replace(TINY, d_model=640, vocab_size=1000)
    model = Gemma3Model(config)
    model.init_weights(seeded())

    loss = model.loss(*draw_batch(config, 4, 64))

    assert loss.item() == pytest.approx(math.log(1000), abs=0.1)


def test_initial_weights_depend_only_on_the_generator():
    global_state = torch.get_rng_state()
    models = [Gemma3Model(TINY) for _ in range(3)]

    for model, seed in zip(models, (1, 1, 2), strict=True):
        model.init_weights(seeded(seed))

    first, same, other = (model.layers[0].mlp.gate_proj.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(global_state, torch.get_rng_state())


def test_the_output_of_each_block_is_scaled_at_first():
    """By 1 / sqrt(2 n_layer), as in GPT-2; the last norm has the gain 1."""
    model = Gemma3Model(TINY)

    model.init_weights(seeded())

    for block in model.layers:
        for norm in (block.post_attention_layernorm, block.post_feedforward_layernorm):
            assert torch.allclose(1 + norm.weight, torch.tensor(8**-0.5))
    assert model.norm.weight.count_nonzero() == 0


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


def test_the_gradient_of_a_part_of_the_loss_is_that_part():
    """As in a step of several micro-batches."""
    model = build(TINY)
    ids, targets = draw_batch(TINY, 3, 20)
    whole = gradients(model, model.loss(ids, targets))

    third = gradients(model, model.loss(ids, targets) / 3)

    assert_gradients_close(third, {name: gradient / 3 for name, gradient in whole.items()})


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


class Rows:
    """Stands for the input (N, C) of the head on a GPU."""

    device = CUDA
    dtype = torch.bfloat16

    def __len__(self):
        return 16_384


@pytest.mark.parametrize(
    ("is_compiled", "unallocated_gib", "wanted_rows"),
    [
        # An eighth of 64 GiB holds 5,461 rows, in bfloat16 and in float32: three chunks would need one row more.
        pytest.param(False, 60, 4096, id="four equal chunks"),
        pytest.param(True, 20, 4096, id="in bfloat16 alone, from an eighth of 24 GiB"),
        pytest.param(False, 0, 512, id="as many as on a CPU"),
        pytest.param(False, 900, 4096, id="fewer than 2**31 logits: three chunks would differ by a row"),
    ],
)
def test_the_loss_takes_chunks_as_large_as_a_gpu_has_room_for(monkeypatch, is_compiled, unallocated_gib, wanted_rows):
    """It asks once: in the first step. Torch has 4 GiB in its cache."""
    reports = iter([unallocated_gib])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(reports) * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 * GIB)
    with FakeTensorMode():  # without memory for the weights
        model = Gemma3Model(dataclasses.replace(TINY, vocab_size=2**18))
    model.is_compiled = is_compiled

    assert [model.loss_rows(Rows()) for _ in range(2)] == [wanted_rows, wanted_rows]


@pytest.mark.parametrize(
    ("num_rows", "most_rows", "wanted_rows"),
    [
        pytest.param(32_768, 11_000, 8192, id="a chunk more, which are equal"),
        pytest.param(90, 100, 90, id="one chunk"),
        pytest.param(101, 50, 34, id="a prime number: the last one is smaller"),
    ],
)
def test_chunks_of_the_loss_are_equal_if_that_takes_fewer_than_twice_as_many(num_rows, most_rows, wanted_rows):
    assert rows_of_equal_chunks(num_rows, most_rows) == wanted_rows


class OnGPU(Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    device = CUDA
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.fixture
def gpu_products():
    """Compute products of bfloat16 with a float32 result on the CPU, as torch does on a GPU alone; list them."""
    calls = []

    def mm(a, b, out_dtype):
        calls.append("mm")
        return (a.double() @ b.double()).to(out_dtype)

    def addmm(total, a, b, out_dtype, *, beta=1, alpha=1, out):
        calls.append("addmm")
        assert out is total
        assert total.dtype == out_dtype == torch.float32
        return out.copy_(total.double() + a.double() @ b.double())

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", mm, "CPU")
    library.impl("addmm.dtype_out", addmm, "CPU")
    yield calls
    library._destroy()


def test_on_a_gpu_a_product_is_added_without_being_rounded(gpu_products):
    generator = seeded()
    a = torch.randn(30, 12, generator=generator).bfloat16()
    b = torch.randn(12, 16, generator=generator).bfloat16()

    first = kernels.add_product(None, a[:, :5].as_subclass(OnGPU), b[:5])
    total = kernels.add_product(first, a[:, 5:].as_subclass(OnGPU), b[5:])

    assert gpu_products == ["mm", "addmm"]
    assert total.dtype == torch.float32
    assert_close(total, a.double() @ b.double(), 1e-6)


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
    """A compiler that keeps the graphs and the inputs that it gets, and runs the graphs as they are."""

    def __init__(self):
        torch._dynamo.reset()
        self.graphs = []
        self.inputs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        self.inputs.append(inputs)
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


def test_a_validation_before_training_leaves_its_graphs_to_fixed_shapes():
    """The last batch of a validation is smaller; graphs for any size of a batch would be slower."""
    model = build(dataclasses.replace(TINY, n_layer=2, full_attention_every=2))
    ids = draw_ids(TINY, 4, 20)
    backend = RecordingBackend()
    model.compile(backend=backend)

    with torch.no_grad():
        for num_rows in (4, 3):
            token_losses(model, ids[:num_rows], ids[:num_rows])
    model.loss(ids, ids).backward()

    assert len(backend.graphs) == 3 + 3 + 4, "blocks of two kinds and the last norm, each time; the softmax"
    symbolic_sizes = [each for inputs in backend.inputs for each in inputs if isinstance(each, torch.SymInt)]
    assert symbolic_sizes == []


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
    """What a forward and backward pass in bfloat16 gives, without a compiler and by Inductor, and Inductor's code."""

    plain: dict[str, Tensor]
    compiled: dict[str, Tensor]
    codes: list[str]
    num_rows: int


@pytest.fixture(scope="module")
def compiled_step(inductor_cache) -> CompiledStep:
    """Compile once for several tests, because it takes half a minute of processor time."""
    from torch._inductor.utils import run_and_get_code

    config = dataclasses.replace(ONE_BLOCK, vocab_size=500)
    ids, targets = draw_batch(config, 2, 20)
    model = build(config)
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Attend as on a GPU, by one kernel of torch's.
        monkeypatch.setattr(kernels, "takes_products", lambda q, S: False)
        plain = loss_and_gradients(model, ids, targets, torch.bfloat16)
        model.compile()
        compiled, codes = run_and_get_code(loss_and_gradients, model, ids, targets, torch.bfloat16)
    return CompiledStep(plain, compiled, codes, ids.numel())


@NEEDS_COMPILER
def test_a_model_compiled_by_inductor_gives_the_same_loss_and_gradients(compiled_step):
    bound = 6 * BFLOAT16_ROUNDING * (2 * 15) ** 0.5

    assert compiled_step.compiled.keys() == compiled_step.plain.keys()
    for name, wanted in compiled_step.plain.items():
        assert relative_error(compiled_step.compiled[name], wanted) <= bound, name


@NEEDS_COMPILER
def test_the_compiled_softmax_replaces_the_logits_without_a_copy(compiled_step):
    """Inductor's code allocates numbers for each row only: the gradient is written by the kernel that computes it."""
    (code,) = (code for code in compiled_step.codes if "logsumexp" in code)

    shapes = re.findall(r"= empty_strided\w*\(\(([\d, ]*)\)", code)
    allocated_numbers = [math.prod(int(size) for size in re.findall(r"\d+", shape)) for shape in shapes]

    assert max(allocated_numbers) == compiled_step.num_rows


@NEEDS_COMPILER
def test_a_compiled_block_has_one_kernel_between_two_products(compiled_step):
    """Norms, rotations, the gate and sums in bfloat16: 6 kernels forward, beside a copy of some weights to bfloat16."""
    forward_code = compiled_step.codes[0]

    fused_kernels = re.findall(r"^ +cpp_fused_+(\w+)\(", forward_code, re.MULTILINE)
    products = re.findall(r"^ +extern_kernels\.mm\(", forward_code, re.MULTILINE)
    not_of_weights = [name for name in fused_kernels if not re.fullmatch(r"to_copy_t_\d+", name)]

    assert len(products) == 7
    assert len(not_of_weights) <= 6


# Refusals.


def test_text_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match=r"129 tokens; there must be at most max_seq_len \(128\)"):
        Gemma3Model(TINY)(draw_ids(TINY, 1, 129))


@pytest.mark.parametrize(("field", "value"), [("n_head", 5), ("d_model", 50), ("head_dim", 15), ("sliding_window", 0)])
def test_invalid_shapes_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        dataclasses.replace(TINY, **{field: value})

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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lm.core.params import read_yaml
from lm.model import gemma3, kernels
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token, rotary_table, rotate
from lm.model.kernels import attend, cross_entropy, visible
from support import ROOT
from support.model_cases import assert_close
from support.model_cases import random_model as build
from tools.common.hugging_face import from_hugging_face, hugging_face_config, to_hugging_face

TINY = ModelConfig(
    n_layer=4, n_head=4, n_kv_head=2, head_dim=16, d_model=48, d_ff=96, sliding_window=8, full_attention_every=4,
    rope_base_local=10_000.0, rope_base_global=1_000_000.0, query_pre_attn_scalar=16, norm_eps=1e-6, max_seq_len=128,
    vocab_size=61,
)  # fmt: skip
GEMMA3_270M = ModelParams(**read_yaml(ROOT / "presets.yaml")["models"]["gemma3_270m"])
SMALLER = {"n_layer": 7, "head_dim": 32, "d_model": 80, "d_ff": 256, "sliding_window": 11, "query_pre_attn_scalar": 24}
SMALL_270M = dataclasses.replace(GEMMA3_270M, **SMALLER, norm_eps=1e-3, max_seq_len=128).config(vocab_size=301)
CONFIGS = pytest.mark.parametrize("config", [TINY, SMALL_270M], ids=["tiny", "small_270m"])
BFLOAT16_ROUNDING = 2.0**-9  # largest relative error of rounding to bfloat16, which has 8 bits
AUTOCAST = pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])


def draw_ids(config: ModelConfig, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def gradients(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def published(config: ModelConfig, model: Gemma3Model):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(config), attn_implementation="eager"))
    missing, unexpected = theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    theirs.tie_weights()
    return theirs


@CONFIGS
def test_logits_and_gradients_are_those_of_transformers(config):
    model = build(config)
    ids = draw_ids(config, 2, 40)
    targets = draw_ids(config, 2, 40, seed=1)
    theirs = published(config, model)
    logits = theirs(ids).logits
    assert_close(model(ids), logits)
    wanted = gradients(theirs, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    found = to_hugging_face(gradients(model, model.loss(ids, targets)))
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_close(found[name], wanted[name])
        assert wanted[name].abs().max() > 1e-4, name


def test_embedding_scale_is_rounded_as_published():
    model = build(SMALL_270M).bfloat16()
    ids = draw_ids(SMALL_270M, 1, 30)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    model.hidden(ids)
    assert torch.equal(seen[0], published(SMALL_270M, model).bfloat16().model.embed_tokens(ids))


def test_a_pair_is_rotated_by_its_position_times_its_frequency():
    """The pair i of D / 2 turns by position · base^(-2i/D), counted from 0: RoPE's definition as complex numbers."""
    start = 3
    end = 9
    head_dim = 6
    base = 100.0
    x = torch.randn(2, end - start, 4, head_dim, generator=torch.Generator().manual_seed(0))
    found = rotate(x, [part[start:] for part in rotary_table(end, head_dim, base, "cpu")])
    angle = torch.arange(start, end)[:, None, None] * base ** (-torch.arange(0, head_dim, 2) / head_dim).double()
    turned = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    assert_close(found, torch.cat([turned.real, turned.imag], -1), 1e-6)


def test_weights_convert_both_ways():
    wanted = build(TINY).state_dict()
    for theirs in (to_hugging_face(wanted), published(TINY, build(TINY)).state_dict()):
        found = from_hugging_face(theirs)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert list(from_hugging_face(to_hugging_face(wanted))) == list(wanted), "in the order of the model"
    state = to_hugging_face(build(TINY).bfloat16().state_dict())
    head = state["model.embed_tokens.weight"]
    converted = from_hugging_face({**state, "lm_head.weight": head})
    assert {weight.dtype for weight in converted.values()} == {torch.float32} and len(converted) == len(state)
    with pytest.raises(ValueError, match="tied"):
        from_hugging_face({**state, "lm_head.weight": head + 1})


@AUTOCAST
@pytest.mark.parametrize(("every", "reach"), [(3, 2 * (8 - 1)), (2, 40)], ids=["sliding", "with_full"])
def test_causality_and_reach_by_gradient(every, reach, autocast):
    """Each position depends on itself and exactly `reach` positions before it."""
    config = dataclasses.replace(TINY, n_layer=2, full_attention_every=every)
    model = build(config)
    ids = torch.arange(40)[None]  # each position has its own embedding
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.hidden(ids).float()
    for t in (0, 7, 8, 14, 15, 39):
        (grad,) = torch.autograd.grad(hidden[0, t].sum(), model.embed_tokens.weight, retain_graph=True)
        depends = grad.to_dense()[:40].abs().amax(1) > 0
        position = torch.arange(40)
        assert torch.equal(depends, (position <= t) & (position >= t - reach))


@AUTOCAST
@pytest.mark.parametrize("window", [5, 20, 64])
def test_attention_is_its_definition(window, autocast):
    """Compare values and gradients to softmax(scale q k^T + mask) v in float64, with four query heads per key head."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if autocast else torch.float32
    q, k, v, grad = (torch.randn(2, h, 24, 16, generator=generator).to(dtype) for h in (4, 1, 1, 4))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    attend(*inputs, 0.3, window).backward(grad)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    scores = (0.3 * exact[0] @ exact[1].mT).masked_fill(~visible(24, 24, window, "cpu"), -math.inf)
    y = scores.softmax(-1) @ exact[2]
    y.backward(grad.double())
    # Scores, weights and their gradients are rounded one after the other; a sum of 24 terms adds their errors.
    rounding = BFLOAT16_ROUNDING if autocast else 2.0**-24
    pairs = [(attend(*inputs, 0.3, window), y)]
    pairs += [(found.grad, wanted.grad) for found, wanted in zip(inputs, exact, strict=True)]
    for found, wanted in pairs:
        assert (found - wanted).abs().max() <= 10 * rounding * wanted.abs().max()


@CONFIGS
def test_parameters_are_counted(config):
    assert count_parameters(GEMMA3_270M.config(vocab_size=262_144))["total"] == 268_098_176, "as published"
    counts = count_parameters(config)
    found = dict.fromkeys(("embedding", "attention", "mlp", "norms"), 0)
    for name, weight in Gemma3Model(config).named_parameters():
        if "norm" in name:
            part = "norms"
        elif "mlp" in name:
            part = "mlp"
        elif "attn" in name:
            part = "attention"
        else:
            part = "embedding"
        found[part] += weight.numel()
    assert counts == found | {"total": sum(found.values())}


@CONFIGS
def test_flops_are_those_of_the_matrix_products(config):
    model = build(config)
    seq_len = 30
    with FlopCounterMode(display=False) as counter:
        model.loss(draw_ids(config, 2, seq_len), draw_ids(config, 2, seq_len)).backward()
    flops = flops_per_token(config, seq_len)
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert flops["attention"] + flops["mlp"] + flops["head"] == counted / (2 * seq_len)
    seen = sum(
        min(t, seq_len if config.is_full(layer) else config.sliding_window)
        for layer in range(config.n_layer)
        for t in range(1, seq_len + 1)
    )
    assert flops["scores"] == pytest.approx(3 * 2 * 2 * config.n_head * config.head_dim * seen / seq_len)
    assert flops["total"] == pytest.approx(sum(flops.values()) / 2)


@pytest.mark.parametrize("d_model", [48, 640])
def test_first_loss_is_about_ln_of_the_vocabulary(d_model):
    config = dataclasses.replace(TINY, d_model=d_model, vocab_size=1000)
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(0))
    loss = model.loss(draw_ids(config, 4, 64), draw_ids(config, 4, 64, seed=1))
    assert abs(loss.item() - math.log(1000)) < 0.1


def test_initial_weights_depend_only_on_the_generator():
    state = torch.get_rng_state()
    models = [Gemma3Model(TINY) for _ in range(3)]
    assert all(weight.count_nonzero() == 0 for weight in models[0].parameters())
    for model, seed in zip(models, (1, 1, 2), strict=True):
        model.init_weights(torch.Generator().manual_seed(seed))
    first, same, other = (model.layers[0].mlp.gate_proj.weight for model in models)
    assert torch.equal(first, same) and not torch.equal(first, other)
    for norm in (models[0].layers[2].post_attention_layernorm, models[0].layers[2].post_feedforward_layernorm):
        assert torch.allclose(1 + norm.weight, torch.tensor(8**-0.5))
    assert models[0].norm.weight.count_nonzero() == 0
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("rows", [1, 7])
def test_chunked_loss_is_the_cross_entropy(rows):
    model = build(TINY)
    ids = draw_ids(TINY, 3, 20)
    targets = draw_ids(TINY, 3, 20, seed=1)
    model.max_logits = rows * TINY.vocab_size
    loss = model.loss(ids, targets)
    wanted = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    each = model.token_losses(ids, targets, rows=rows)
    assert each.shape == (3, 20)
    assert_close(loss, wanted, 1e-6)
    assert_close(each.mean(), wanted, 1e-6)
    found = gradients(model, loss / 3)
    grads = gradients(model, wanted / 3)
    for name in grads:
        largest = grads[name].abs().max()
        assert (found[name] - grads[name]).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize(("vocab_size", "seq_len"), [(2**17, 9), (2**19 + 1, 2)])
def test_the_loss_of_a_large_vocabulary_is_the_cross_entropy(vocab_size, seq_len):
    """The softmax takes few rows at a time there: four, and the last time two, or one."""
    small = {"n_layer": 1, "full_attention_every": 1, "d_model": 16, "n_head": 1, "n_kv_head": 1}
    config = dataclasses.replace(TINY, **small, vocab_size=vocab_size)
    model = build(config)
    ids = draw_ids(config, 2, seq_len)
    targets = draw_ids(config, 2, seq_len, seed=1)

    loss = model.loss(ids, targets)
    each = model.token_losses(ids, targets)

    wanted = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="none")
    assert_close(each.flatten(), wanted, 1e-6)
    assert_close(loss, wanted.mean(), 1e-6)
    found = gradients(model, loss)
    grads = gradients(model, wanted.mean())
    for name in grads:
        assert (found[name] - grads[name]).abs().max() <= 1e-5 * grads[name].abs().max(), name


@pytest.mark.parametrize("sampled", [False, True])
def test_a_padded_head_gives_the_same_loss_and_gradients(monkeypatch, sampled):
    """As on a GPU: zeros below the head, whose logits are -inf."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(30, 16, generator=generator)
    head = torch.randn(61, 16, generator=generator)
    targets = torch.randint(40, (30,), generator=generator)
    log_factors = torch.randn(20, generator=generator) if sampled else None
    found = []
    for padding in (0, 3):
        monkeypatch.setattr(kernels, "padded_head", lambda head, dtype, n=padding: F.pad(head.to(dtype), (0, 0, 0, n)))
        operands = h.clone().requires_grad_(), head.clone().requires_grad_()
        loss = cross_entropy(*operands, targets, 7, log_factors)
        loss.backward()
        found.append([loss, *(x.grad for x in operands), kernels.token_nats(h, head, targets, 7)])
    for plain, padded in zip(*found, strict=True):
        assert_close(padded, plain, 1e-6)


def test_the_head_is_padded_on_a_gpu_only():
    assert kernels.padded_head(torch.ones(61, 4), torch.float32).shape == (61, 4)
    for num_entries, padded in ((61, 64), (64, 64), (50_257, 50_304)):
        head = torch.empty(num_entries, 4, device="meta")
        assert kernels.padded_head(head, torch.bfloat16).shape == (padded, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sees_all", [True, False])
def test_on_a_gpu_float32_and_masks_get_a_key_for_each_query_head(monkeypatch, dtype, sees_all):
    """Fused kernels exist there with fewer key heads for bfloat16 without a mask only."""
    calls = []
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, *mask, **options: calls.append((k.shape[1], options)) or q
    )
    q = torch.empty(1, 4, 8, 16, dtype=dtype, device="meta")
    k = torch.empty(1, 2, 8, 16, dtype=dtype, device="meta")
    kernels.attend(q, k, k, 1.0, 8 if sees_all else 4)
    ((num_key_heads, options),) = calls
    is_grouped = sees_all and dtype == torch.bfloat16
    assert (num_key_heads, options["enable_gqa"]) == ((2, True) if is_grouped else (4, False))


@pytest.mark.parametrize("rows", [1, 7, 60])
def test_cross_entropy_in_bfloat16_is_within_its_rounding(rows):
    """Compare to float64; each bound is the rounding of logits, of their gradient and of the result."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(60, 48, generator=generator, requires_grad=True)
    head = (0.3 * torch.randn(61, 48, generator=generator)).requires_grad_()
    targets = torch.randint(61, (60,), generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(h, head, targets, rows)
    loss.backward()
    assert loss.dtype == h.grad.dtype == head.grad.dtype == torch.float32

    # The same in float64, of the operands in bfloat16.
    wide_h, wide_head = (x.detach().bfloat16().double().requires_grad_() for x in (h, head))
    logits = wide_h @ wide_head.T
    logits.retain_grad()
    wanted = F.cross_entropy(logits, targets)
    wanted.backward()

    # A rounded logit is off by half a unit of its last place, and so is the logarithm of a probability, twice.
    log_error = 2 * BFLOAT16_ROUNDING * logits.detach().abs().max()
    assert abs(loss - wanted) <= log_error

    # A gradient of a logit is p / N, less 1 / N at the target: p is off by the factor exp(log_error), and both are
    # rounded. The products with the other operand add these errors up. A sum is rounded once, for the head one of each
    # chunk, and float32 adds those.
    p = logits.detach().softmax(-1) / len(logits)
    errors = p * log_error.expm1() + 2 * BFLOAT16_ROUNDING * logits.grad.abs()
    assert ((h.grad - wide_h.grad).abs() <= errors @ wide_head.detach().abs()).all()
    assert ((head.grad - wide_head.grad).abs() <= errors.T @ wide_h.detach().abs()).all()


class Rows:
    """Stands for the input (N, C) of the head on a GPU."""

    device = torch.device("cuda")
    dtype = torch.bfloat16

    def __len__(self):
        return 16_384


def test_the_loss_takes_chunks_as_large_as_a_gpu_has_room_for(monkeypatch):
    """Asked once, and never smaller than on a CPU; the chunks are equal."""
    free = [(60 * 2**30, 80 * 2**30)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: free.pop())
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 * 2**30)
    config = dataclasses.replace(TINY, vocab_size=2**18)
    with FakeTensorMode():
        model = Gemma3Model(config)

    rows = [model.loss_rows(Rows()), model.loss_rows(Rows())]

    assert pytest.approx(5461, abs=1) == kernels.LOGITS_FRACTION * 64 * 2**30 / (2 + 4) / 2**18
    assert rows == [4096, 4096], "three chunks would need 5,462 rows"

    for unallocated, wanted in ((0, 512), (900 * 2**30, 5462)):
        free.append((unallocated, 80 * 2**30))
        model.max_logits = None
        assert model.loss_rows(Rows()) == wanted, "512 rows at least; fewer than 2**31 logits"


@pytest.fixture
def gpu_products():
    """Compute products of bfloat16 with a float32 result on the CPU, as torch does on a GPU alone."""
    calls = []

    def mm(a, b, out_dtype):
        calls.append("mm")
        return (a.double() @ b.double()).to(out_dtype)

    def addmm(total, a, b, out_dtype, *, beta=1, alpha=1, out):
        calls.append("addmm")
        assert out is total and total.dtype == out_dtype == torch.float32
        return out.copy_(total.double() + a.double() @ b.double())

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", mm, "CPU")
    library.impl("addmm.dtype_out", addmm, "CPU")
    yield calls
    library._destroy()


class OnGPU(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    device = torch.device("cuda")
    __torch_function__ = torch._C._disabled_torch_function_impl


def test_on_a_gpu_a_product_is_added_without_being_rounded(gpu_products):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((30, 12), (12, 16)))
    total = None
    for chunk in (slice(0, 5), slice(5, 12)):
        total = kernels.add_product(total, a[:, chunk].as_subclass(OnGPU), b[chunk])
    assert gpu_products == ["mm", "addmm"]
    assert total.dtype == torch.float32
    assert_close(total, a.double() @ b.double(), 1e-6)


def test_gradients_under_autocast_are_float32():
    model = build(SMALL_270M)
    ids = draw_ids(SMALL_270M, 4, 40)
    targets = draw_ids(SMALL_270M, 4, 40, seed=1)
    wanted = gradients(model, model.loss(ids, targets))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(ids, targets)
        assert model.hidden(ids).dtype == torch.bfloat16
    found = gradients(model, loss)
    assert {grad.dtype for grad in found.values()} == {torch.float32}
    # About 15 roundings in each of 7 blocks, forward and backward, add up like a random walk. The gradients of the
    # norms of queries and keys are differences of larger numbers.
    bound = 6 * BFLOAT16_ROUNDING * (2 * 7 * 15) ** 0.5
    for name in wanted:
        error = (found[name] - wanted[name]).norm() / wanted[name].norm()
        assert error <= bound, name


def test_compiled_blocks_give_the_same_loss_and_gradients():
    config = dataclasses.replace(TINY, n_layer=2, full_attention_every=2)
    model = build(config)
    ids = draw_ids(config, 2, 20)
    targets = draw_ids(config, 2, 20, seed=1)
    wanted_loss = model.loss(ids, targets)
    wanted = gradients(model, wanted_loss)
    names = list(model.state_dict())
    graphs = []

    def recording_backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model.compile(backend=recording_backend, fullgraph=True)
    loss = model.loss(ids, targets)
    assert_close(loss, wanted_loss)
    assert list(model.state_dict()) == names
    assert len(graphs) == 4, "two kinds of blocks, the last norm, and the softmax of the loss"
    for name, grad in gradients(model, loss).items():
        assert_close(grad, wanted[name])


def test_a_validation_before_training_leaves_its_graphs_to_fixed_shapes():
    """The last batch of a validation is smaller; graphs for any size of a batch would be slower."""
    torch._dynamo.reset()
    model = build(dataclasses.replace(TINY, n_layer=2, full_attention_every=2))
    ids = draw_ids(TINY, 4, 20)
    has_symbols = []

    def recording_backend(graph, inputs):
        shapes = [each.shape for each in inputs if isinstance(each, torch.Tensor)]
        has_symbols.append(any(isinstance(size, torch.SymInt) for shape in shapes for size in shape))
        return graph.forward

    model.compile(backend=recording_backend)
    with torch.no_grad():
        for num_rows in (4, 1):
            model.token_losses(ids[:num_rows], ids[:num_rows])
    model.loss(ids, ids).backward()

    assert has_symbols == [False] * (3 + 3 + 4), "blocks of two kinds and the last norm, each time; the softmax"


@pytest.fixture
def inductor_cache(monkeypatch):
    """Keep compiled kernels in a folder for each set of instructions: those for others crash (`make test-numerics`)."""
    cache = Path(tempfile.gettempdir()) / f"torchinductor-{torch.backends.cpu.get_cpu_capability()}"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))


NEEDS_COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_softmax_is_the_plain_one(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(20, 61, generator=generator)).to(dtype)
    logits[:, 58:] = -math.inf  # padding
    targets = torch.randint(58, (20,), generator=generator)
    fused = logits.clone()

    nats = kernels.fused_nats_and_gradient_(fused, targets)

    wanted = kernels.nats_and_gradient_(logits, targets)
    assert_close(nats, wanted, 1e-6)
    assert (fused - logits).abs().max() <= (BFLOAT16_ROUNDING if dtype == torch.bfloat16 else 1e-6)
    assert (fused[:, 58:] == 0).all()


@NEEDS_COMPILER
def test_the_compiled_softmax_replaces_the_logits_without_a_copy(inductor_cache):
    """Inductor's code allocates numbers for each row only: the gradient is written by the kernel that computes it."""
    from torch._inductor.utils import run_and_get_code

    num_rows = 24
    num_entries = 2000
    logits = torch.randn(num_rows, num_entries).bfloat16()
    targets = torch.randint(num_entries, (num_rows,))
    torch._dynamo.reset()

    _, codes = run_and_get_code(torch.compile(kernels.fused_nats_and_gradient_, fullgraph=True), logits, targets)

    allocated = re.findall(r"= empty_strided\w*\(\(([\d, ]*)\)", "".join(codes))
    assert allocated
    assert max(math.prod(int(n) for n in re.findall(r"\d+", shape)) for shape in allocated) == num_rows


@NEEDS_COMPILER
def test_a_compiled_block_has_one_kernel_between_two_products(inductor_cache, monkeypatch):
    """Norms, rotations, the gate and sums in bfloat16: 6 kernels forward, beside a copy of some weights to bfloat16."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(kernels, "takes_products", lambda q, S: False)  # attends as on a GPU, by one kernel of torch's
    config = dataclasses.replace(TINY, n_layer=1, full_attention_every=1)
    block = build(config).layers[0]
    table = rotary_table(20, config.head_dim, 1e4, "cpu")
    x = torch.randn(2, 20, config.d_model).bfloat16().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x, table, None, None)

    _, (code,) = run_and_get_code(forward)
    calls = re.findall(r"^ +(?:cpp_fused_+(\w+)\(|extern_kernels\.(mm)\()", code, re.MULTILINE)
    names = [kernel or product for kernel, product in calls]
    assert names.count("mm") == 7
    rounds_a_weight = [bool(re.fullmatch(r"to_copy_t_\d+", name)) for name in names]
    assert len(names) - names.count("mm") - sum(rounds_a_weight) <= 6


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_model_compiled_by_inductor_gives_the_same_loss_and_gradients(dtype, inductor_cache):
    config = dataclasses.replace(TINY, n_layer=1, full_attention_every=1)
    ids = draw_ids(config, 2, 20)
    targets = draw_ids(config, 2, 20, seed=1)
    found = []
    for is_compiled in (False, True):
        model = build(config)
        if is_compiled:
            model.compile()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model.loss(ids, targets)
        found.append({"loss": loss, **gradients(model, loss)})
    bound = 1e-5 if dtype == torch.float32 else 6 * BFLOAT16_ROUNDING * (2 * 15) ** 0.5
    for name, wanted in found[0].items():
        difference = (found[1][name] - wanted).norm() / wanted.norm()
        assert difference <= bound, name


def test_rotary_tables_are_made_once_for_the_longest_text(monkeypatch):
    lengths = []
    made = gemma3.rotary_table
    monkeypatch.setattr(gemma3, "rotary_table", lambda length, *rest: lengths.append(length) or made(length, *rest))
    model = build(TINY)
    for length in (20, 12, 32, 33, TINY.max_seq_len, 5):
        model.hidden(draw_ids(TINY, 1, length))
    num_bases = len({TINY.rope_base_local, TINY.rope_base_global})
    assert lengths == [length for length in (32, 64, TINY.max_seq_len) for _ in range(num_bases)]
    # A model that moves to another device gets them there.
    model.to("meta")
    assert model.rotary_tables(0, 5, model.device)[TINY.rope_base_local][0].device == model.device


def test_text_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match=r"129 tokens; there must be at most max_seq_len \(128\)"):
        Gemma3Model(TINY)(draw_ids(TINY, 1, 129))


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("n_head", 5, r"n_head is 5; it must be a multiple of n_kv_head \(2\)"),
        ("d_model", 50, r"d_model is 50; it must be a multiple of n_head \(4\)"),
        ("head_dim", 15, "head_dim is 15; it must be an even number"),
        ("sliding_window", 0, "sliding_window is 0; it must be above 0"),
    ],
)
def test_invalid_shapes_are_refused(field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(TINY, **{field: value})

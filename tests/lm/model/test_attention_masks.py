"""Attention that keeps to a document equals that of each document alone, forward and backward."""

import dataclasses
import itertools
import math
import types

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model import kernels
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.kernels import block_mask, dense_mask, document_numbers
from lm.model.score import positions_in_window, score_tokens, token_losses
from support.model_cases import random_model

EOT = 0
WINDOW = 8
CONFIG = ModelConfig(
    n_layer=3,
    n_head=4,
    n_kv_head=2,
    head_dim=16,
    d_model=48,
    d_ff=96,
    sliding_window=WINDOW,
    full_attention_every=2,
    rope_base_local=10_000.0,
    rope_base_global=1_000_000.0,
    query_pre_attn_scalar=16,
    norm_eps=1e-6,
    max_seq_len=640,
    vocab_size=640,
)
# Where documents begin in two windows of 60 tokens, both of which begin inside a document: some are shorter than the
# sliding window, some longer, one is empty.
BEGINS = [[3, 9, 33, 34], [20, 27, 59]]
NO_BEGINS = [[], []]
BFLOAT16_ROUNDING = 2.0**-9
FLOAT32_ROUNDING = 2.0**-24


def build(within: bool = True, **changes) -> Gemma3Model:
    """Return a model with random norms that keeps to its document or does not."""
    model = random_model(dataclasses.replace(CONFIG, **changes), seed=1)
    model.document_start_id = EOT if within else None
    return model


def draw_windows(length: int = 60, begins=BEGINS) -> Tensor:
    ids = torch.randint(1, CONFIG.vocab_size, (len(begins), length), generator=torch.Generator().manual_seed(0))
    for row, starts in zip(ids, begins, strict=True):
        row[starts] = EOT
    return ids


def split_into_documents(row: Tensor) -> list[Tensor]:
    """Cut a row (T,) before each EOT, into the rows (1, n) of its documents."""
    begins = [i for i in range(1, len(row)) if row[i] == EOT]
    cuts = [0, *begins, len(row)]
    return [row[None, first:last] for first, last in itertools.pairwise(cuts)]


def all_gradients(model: Gemma3Model) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def assert_within(bound: float, found: Tensor, wanted: Tensor) -> None:
    """Raise AssertionError unless the norm of the difference is at most this fraction of that of `wanted`."""
    assert (found - wanted).norm() <= bound * wanted.norm()


@pytest.mark.parametrize(
    ("full_attention_every", "autocast", "length"),
    [
        # Beyond 512 tokens the fused kernel attends.
        pytest.param(1, False, 600, id="full layers"),
        pytest.param(9, False, 600, id="sliding layers"),
        pytest.param(2, False, 60, id="both"),
        pytest.param(2, True, 60, id="both in bfloat16"),
    ],
)
def test_a_document_is_computed_as_if_it_were_alone(full_attention_every, autocast, length):
    ids = draw_windows(length)
    targets = ids.roll(-1, 1)
    # Each document in a row of its own, in float32.
    alone = build(within=False, full_attention_every=full_attention_every)
    wanted_hidden = []
    wanted_loss = torch.zeros(())
    for row, row_targets in zip(ids, targets, strict=True):
        documents = split_into_documents(row)
        lengths = [document.shape[1] for document in documents]
        for document, document_targets in zip(documents, row_targets.split(lengths), strict=True):
            fraction = document.numel() / ids.numel()
            wanted_hidden.append(alone.hidden(document)[0])
            wanted_loss = wanted_loss + fraction * alone.loss(document, document_targets[None])
    wanted_loss.backward()

    packed = build(full_attention_every=full_attention_every)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = packed.hidden(ids).float()
        loss = packed.loss(ids, targets)
    loss.backward()

    # About 15 roundings in each of 3 blocks, forward and backward, add up like a random walk. Float32 rounds the angle
    # of each position, which a document alone counts from 0.
    rounding = BFLOAT16_ROUNDING if autocast else FLOAT32_ROUNDING
    bound = 6 * rounding * (2 * 3 * 15) ** 0.5 + FLOAT32_ROUNDING * length
    assert_within(bound, hidden.flatten(0, 1), torch.cat(wanted_hidden))
    assert_within(bound, loss, wanted_loss)
    assert_within(bound, all_gradients(packed), all_gradients(alone))


@pytest.mark.parametrize(("autocast", "length"), [(False, 600), (True, 60)], ids=["float32", "bfloat16"])
def test_no_gradient_flows_from_one_document_to_another(autocast, length):
    """Each position has an embedding of its own; those of other documents get a gradient of exactly zero."""
    model = build(full_attention_every=1)
    ids = torch.arange(1, length + 1)[None]
    ids[0, [13, 40]] = EOT

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.hidden(ids).float()

    for t, seen in [
        (12, range(13)),
        (13, []),
        (39, range(14, 40)),
        (length - 1, range(41, length)),
    ]:
        (grad,) = torch.autograd.grad(hidden[0, t].sum(), model.embed_tokens.weight, retain_graph=True)
        has_gradient = grad.to_dense().abs().amax(1) > 0
        reached = has_gradient[1 : length + 1].nonzero().flatten().tolist()
        assert reached == list(seen), t
        begins_with_eot = t > 12
        assert has_gradient[EOT] == begins_with_eot, t


def test_windows_of_one_document_need_no_mask():
    """The second window begins with a document."""
    ids = draw_windows(begins=[[], [0]])
    within = build()
    across = build(within=False)

    assert within.attention_masks(ids) == {}
    assert torch.equal(within.hidden(ids), across.hidden(ids))


def test_windows_of_several_documents_need_a_mask_only_if_attention_keeps_to_them():
    ids = draw_windows()
    within = build()
    across = build(within=False)

    assert across.attention_masks(ids) == {}
    assert within.attention_masks(ids).keys() == {WINDOW, CONFIG.max_seq_len}
    assert not torch.allclose(within.hidden(ids), across.hidden(ids))


def test_document_numbers_count_the_beginnings():
    ids = torch.tensor(
        [
            [5, EOT, 6, 7, EOT, EOT, 8],
            [EOT, 1, 2, 3, 4, 5, EOT],
        ]
    )

    assert document_numbers(ids, EOT).tolist() == [
        [0, 1, 1, 1, 2, 3, 3],
        [1, 1, 1, 1, 1, 1, 2],
    ]


@pytest.mark.parametrize("window", [8, 300])
def test_a_dense_mask_is_its_definition(window):
    documents = document_numbers(draw_windows(), EOT)

    found = dense_mask(documents, window, torch.bfloat16, num_heads=3)

    assert found.shape == (2, 3, 60, 60)
    assert found.dtype == torch.bfloat16
    for row, query, key in itertools.product(range(2), range(60), range(60)):
        is_same_document = documents[row, query] == documents[row, key]
        is_in_window = 0 <= query - key < window
        wanted = 0 if is_same_document and is_in_window else -math.inf
        assert (found[row, :, query, key] == wanted).all()


# FlexAttention, which attends in compiled blocks on a GPU. torch has no gradients of it for CPUs.


def computed_blocks(mask) -> Tensor:
    """Return which scores (B, T, T) are in a block that is computed."""
    size = mask.BLOCK_SIZE[0]
    blocks = mask.to_dense()[:, 0].bool()
    num_queries, num_keys = mask.shape[-2:]
    return blocks.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :num_queries, :num_keys]


@pytest.mark.parametrize("begins", [BEGINS, NO_BEGINS], ids=["documents", "one"])
@pytest.mark.parametrize(
    ("length", "window"),
    [
        pytest.param(60, 8, id="less than a block"),
        pytest.param(333, 200, id="a part of a block, and a window of several"),
        pytest.param(512, 8, id="whole blocks"),
        pytest.param(512, 640, id="all"),
    ],
)
def test_a_block_mask_lets_the_same_scores_through_as_a_dense_mask(length, window, begins):
    documents = document_numbers(draw_windows(length, begins), EOT)
    wanted = dense_mask(documents, window, torch.float32)[:, 0] == 0

    mask = block_mask(documents, window)

    row, query, key = torch.meshgrid(torch.arange(2), torch.arange(length), torch.arange(length), indexing="ij")
    is_seen_in_its_block = mask.mask_mod(row, torch.tensor(0), query, key)
    assert torch.equal(computed_blocks(mask) & is_seen_in_its_block, wanted)


def test_a_block_mask_skips_what_the_window_hides():
    documents = torch.zeros(2, 512, dtype=torch.int64)

    mask = block_mask(documents, window=8)

    num_blocks = computed_blocks(mask).sum() / mask.BLOCK_SIZE[0] ** 2
    assert num_blocks == 2 * 7, "four blocks on the diagonal, three next to them"


@pytest.fixture
def takes_flex_attention(monkeypatch):
    """Let a compiled model on a CPU attend by FlexAttention, as on a GPU."""
    monkeypatch.setattr(kernels, "takes_flex_attention", lambda weight, head_dim, T: True)


@pytest.mark.parametrize("within", [False, True], ids=["windows", "documents"])
@pytest.mark.parametrize("num_key_heads", [2, 4], ids=["grouped heads", "a key for each head"])
def test_compiled_blocks_attend_by_block_masks_as_by_dense_ones(takes_flex_attention, within, num_key_heads):
    """Full and sliding layers, a length that is no multiple of a block, and batches with other documents."""
    batches = [draw_windows(150, begins) for begins in (BEGINS, [[120], [7, 100, 149]])]
    model = build(within, n_kv_head=num_key_heads)
    wanted = [model.hidden(ids).detach() for ids in batches]
    graphs = []

    def recording_backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model.compile(backend=recording_backend, fullgraph=True)
    with torch.no_grad():
        found = [model.hidden(ids) for ids in batches]

    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    # One graph serves all batches; layers that see all without a mask have another. The last norm has its own.
    graphs_with_flex = [graph for graph in graphs if "flex_attention" in graph.code]
    assert len(graphs_with_flex) == 1
    assert len(graphs) == (2 if within else 3)


def test_block_masks_are_made_once_where_documents_do_not_matter(takes_flex_attention):
    ids = draw_windows(150)
    model = build(within=False)
    model.compile(backend="eager")

    first = model.attention_masks(ids)
    second = model.attention_masks(ids)
    shorter = model.attention_masks(ids[:, :130])

    assert first.keys() == {WINDOW}
    assert second[WINDOW] is first[WINDOW]
    assert shorter[WINDOW].shape[-2:] == (130, 130)


def test_no_block_mask_is_made_where_each_token_sees_all_before_it(takes_flex_attention):
    model = build(within=False)
    model.compile(backend="eager")

    assert model.attention_masks(draw_windows(WINDOW, NO_BEGINS)) == {}


def test_a_model_that_is_not_compiled_makes_no_block_mask(takes_flex_attention):
    assert build(within=False).attention_masks(draw_windows(150)) == {}


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "length", "shared_kib", "taken"),
    [
        pytest.param("cuda", torch.bfloat16, 64, 1024, 99, True, id="usual heads"),
        pytest.param("cuda", torch.bfloat16, 16, 128, 99, True, id="the smallest heads, and a block of tokens"),
        pytest.param("cuda", torch.bfloat16, 256, 1024, 227, True, id="wide heads, and the memory of an H100"),
        pytest.param("cuda", torch.bfloat16, 256, 1024, 99, False, id="wide heads, and little memory"),
        pytest.param("cuda", torch.bfloat16, 192, 1024, 227, False, id="wide heads, no power of 2"),
        pytest.param("cuda", torch.bfloat16, 96, 1024, 99, False, id="heads of no power of 2"),
        pytest.param("cuda", torch.bfloat16, 8, 1024, 99, False, id="heads too small"),
        pytest.param("cuda", torch.bfloat16, 64, 127, 99, False, id="fewer tokens than a block"),
        pytest.param("cuda", torch.float32, 64, 1024, 99, False, id="float32"),
        pytest.param("cpu", torch.bfloat16, 64, 1024, 99, False, id="a CPU"),
    ],
)
def test_flex_attention_is_taken_where_its_kernels_accept_the_heads(
    monkeypatch, device, dtype, head_dim, length, shared_kib, taken
):
    gpu = types.SimpleNamespace(shared_memory_per_block_optin=shared_kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    weight = types.SimpleNamespace(device=torch.device(device), dtype=dtype)

    assert kernels.takes_flex_attention(weight, head_dim, length) == taken


# Scoring.


def stream() -> types.SimpleNamespace:
    """Return tokens of documents of 0 to 90 tokens, each with its EOT; the last one is cut."""
    rng = np.random.default_rng(0)
    documents = []
    for length in (5, 90, 0, 1, 7, 8, 9, 70, 3, 33):
        document = rng.integers(1, CONFIG.vocab_size, length)
        documents += [*document, EOT]
    return types.SimpleNamespace(ids=np.array(documents[:-1], np.uint16), eot_id=EOT)


@pytest.mark.parametrize("stride", [5, 32])
def test_a_token_is_scored_from_its_own_document(stride):
    """The context begins with the document, or with a window that leaves at least seq_len - stride tokens."""
    seq_len = 32
    tokens = stream()
    targets = torch.from_numpy(tokens.ids.astype(np.int64))
    inputs = torch.cat([torch.tensor([EOT]), targets[:-1]])  # what each token is predicted from
    alone = build(within=False)

    losses, positions = score_tokens(build(), tokens, seq_len, stride, 3, torch.float32)

    for t in range(0, len(targets), 3):
        position = positions[t]
        context = slice(t - position, t + 1)
        assert EOT not in inputs[context][1:]
        assert inputs[context][0] == EOT or position >= seq_len - stride
        wanted = token_losses(alone, inputs[None, context], targets[None, context])[0, -1]
        assert abs(losses[t] - wanted) < 1e-5 * max(1, wanted), t


def test_tokens_that_keep_to_their_document_are_scored_from_fewer():
    _, within = score_tokens(build(), stream(), 32, 5, 3, torch.float32)

    _, across = score_tokens(build(within=False), stream(), 32, 5, 3, torch.float32)

    assert (within <= across).all()
    assert (within < across).any()


def test_positions_begin_again_with_each_document():
    ids = np.array([7, EOT, EOT, 5, 6, EOT], np.uint16)

    assert positions_in_window(ids, EOT).tolist() == [0, 1, 0, 0, 1, 2]
    assert positions_in_window(ids[:1], EOT).tolist() == [0]
    assert positions_in_window(ids, None).tolist() == [0, 1, 2, 3, 4, 5]

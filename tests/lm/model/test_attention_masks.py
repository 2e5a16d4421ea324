"""Attention that keeps to a document equals that of each document alone, forward and backward."""

import dataclasses
import itertools
import math
import types

import numpy as np
import pytest
import torch

from lm.model import kernels
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.kernels import block_mask, dense_mask, document_numbers
from lm.model.score import positions_in_window, score_tokens
from support.model_cases import random_model

EOT = 0
WINDOW = 8
CONFIG = ModelConfig(
    n_layer=3, n_head=4, n_kv_head=2, head_dim=16, d_model=48, d_ff=96, sliding_window=WINDOW, full_attention_every=2,
    rope_base_local=10_000.0, rope_base_global=1_000_000.0, query_pre_attn_scalar=16, norm_eps=1e-6, max_seq_len=640,
    vocab_size=640,
)  # fmt: skip
# Where documents begin in two windows of 60 tokens, both of which begin inside a document: some are shorter than the
# sliding window, some longer, one is empty.
BEGINS = [[3, 9, 33, 34], [20, 27, 59]]


def build(within: bool = True, **changes) -> Gemma3Model:
    """Return a model with random norms that keeps to its document or does not."""
    model = random_model(dataclasses.replace(CONFIG, **changes), seed=1)
    model.document_start_id = EOT if within else None
    return model


def draw_windows(length: int = 60, begins=BEGINS) -> torch.Tensor:
    ids = torch.randint(1, CONFIG.vocab_size, (len(begins), length), generator=torch.Generator().manual_seed(0))
    for row, starts in zip(ids, begins, strict=True):
        row[starts] = EOT
    return ids


def pieces(ids: torch.Tensor) -> list[torch.Tensor]:
    """Cut a row (T,) before each EOT, into the rows (1, n) of its documents."""
    cuts = [0, *(i for i in range(1, len(ids)) if ids[i] == EOT), len(ids)]
    return [ids[None, first:last] for first, last in itertools.pairwise(cuts)]


def gradients(model: Gemma3Model) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


# Full layers only, both kinds, sliding ones only; beyond 512 tokens the fused kernel attends.
@pytest.mark.parametrize(
    ("every", "autocast", "length"), [(1, False, 600), (2, False, 60), (2, True, 60), (9, False, 600)]
)
def test_a_document_is_computed_as_if_it_were_alone(every, autocast, length):
    ids = draw_windows(length)
    targets = ids.roll(-1, 1)
    packed = build(full_attention_every=every)
    alone = build(within=False, full_attention_every=every)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = packed.loss(ids, targets)
        hidden = packed.hidden(ids).float()
    # Each document in a row of its own, in float32.
    alone_hidden = torch.stack([torch.cat([alone.hidden(p)[0] for p in pieces(row)]) for row in ids])
    alone_loss = torch.zeros(())
    for row, row_targets in zip(ids, targets, strict=True):
        documents = pieces(row)
        for document, target in zip(documents, row_targets.split([d.shape[1] for d in documents]), strict=True):
            alone_loss = alone_loss + alone.loss(document, target[None]) * document.numel() / ids.numel()
    loss.backward()
    alone_loss.backward()
    # About 15 roundings in each of 3 blocks, forward and backward, add up like a random walk. Float32 rounds the angle
    # of each position, which a document alone counts from 0.
    rounding = 2.0**-9 if autocast else 2.0**-24
    bound = 6 * rounding * (2 * 3 * 15) ** 0.5 + 2.0**-24 * length
    pairs = ((hidden, alone_hidden), (loss, alone_loss), (gradients(packed), gradients(alone)))
    for found, wanted in pairs:
        assert (found - wanted).norm() <= bound * wanted.norm()


@pytest.mark.parametrize(("autocast", "length"), [(False, 600), (True, 60)])
def test_no_gradient_flows_from_one_document_to_another(autocast, length):
    """Each position has an embedding of its own; those of other documents get a gradient of exactly zero."""
    model = build(full_attention_every=1)
    ids = torch.arange(1, length + 1)[None]
    begins = [13, 40]
    ids[0, begins] = EOT
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.hidden(ids).float()
    for t, seen in [(12, range(13)), (13, []), (39, range(14, 40)), (length - 1, range(41, length))]:
        (grad,) = torch.autograd.grad(hidden[0, t].sum(), model.embed_tokens.weight, retain_graph=True)
        grad = grad.to_dense()
        reached = grad[1 : length + 1].abs().amax(1).nonzero().flatten().tolist()
        assert reached == list(seen), t
        assert bool(grad[EOT].any()) == (t > 12)  # the one before the document is its first token


def test_windows_of_one_document_need_no_mask():
    across = build(within=False)
    within = build()
    inside = draw_windows(begins=[[], [0]])  # the second window begins with a document
    assert within.attention_masks(inside) == across.attention_masks(draw_windows()) == {}
    assert torch.equal(within.hidden(inside), across.hidden(inside))
    assert within.attention_masks(draw_windows()).keys() == {WINDOW, CONFIG.max_seq_len}
    assert not torch.allclose(within.hidden(draw_windows()), across.hidden(draw_windows()))


def test_document_numbers_count_the_beginnings():
    ids = torch.tensor([[5, EOT, 6, 7, EOT, EOT, 8], [EOT, 1, 2, 3, 4, 5, EOT]])
    assert document_numbers(ids, EOT).tolist() == [[0, 1, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1, 2]]


@pytest.mark.parametrize("window", [8, 300])
def test_a_dense_mask_is_its_definition(window):
    documents = document_numbers(draw_windows(), EOT)
    found = dense_mask(documents, window, torch.bfloat16, num_heads=3)
    assert found.shape == (2, 3, 60, 60) and found.dtype == torch.bfloat16
    for row, query, key in itertools.product(range(2), range(60), range(60)):
        is_seen = documents[row, query] == documents[row, key] and 0 <= query - key < window
        assert (found[row, :, query, key] == (0 if is_seen else -math.inf)).all()


# FlexAttention, which attends in compiled blocks on a GPU. torch has no gradients of it for CPUs.


@pytest.mark.parametrize("window", [8, 200, 640])
@pytest.mark.parametrize("length", [60, 333, 512])
@pytest.mark.parametrize("begins", [BEGINS, [[], []]], ids=["documents", "one"])
def test_a_block_mask_lets_the_same_scores_through_as_a_dense_mask(window, length, begins):
    documents = document_numbers(draw_windows(length, begins), EOT)
    mask = block_mask(documents, window)

    # The blocks that are computed, each whole or with the mask inside it.
    size = mask.BLOCK_SIZE[0]
    blocks = mask.to_dense()[:, 0].bool().repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :length, :length]
    row, query, key = torch.meshgrid(torch.arange(2), torch.arange(length), torch.arange(length), indexing="ij")
    found = blocks & mask.mask_mod(row, torch.tensor(0), query, key)

    wanted = dense_mask(documents, window, torch.float32)[:, 0] == 0
    assert torch.equal(found, wanted)
    if length == 512 and window == 8:
        assert blocks.sum() <= 7 * size**2 * len(documents), "four blocks on the diagonal, three next to them"


@pytest.mark.parametrize("within", [False, True], ids=["windows", "documents"])
@pytest.mark.parametrize("num_key_heads", [1, 2, 4])
def test_compiled_blocks_attend_by_block_masks_as_by_dense_ones(monkeypatch, within, num_key_heads):
    """Full and sliding layers, a length that is no multiple of a block, and batches with other documents."""
    torch._dynamo.reset()
    model = build(within, n_kv_head=num_key_heads)
    batches = [draw_windows(150, begins) for begins in (BEGINS, [[120], [7, 100, 149]])]
    wanted = [model.hidden(ids).detach() for ids in batches]
    graphs = []

    def recording_backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(kernels, "takes_flex_attention", lambda weight, head_dim, T: True)
    model.compile(backend=recording_backend, fullgraph=True)
    with torch.no_grad():
        found = [model.hidden(ids) for ids in batches]

    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    # One graph serves all batches; layers that see all without a mask have another. The last norm has its own.
    num_with_flex = sum("flex_attention" in graph.code for graph in graphs)
    assert (num_with_flex, len(graphs)) == (1, 2 if within else 3)


def test_block_masks_are_made_once_where_documents_do_not_matter(monkeypatch):
    monkeypatch.setattr(kernels, "takes_flex_attention", lambda weight, head_dim, T: True)
    model = build(within=False)
    assert model.attention_masks(draw_windows(150)) == {}, "not compiled"
    model.compile(backend="eager")
    first = model.attention_masks(draw_windows(150))
    assert first.keys() == {WINDOW}
    assert model.attention_masks(draw_windows(150))[WINDOW] is first[WINDOW]
    assert model.attention_masks(draw_windows(130))[WINDOW].shape[-2:] == (130, 130)
    assert model.attention_masks(draw_windows(WINDOW, [[], []])) == {}, "each token sees all before it"


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "length", "shared_kib", "taken"),
    [
        ("cuda", torch.bfloat16, 64, 1024, 99, True),
        ("cuda", torch.bfloat16, 16, 128, 99, True),
        ("cuda", torch.bfloat16, 256, 1024, 227, True),
        ("cuda", torch.bfloat16, 256, 1024, 99, False),
        ("cuda", torch.bfloat16, 192, 1024, 227, False),
        ("cuda", torch.bfloat16, 8, 1024, 99, False),
        ("cuda", torch.bfloat16, 96, 1024, 99, False),
        ("cuda", torch.bfloat16, 64, 127, 99, False),
        ("cuda", torch.float32, 64, 1024, 99, False),
        ("cpu", torch.bfloat16, 64, 1024, 99, False),
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
    documents = [rng.integers(1, CONFIG.vocab_size, length) for length in (5, 90, 0, 1, 7, 8, 9, 70, 3, 33)]
    ids = np.concatenate([[*document, EOT] for document in documents])[:-1].astype(np.uint16)
    return types.SimpleNamespace(ids=ids, eot_id=EOT)


@pytest.mark.parametrize("stride", [5, 32])
def test_a_token_is_scored_from_its_own_document(stride):
    model = build()
    alone = build(within=False)
    tokens = stream()
    ids = tokens.ids
    losses, positions = score_tokens(model, tokens, 32, stride, 3, torch.float32)
    given = torch.from_numpy(np.concatenate([[EOT], ids[:-1]]).astype(np.int64))  # what each token is predicted from
    for t, (loss, position) in list(enumerate(zip(losses, positions, strict=True)))[::3]:
        context = given[None, t - position : t + 1]
        assert EOT not in context[0, 1:]
        wanted = alone.token_losses(context, torch.from_numpy(ids[None, t - position : t + 1].astype(np.int64)))[0, -1]
        assert abs(loss - wanted) < 1e-5 * max(1, wanted), t
        # The context begins with the document, or with a window that leaves at least seq_len - stride tokens.
        assert context[0, 0] == EOT or position >= 32 - stride
    across = score_tokens(alone, tokens, 32, stride, 3, torch.float32)[1]
    assert (positions <= across).all() and (positions < across).any()


def test_positions_begin_anew_with_each_document():
    ids = np.array([7, EOT, EOT, 5, 6, EOT], np.uint16)
    assert positions_in_window(ids, EOT).tolist() == [0, 1, 0, 0, 1, 2]
    assert positions_in_window(ids, None).tolist() == [0, 1, 2, 3, 4, 5]
    assert positions_in_window(ids[:1], EOT).tolist() == [0]

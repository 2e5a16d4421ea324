"""Attention that keeps to a document equals that of each document alone, forward and backward."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.kernels import block_mask, document_numbers
from lm.model.score import score_tokens, token_losses
from support.model_cases import SHAPE, random_model

EOT = 0
WINDOW = 8
CHANGES = {"n_layer": 3, "d_model": 48, "d_ff": 96, "full_attention_every": 2, "max_seq_len": 640}
CONFIG = ModelConfig(**SHAPE | CHANGES, vocab_size=640)
# Where documents begin in two windows of 60 tokens, both of which begin inside a document: some are shorter than the
# sliding window, some longer, one is empty.
BEGINS = [[3, 9, 33, 34], [20, 27, 59]]
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


def test_masks_are_made_if_any_window_has_several_documents():
    windows = draw_windows(begins=[[0], [20]])

    assert build().attention_masks(windows).keys() == {WINDOW, CONFIG.max_seq_len}


# FlexAttention, which attends in compiled blocks on a GPU. torch has no gradients of it for CPUs.


@pytest.mark.parametrize("length", [60, 1000])
@pytest.mark.parametrize("window", [8, 129, 2000])
def test_a_block_mask_skips_and_masks_the_blocks_that_torch_finds_score_by_score(length, window):
    documents = document_numbers(draw_windows(length, [[], [20, 59], [1]]), EOT)

    mask = block_mask(documents, window)

    wanted = create_block_mask(mask.mask_mod, 3, None, length, length, device="cpu")
    for name in ("kv", "full_kv", "q", "full_q"):
        for numbers in (f"{name}_num_blocks", f"{name}_indices"):
            assert torch.equal(getattr(mask, numbers), getattr(wanted, numbers)), numbers


# Scoring.


def test_a_token_is_scored_from_its_own_document():
    """The context begins with the document, or with a window that leaves at least seq_len - stride tokens."""
    seq_len = 32
    stride = 5
    ids = np.random.default_rng(0).integers(1, CONFIG.vocab_size, 150).astype(np.uint16)
    ids[[5, 96, 97, 99, 107]] = EOT
    tokens = types.SimpleNamespace(ids=ids, eot_id=EOT)
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

"""The loss from a sample of the vocabulary: which entries are chosen, and which sums have a bias."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.model.gemma3 import Gemma3Model, ModelConfig, flops_per_token
from lm.model.sampled_softmax import sample_vocabulary
from lm.train.step import sampling_weights
from support.workspace import MICRO_MODEL

V = 300
N = 64
TARGETS = torch.arange(N) * 7 % 40  # 40 entries of 300
EQUAL = torch.ones(V, dtype=torch.int64)
ZIPF = 10_000 // (torch.arange(V) + 1)


def draws(size: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(size))


@pytest.mark.parametrize(
    ("size", "num_others"),
    [
        pytest.param(60, 30, id="more than half of the size are targets"),
        pytest.param(100, 60, id="less than half are"),
    ],
)
def test_every_target_and_at_least_as_many_others_as_half_of_the_size_are_chosen(size, num_others):
    lowest = torch.zeros(size, dtype=torch.float64)

    entries, positions, log_factors = sample_vocabulary(TARGETS, EQUAL, lowest)

    assert torch.equal(entries[:40], TARGETS.unique())
    assert torch.equal(entries[positions], TARGETS)
    assert not torch.isin(entries[40:], TARGETS).any()
    assert len(entries) == 40 + num_others
    assert len(log_factors) == num_others


def test_numbers_next_to_one_stay_within_the_vocabulary():
    almost_1 = torch.full((100,), math.nextafter(1.0, 0.0), dtype=torch.float64)

    entries, _, _ = sample_vocabulary(TARGETS, torch.arange(262_144) + 1, almost_1)

    assert int(entries.max()) < 262_144


def test_sums_over_the_vocabulary_are_estimated_without_bias():
    values = torch.linspace(-2, 3, V).exp().double()
    true_sum = float(values.sum())

    estimates = []
    for seed in range(200):
        entries, _, log_factors = sample_vocabulary(TARGETS, ZIPF, draws(60, seed))
        of_targets, of_others = values[entries].tensor_split([40])
        factors = log_factors.double().exp()
        estimates.append(float(of_targets.sum() + (factors * of_others).sum()))

    standard_error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - true_sum) < 4 * standard_error
    assert standard_error < 0.03 * true_sum


def test_weights_grow_with_the_count_and_none_is_zero():
    counts = [0, 15, 80, 255]
    ids = np.repeat(np.arange(4, dtype=np.uint16), counts)

    weights = sampling_weights(ids, vocab_size=5)

    assert weights.dtype == torch.int64
    assert weights.tolist() == [16, 16 * 8, 16 * 27, 16 * 64, 16]


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_sample_of_the_whole_vocabulary_is_the_full_loss(numerics):
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50), numerics)
    model.init_weights(torch.Generator().manual_seed(1))
    model.sampling_weights = ZIPF[:50]  # with equal ones, a sample of 50 has every entry too
    ids = torch.arange(32).view(2, 16) * 7 % 10

    full = model.loss(ids, ids)

    assert torch.equal(model.loss(ids, ids, draws(50, 1)), full)
    assert not torch.equal(model.loss(ids, ids, draws(30, 1)), full)
    of_half = flops_per_token(model.config, 16, sampled_vocab_size=25)
    assert of_half["head"] == flops_per_token(model.config, 16)["head"] / 2

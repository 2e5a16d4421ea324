"""The loss from a sample of the vocabulary: which entries are chosen, and that no bias is added."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.model.gemma3 import ModelConfig, flops_per_token
from lm.model.kernels import cross_entropy, sample_entries
from support.workspace import MICRO_MODEL

V, N, C = 300, 64, 16
TARGETS = torch.arange(N) * 7 % 40  # 40 entries of 300


def jitter(size: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(size))


def parts(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states (N, C) and a head (V, C) whose logits differ by several nats."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, C, generator=generator), torch.randn(V, C, generator=generator) * 0.5


@pytest.mark.parametrize("size", [60, 100, 299])
def test_every_target_and_one_entry_of_each_stratum_are_chosen(size):
    entries, places, (first_drawn, log_weight) = sample_entries(TARGETS, V, jitter(size, 1))
    assert torch.equal(entries[places], TARGETS)
    assert len(entries) == max(size, 40 + size // 2)
    assert first_drawn == 40 and torch.equal(entries[:40], TARGETS.unique())
    assert not torch.isin(entries[40:], TARGETS).any()
    numbers = torch.arange(len(entries) - 40)  # of strata; the entries that are no targets are 40, 41, … here
    begin = (numbers * 260 / len(numbers)).floor()
    assert (entries[40:] - 40 >= begin).all() and (entries[40:] - 40 <= begin + 260 / len(numbers) + 1).all()
    assert 40 + len(numbers) * math.exp(log_weight) == pytest.approx(V, rel=1e-6)


@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_numbers_next_to_one_stay_within_the_vocabulary(size):
    almost = torch.full((size,), math.nextafter(1.0, 0.0), dtype=torch.float64)
    for vocab_size in (40, 50, 8191, 262_144):
        entries, _, _ = sample_entries(TARGETS, vocab_size, almost)
        assert int(entries.max()) < vocab_size


def test_sums_over_the_vocabulary_are_estimated_without_bias():
    values = torch.linspace(-2, 3, V).exp().double()
    estimates = []
    for seed in range(400):
        entries, _, (first_drawn, log_weight) = sample_entries(TARGETS, V, jitter(60, seed))
        chosen = values[entries]
        estimates.append(float(chosen[:first_drawn].sum() + math.exp(log_weight) * chosen[first_drawn:].sum()))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert 0 < error < 0.005 * float(values.sum())
    assert abs(np.mean(estimates) - float(values.sum())) < 4 * error


@pytest.mark.parametrize("size", [None, V, V + 1])
def test_the_whole_vocabulary_gives_the_bits_of_the_full_loss(size):
    h, head = parts()
    found, wanted = (
        cross_entropy(h, head, TARGETS, 512, given) for given in (None if size is None else jitter(size, 1), None)
    )
    assert torch.equal(found, wanted)
    assert float(wanted) == pytest.approx(float(F.cross_entropy(h @ head.T, TARGETS)), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_near_the_full_ones_on_average(dtype):
    def mean_of(jitters):
        h, head = (part.requires_grad_() for part in parts())
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = sum(cross_entropy(h, head, TARGETS, 512, each) for each in jitters) / len(jitters)
        return float(loss.detach()), *torch.autograd.grad(loss, (h, head))

    loss, grad_h, grad_head = mean_of([jitter(150, seed) for seed in range(60)])
    full_loss, full_grad_h, full_grad_head = mean_of([None])
    assert loss == pytest.approx(full_loss, rel=0.02)
    for found, wanted in ((grad_h, full_grad_h), (grad_head, full_grad_head)):
        assert F.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.99
        assert float(found.norm() / wanted.norm()) == pytest.approx(1, abs=0.05)


def test_the_flop_of_the_head_are_those_of_the_sample():
    config = ModelConfig(**MICRO_MODEL, vocab_size=50)
    full, half, more = (flops_per_token(config, 16, size) for size in (None, 25, 51))
    assert half["head"] == full["head"] / 2 and more == full
    assert half["total"] == full["total"] - full["head"] / 2

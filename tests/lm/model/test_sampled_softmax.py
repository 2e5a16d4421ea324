"""The loss from a sample of the vocabulary: which entries are chosen, and which sums have a bias."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lm.exact import functions as exact
from lm.model import kernels
from lm.model.gemma3 import Gemma3Model, ModelConfig, flops_per_token
from lm.model.sampled_softmax import sample_vocabulary
from lm.train.step import sampling_weights
from support.workspace import MICRO_MODEL

V = 300
N = 64
C = 16
TARGETS = torch.arange(N) * 7 % 40  # 40 entries of 300
EQUAL = torch.ones(V, dtype=torch.int64)
ZIPF = 10_000 // (torch.arange(V) + 1)


def draws(size: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(size))


def parts(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states (N, C) and a head (V, C) whose logits differ by several nats."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, C, generator=generator), torch.randn(V, C, generator=generator) * 0.5


def loss_of(h: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, draws, weights: torch.Tensor) -> torch.Tensor:
    """Return the loss as `Gemma3Model.loss` computes it, from a sample of the vocabulary, or from all without draws."""
    if draws is None:
        return kernels.cross_entropy(h, head, targets, 512)
    entries, positions, log_factors = sample_vocabulary(targets, weights, draws)
    return kernels.cross_entropy(h, head.index_select(0, entries), positions, 512, log_factors)


@pytest.mark.parametrize("weights", [EQUAL, ZIPF])
@pytest.mark.parametrize("size", [60, 100, 299])
def test_every_target_and_one_entry_of_each_stratum_are_chosen(size, weights):
    entries, positions, log_factors = sample_vocabulary(TARGETS, weights, draws(size, 1))
    num_drawn = len(log_factors)
    assert torch.equal(entries[positions], TARGETS) and torch.equal(entries[:40], TARGETS.unique())
    assert len(entries) == 40 + num_drawn == max(size, 40 + size // 2)
    assert not torch.isin(entries[40:], TARGETS).any()
    ends = weights[40:].cumsum(0)  # on a line of the entries that are no targets: 40, 41, … here
    stratum = int(ends[-1]) / num_drawn
    begins = torch.arange(num_drawn) * stratum
    assert (ends[entries[40:] - 40] > begins.floor()).all()
    assert ((ends - weights[40:])[entries[40:] - 40] <= begins + stratum).all()
    assert torch.allclose(log_factors.exp(), (stratum / weights[entries[40:]]).float())


@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_numbers_next_to_one_stay_within_the_vocabulary(size):
    almost = torch.full((size,), math.nextafter(1.0, 0.0), dtype=torch.float64)
    for vocab_size in (40, 50, 8191, 262_144):
        weights = torch.arange(vocab_size) + 1
        entries, _, _ = sample_vocabulary(TARGETS, weights, almost)
        assert int(entries.max()) < vocab_size


@pytest.mark.parametrize("weights", [EQUAL, ZIPF])
def test_sums_over_the_vocabulary_are_estimated_without_bias(weights):
    values = torch.linspace(-2, 3, V).exp().double()
    estimates = []
    for seed in range(400):
        entries, _, log_factors = sample_vocabulary(TARGETS, weights, draws(60, seed))
        chosen = values[entries]
        estimates.append(float(chosen[:40].sum() + (log_factors.double().exp() * chosen[40:]).sum()))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - float(values.sum())) < 4 * error
    assert error < 0.03 * float(values.sum())


def test_weights_grow_with_the_count_and_none_is_zero():
    weights = sampling_weights(np.repeat(np.arange(4, dtype=np.uint16), [0, 15, 80, 255]), 5)
    assert weights.dtype == torch.int64 and weights.tolist() == [16, 16 * 8, 16 * 27, 16 * 64, 16]


def test_weights_by_frequency_halve_the_bias_of_loss_and_gradient():
    """The logits resemble those of a trained model: rare entries are improbable."""
    h, head = parts()
    targets = TARGETS * 7  # rare entries and common ones
    head *= 0.5  # the frequency decides more of a logit than the context
    h[:, 0], head[:, 0] = 1, ZIPF.float().log()
    absent = ~torch.isin(torch.arange(V), targets)

    def biases(weights) -> SimpleNamespace:
        losses = []
        heads = []
        for seed in [None, *range(200)]:
            part = head.clone().requires_grad_()
            loss = loss_of(h, part, targets, None if seed is None else draws(60, seed), weights)
            losses.append(float(loss.detach()))
            heads.append(torch.autograd.grad(loss, part)[0])
        true = heads[0][absent]
        mean = torch.stack(heads[1:]).mean(0)[absent]
        return SimpleNamespace(
            loss=np.mean(losses[1:]) - losses[0], absent=float((true * mean).sum() / (true**2).sum())
        )

    equal = biases(EQUAL)
    by_frequency = biases(ZIPF)
    assert equal.loss < 2 * by_frequency.loss < 0  # the loss is too low
    assert equal.absent < by_frequency.absent < 1  # and so is the gradient of entries that are no targets


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_sample_of_the_whole_vocabulary_is_the_full_loss(numerics):
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50), numerics)
    model.init_weights(torch.Generator().manual_seed(1))
    ids = torch.arange(32).view(2, 16) * 7 % 10
    full = model.loss(ids, ids)
    assert all(torch.equal(model.loss(ids, ids, draws(size, 1)), full) for size in (50, 51))
    assert not torch.equal(model.loss(ids, ids, draws(30, 1)), full)


@pytest.mark.parametrize("arithmetic", [exact, kernels])
def test_log_factors_stand_for_equal_entries(arithmetic):
    """An entry with log(n) more counts as n entries of its kind."""
    h, head = parts()
    targets = TARGETS[:50] % 50
    repeated = torch.cat([head[:50], head[50:60].repeat_interleave(3, 0)])
    wanted = arithmetic.cross_entropy(h[:50], repeated, targets, 512)
    found = arithmetic.cross_entropy(h[:50], head[:60], targets, 512, torch.full((10,), math.log(3)))
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_near_the_full_ones_on_average(dtype):
    def mean_of(jitters):
        h, head = (part.requires_grad_() for part in parts())
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = sum(loss_of(h, head, TARGETS, each, EQUAL) for each in jitters) / len(jitters)
        return float(loss.detach()), *torch.autograd.grad(loss, (h, head))

    loss, grad_h, grad_head = mean_of([draws(150, seed) for seed in range(60)])
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

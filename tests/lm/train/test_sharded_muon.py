"""Muon with sharded weights: whole matrices on owner ranks, the bits of the unsharded update, balanced work."""

import ctypes
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from lm.model.gemma3 import ModelConfig
from lm.train import optimizers
from lm.train.optimizers import Muon, newton_schulz_flops, orthogonalize
from lm.train.preflight import MUON_COPIES, estimate_memory_bytes
from lm.train.world import shard_rows
from support.rank_cases import run_together, sharded
from support.workspace import MICRO_MODEL

SHAPES = [(13, 5), (5, 13), (48, 48), (33, 48), (96, 64), (64, 96), (3, 7), (1, 9), (64, 700)]


def draw(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def muons(world, shapes, dtype):
    """Return the same weights whole and sharded, and a Muon for each."""
    whole = [nn.Parameter(matrix) for matrix in draw(shapes, 0)]
    shards = [nn.Parameter(matrix) for matrix in sharded(draw(shapes, 0), world)]
    settings = dict(lr=0.01, weight_decay=0.1, dtype=dtype)
    return whole, Muon(whole, **settings), shards, Muon(shards, **settings, world=world)


def compare_updates(world, dtype):
    """Check the bits of three updates, and that each rank orthogonalizes one matrix at a time and an equal part."""
    work = []

    def recorded(updates, dtype):
        assert len(updates) == 1
        work.append(newton_schulz_flops(updates.shape[1:]))
        return orthogonalize(updates, dtype)

    whole, one, shards, all_ranks = muons(world, SHAPES, dtype)
    for step in (1, 2, 3):
        for p, shard, grad in zip(whole, shards, draw(SHAPES, step), strict=True):
            p.grad, shard.grad = grad, sharded([grad], world)[0]
        optimizers.orthogonalize = orthogonalize
        one.step()
        optimizers.orthogonalize = recorded
        all_ranks.step()
    for p, shard in zip(whole, shards, strict=True):
        assert torch.equal(p, shard.full_tensor()), p.shape
        assert torch.equal(one.state[p]["momentum"], all_ranks.state[shard]["momentum"].full_tensor()), p.shape
        assert all_ranks.state[shard]["momentum"].to_local().shape == shard.to_local().shape
    of_ranks = world.all_gather_numbers([sum(work) / 3])
    assert sum(of_ranks) == sum(map(newton_schulz_flops, SHAPES))  # each matrix once
    assert max(of_ranks) - min(of_ranks) <= max(map(newton_schulz_flops, SHAPES))


@pytest.mark.parametrize(
    ("count", "dtype"), [(2, torch.float32), pytest.param(3, torch.bfloat16, marks=pytest.mark.slow)]
)
def test_sharded_muon_has_the_bits_of_unsharded_muon(tmp_path, count, dtype):
    assert run_together(count, compare_updates, tmp_path / "store", dtype) == [0] * count


def high_water_bytes():
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def measure_memory(world, shapes):
    *_, shards, muon = muons(world, shapes, torch.float32)
    for shard in shards:
        shard.grad = torch.ones_like(shard)
    muon.step()
    ctypes.CDLL(None).malloc_trim(0)  # what the first step has freed does not count as held before the second
    Path("/proc/self/clear_refs").write_text("5")  # from here on, VmHWM is the peak
    before = high_water_bytes()
    muon.step()
    copies = (high_water_bytes() - before) / (4 * shapes[0][0] * shapes[0][1])
    assert copies <= MUON_COPIES


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from Linux")
def test_a_step_holds_a_few_matrices_and_not_all(tmp_path):
    assert run_together(2, measure_memory, tmp_path / "store", [(256, 4096)] * 40) == [0, 0]


def test_the_estimate_of_memory_counts_shards():
    config = ModelConfig(**MICRO_MODEL, vocab_size=50)
    whole, part = (estimate_memory_bytes(10**9, config, 128, 64, shards) for shards in (1, 8))
    assert whole / 8 <= part < whole / 7
    adamw, muon = (estimate_memory_bytes(10**6, config, 128, 64, 2, muon=muon) for muon in (False, True))
    largest = config.d_model * max(config.d_ff, config.n_head * config.head_dim)
    assert muon - adamw == MUON_COPIES * 4 * largest


@pytest.mark.parametrize(("num_rows", "world_size"), [(0, 2), (1, 4), (9, 4), (13, 3)])
def test_shards_have_the_rows_of_torch(num_rows, world_size):
    rows = [len(chunk) for chunk in torch.empty(num_rows, 2).chunk(world_size)] if num_rows else []
    assert shard_rows(num_rows, world_size) == rows + [0] * (world_size - len(rows))

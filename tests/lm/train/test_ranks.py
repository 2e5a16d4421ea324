"""Several ranks on the CPU: any number has the same windows and losses, shares one checkpoint, and one rank writes."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.model.machine import pick_device
from lm.train import ranks
from lm.train.checkpoints import load_newest_checkpoint
from lm.train.config import read_params
from lm.train.preflight import check_run, reject_unequal_rows
from lm.train.ranks import World
from lm.train.state import digest_of, named_tensors
from support.rank_cases import free_port, measure, measure_and_stop, record_batches, run_ranks, stop_at
from support.train_cases import ARGUMENTS, clear, fresh_training, make_training, only_run, run_stage, set_runtime
from support.train_params import train_params

STEPS = 50
STOP = 20  # the step in which ranks are asked to stop
CURVES = {"plots/training.csv": range(5), "plots/validation.csv": range(3)}  # columns of numbers
SETTINGS = {
    "train.seq_len": 16, "train.batch_tokens": 128, "train.micro_batch_tokens": 64, "train.max_tokens": 128 * STEPS,
    "train.log_every_tokens": 128, "train.eval_every_tokens": 1280, "train.numerics": "fast",
    "train.sampled_vocab_size": None,  # with fast numerics the sample depends on a rank's micro-batches
}  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("ranks") / "ws")
    workspace.change(**SETTINGS)
    return workspace


@pytest.fixture
def workspace(template):
    with fresh_training(template, checkpoint_every_s=3600, timeout_s=60):
        yield template


def curves():
    """Steps, tokens, rates, losses and norms of both curves."""
    return [np.loadtxt(name, delimiter=",", skiprows=1, usecols=columns) for name, columns in CURVES.items()]


def publish():
    """Run the stage, which finds that its ranks have finished the run; return model.json."""
    ended = run_stage()
    assert ended.code == 0 and "this run is already finished" in ended.out, ended
    return json.loads(Path("data/models/model.json").read_text())


def assert_close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours[:, :4], theirs[:, :4], rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours[:, 4:], theirs[:, 4:], rtol=0, atol=1e-4)  # the norm of the whole gradient


@pytest.fixture(scope="module")
def alone(template):
    """The curves and the batches of one process, by optimizer."""
    found = {}
    for optimizer in ("muon", "adamw"):
        with fresh_training(template, checkpoint_every_s=3600):
            template.change(**{"train.optimizer": optimizer})
            Path("seen").mkdir()
            assert run_stage(record_batches, "seen").code == 0
            batches = json.loads(Path("seen/0.json").read_text())
            shutil.rmtree("seen")
            found[optimizer] = curves(), batches
    return found


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_has_the_same_losses(workspace, alone, count):
    Path("seen").mkdir()
    ended = run_ranks(count, record_batches, "seen")
    assert [rank.code for rank in ended] == [0] * count, ended
    expected, batches = alone["muon"]
    seen = [json.loads(Path(f"seen/{rank}.json").read_text()) for rank in range(count)]
    shutil.rmtree("seen")
    assert [list(itertools.chain(*parts)) for parts in zip(*seen, strict=True)] == batches
    assert_close(curves(), expected)
    # Of the same weights, the figure is the same to the bit.
    assert curves()[1][0, 2] == expected[1][0, 2]
    assert all(rank.out == rank.err == "" for rank in ended[1:]), ended
    # A finished run is not trained again by its ranks. The stage publishes it.
    again = run_ranks(count)
    assert [rank.code for rank in again] == [0] * count
    assert "this run is already finished" in again[0].out and not Path("data/models").exists()
    assert publish()["segments"][0]["ranks"] == count


OTHER_RANKS = [
    (2, 1, False, "muon"),
    (1, 2, True, "adamw"),
    (2, 1, True, "adamw"),  # the first pass over the weights is a validation
    pytest.param(1, 4, True, "adamw", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "shard", "optimizer"), OTHER_RANKS)
def test_a_checkpoint_of_some_ranks_serves_another_number(workspace, alone, before, after, shard, optimizer):
    workspace.change(**{"train.optimizer": optimizer})
    set_runtime(shard=str(shard).lower())
    ended = run_ranks(before, stop_at, before - 1, STOP)  # the last rank alone is asked
    assert [rank.code for rank in ended] == [143] * before, ended
    assert f"training stopped at step {STOP} (SIGTERM); a checkpoint is saved" in ended[0].sentence
    assert all("error" not in rank.err for rank in ended[1:])
    state = load_newest_checkpoint(only_run())
    assert state["step"] == STOP and state["model"]["embed_tokens.weight"].shape == (50, 16)
    assert state["history"]["digests"][-1] == digest_of(named_tensors(state))
    ended = run_ranks(after)
    assert [rank.code for rank in ended] == [0] * after, ended
    assert f"resumed at step {STOP} " in ended[0].out
    assert_close(curves(), alone[optimizer][0])
    segments = publish()["segments"]
    found = [(segment["from_step"], segment["ranks"], segment["sharded"]) for segment in segments]
    assert found == [(0, before, shard and before > 1), (STOP, after, shard and after > 1)]
    weights = torch.load("data/models/best_model_params.pt", weights_only=True)
    assert all(type(weight) is torch.Tensor for weight in weights.values())


def test_the_main_rank_chooses_the_dtype(workspace):
    workspace.change(**{"train.dtype": "auto"})
    ended = run_ranks(2, measure_and_stop, 3.0, STOP)
    assert [rank.code for rank in ended] == [143, 143], ended
    assert "dtype        bfloat16 (bfloat16 products are 3.0 times as fast)" in ended[0].out
    ended = run_stage(measure, 0.5)
    assert ended.code == 0 and "dtype        bfloat16 (as the run began)" in ended.out
    segments = json.loads(Path("data/models/model.json").read_text())["segments"]
    assert [(segment["from_step"], segment["dtype"]) for segment in segments] == [(0, "bfloat16"), (STOP, "bfloat16")]


def test_sharded_weights_in_bfloat16_train_as_well(workspace, alone):
    """They are sent in bfloat16, their gradients added and averaged in float32, once a step."""
    micro_batches = {"train.micro_batch_tokens": 32}  # two for each rank
    workspace.change(**{"train.optimizer": "adamw", "train.dtype": "auto", **micro_batches})
    set_runtime(shard="true")
    ended = run_ranks(2, measure, 3.0)
    assert [rank.code for rank in ended] == [0, 0], ended
    segment = publish()["segments"][0]
    assert (segment["dtype"], segment["sharded"], segment["ranks"]) == ("bfloat16", True, 2)
    steps, tokens, _, losses, norms = alone["adamw"][0][0].T
    found = curves()[0].T
    assert (found[0] == steps).all() and (found[1] == tokens).all()
    # The loss falls from 4 to 0.8, while the roundings to bfloat16 add up.
    assert np.abs(found[3] - losses)[:10].max() < 0.02
    assert np.abs(found[3] - losses).max() < 0.1
    # The gradient is the mean over both ranks and all micro-batches, not their sum or the last one.
    assert found[4][0] == pytest.approx(norms[0], rel=0.02)


OUTPUTS = ["data/models/best_model_params.pt", "data/models/last_model_params.pt", "data/models/model.json", *CURVES]
OUTPUTS.append("data/models/kept_weights/step-000000003/best_model_params.pt")


def outputs() -> list[bytes]:
    return [Path(name).read_bytes() for name in OUTPUTS]


SAMPLED = {"train.sampled_vocab_size": 25}  # of 50; a micro-batch has fewer


@pytest.mark.parametrize(
    ("optimizer", "steps", "ranks"),
    [pytest.param("adamw", STEPS, (2, 3, 6), marks=pytest.mark.slow), ("muon", 10, (2,))],
)
def test_any_number_of_ranks_has_the_same_bits(workspace, optimizer, steps, ranks):
    workspace.change(**{"train.keep_weights_at": [96 * 3]})
    length = {"train.max_tokens": 96 * steps, "train.eval_every_tokens": 48 * steps}
    units = {"train.numerics": "exact", "train.micro_batch_tokens": 16, "train.batch_tokens": 96}
    workspace.change(**{**length, **units, **SAMPLED, "train.optimizer": optimizer})
    assert run_stage().code == 0
    wanted = outputs()
    for count in ranks:
        clear()
        ended = run_ranks(count)
        assert [rank.code for rank in ended] == [0] * count, ended
        publish()
        assert outputs() == wanted, count


@pytest.mark.parametrize(
    ("changes", "world", "sentence"),
    [
        ({"micro_batch_tokens": 128}, World(0, 2), r"numerics is exact: \d+ micro-batches cannot be divided"),
        ({}, World(0, 4, sharded=True), r"numerics is exact, and train\.shard of runtime\.yaml is true"),
        ({"batch_tokens": 16 * 24, "numerics": "fast"}, World(0, 5), "24 sequences .* which 5 processes cannot divide"),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_refused(changes, world, sentence):
    reject_unequal_rows(train_params(micro_batch_tokens=16), World(0, 4))
    params = train_params(**{"micro_batch_tokens": 32} | changes)

    with pytest.raises(ParamsError, match=sentence):
        reject_unequal_rows(params, world)


def test_sharded_weights_are_refused_with_muon_and_taken_with_adamw(workspace):
    world = World(0, 2, sharded=True)
    sentence = r"train\.optimizer is muon, and train\.shard of runtime\.yaml is true: Muon needs whole matrices; set"
    with pytest.raises(ParamsError, match=sentence):
        check_run(read_params(), world)
    workspace.change(**{"train.optimizer": "adamw"})
    check_run(read_params(), world)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=run"]


@pytest.mark.slow
def test_two_hosts_of_an_outside_torchrun(workspace, alone):
    """Run the documented command for both hosts on this machine; then the stage publishes the finished run."""
    endpoint = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
    command = [*TORCHRUN, *endpoint, "src/train.py", *ARGUMENTS]
    hosts = [subprocess.Popen(command, env=workspace.environment) for _ in range(2)]
    assert [host.wait(120) for host in hosts] == [0, 0]
    assert_close(curves(), alone["muon"][0])
    assert publish()["segments"][0]["ranks"] == 2


def test_a_divergence_ends_all_ranks(workspace):
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})
    ended = run_ranks(2)
    assert [rank.code for rank in ended] == [6, 6], ended
    assert "training diverged at step 1: loss " in ended[0].sentence and ended[1].err == ""
    assert load_newest_checkpoint(only_run())["step"] == 1


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, (0, 1, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 8, 1, 2)),
        ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1",
          "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, (9, 16, 1, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, (0, 1, 0, 1)),  # a batch script
    ],
)  # fmt: skip
def test_torchrun_and_srun_are_recognised(monkeypatch, environment, place):
    for name in (*ranks.TORCHRUN, *ranks.SRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ranks.world_from_environment(sharded=True) == World(*place, sharded=place[1] > 1)


def test_gradients_of_many_numbers_are_averaged_in_several_buckets(monkeypatch):
    """At most ten numbers at once, and a longer gradient alone. The other rank has twice these gradients."""
    sent = []

    def add_the_other_rank(flat):
        sent.append(len(flat))
        flat *= 3

    monkeypatch.setattr(ranks, "BUCKET_NUMBERS", 10)
    monkeypatch.setattr(ranks.dist, "all_reduce", add_the_other_rank)
    parameters = [torch.zeros(shape, requires_grad=True) for shape in [(2, 2), (6,), (1,), (30,), (3, 3), (1,), (1,)]]
    for number, p in enumerate(parameters):
        p.grad = torch.full_like(p, number + 1.0)

    World(0, 2).average_gradients(parameters)

    assert sent == [10, 1, 30, 10, 1]
    for number, p in enumerate(parameters):
        assert torch.equal(p.grad, torch.full_like(p, 1.5 * (number + 1)))


def test_a_missing_address_is_named(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    is_named = pytest.raises(EnvironmentFailure, match="MASTER_ADDR is not set, so rank 1 of 2")
    with is_named, ranks.joined(World(1, 2), torch.device("cpu"), 1):
        pass


def test_a_rank_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device(1) == torch.device("cuda", 1)
    with pytest.raises(EnvironmentFailure, match="process 3 of this host has no GPU of its own: 2 are visible"):
        pick_device(2)

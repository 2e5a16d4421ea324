"""Several ranks on the CPU: any number has the same windows and losses, shares one checkpoint, and one rank writes."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.elastic.multiprocessing import SignalException

from lm.core.errors import EnvironmentFailure, Interrupted, ParamsError
from lm.train import ranks
from lm.train.checkpoints import load_newest_checkpoint
from lm.train.preflight import reject_unequal_rows
from lm.train.ranks import World
from lm.train.state import digest_of, named_tensors
from support.process import CAP_S, started
from support.rank_cases import run_ranks, stop_at
from support.refusal import refused
from support.train_cases import (
    ARGUMENTS,
    Ended,
    clear,
    fresh_training,
    make_training,
    only_run,
    results,
    run_stage,
    set_runtime,
)
from support.train_params import train_params

STEPS = 30
STOP = 20  # the step in which ranks are asked to stop
TRAINING_CURVE = "plots/training.csv"
VALIDATION_CURVE = "plots/validation.csv"
SETTINGS = {
    "train.seq_len": 16,
    "train.batch_tokens": 128,
    "train.micro_batch_tokens": 64,
    "train.max_tokens": 128 * STEPS,
    "train.log_every_tokens": 128,
    "train.eval_every_tokens": 1280,
    "train.numerics": "fast",
    "train.sampled_vocab_size": None,  # with fast numerics the sample depends on a rank's micro-batches
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = make_training(tmp_path_factory.mktemp("ranks") / "ws")
    workspace.change(**SETTINGS)
    return workspace


@pytest.fixture
def workspace(template):
    with fresh_training(template, checkpoint_every_s=3600):
        yield template


def end_well(count: int) -> list[Ended]:
    """Run the stage as `count` ranks, which must all succeed."""
    ended = run_ranks(count)
    assert [rank.code for rank in ended] == [0] * count, ended
    return ended


def read_curves() -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers in the curves of training and validation; the last of training are norms of the gradient."""
    training = np.loadtxt(TRAINING_CURVE, delimiter=",", skiprows=1)
    validation = np.loadtxt(VALIDATION_CURVE, delimiter=",", skiprows=1, usecols=(0, 1, 2))
    return training, validation


def publish() -> dict:
    """Run the stage, which finds that its ranks have finished the run; return model.json."""
    ended = run_stage()
    assert ended.code == 0, ended
    assert "this run is already finished" in ended.out
    return json.loads(Path("data/models/model.json").read_text())


def assert_close_to(alone: tuple[np.ndarray, np.ndarray]) -> None:
    """Check that only roundings differ."""
    for curve, curve_alone in zip(read_curves(), alone, strict=True):
        np.testing.assert_allclose(curve, curve_alone, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def alone(template) -> tuple[np.ndarray, np.ndarray]:
    """The curves of a run of one process."""
    with fresh_training(template, checkpoint_every_s=3600):
        assert run_stage().code == 0
        return read_curves()


def test_two_ranks_have_the_same_losses(workspace, alone):
    _, other = end_well(2)

    assert_close_to(alone)
    _, validation = read_curves()
    _, validation_alone = alone
    assert (validation[0] == validation_alone[0]).all(), "the same bits, as the weights are the same"
    assert other.out == other.err == ""

    main, other = end_well(2)
    assert "this run is already finished" in main.out
    assert other.out == other.err == ""
    assert not Path("data/models").exists(), "the stage publishes it"
    assert publish()["segments"][0]["ranks"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4)])
def test_a_checkpoint_of_some_ranks_serves_another_number(workspace, alone, before, after):
    last_rank = before - 1

    stopped = run_ranks(before, stop_at, last_rank, STOP)

    assert [rank.code for rank in stopped] == [143] * before, stopped
    assert f"training stopped at step {STOP} (SIGTERM); a checkpoint is saved" in stopped[0].sentence
    assert all("error" not in rank.err for rank in stopped[1:])
    state = load_newest_checkpoint(only_run())
    assert state["step"] == STOP
    assert state["history"]["digests"][-1] == digest_of(named_tensors(state))

    resumed = end_well(after)

    assert f"resumed at step {STOP} " in resumed[0].out
    assert_close_to(alone)
    segments = publish()["segments"]
    assert [segment["from_step"] for segment in segments] == [0, STOP]
    assert [segment["ranks"] for segment in segments] == [before, after]


@pytest.mark.parametrize(
    ("steps", "numbers_of_ranks"),
    [
        (10, (2,)),
        pytest.param(STEPS, (3, 6), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_has_the_same_bits(workspace, steps, numbers_of_ranks):
    settings = {
        "train.numerics": "exact",
        "train.micro_batch_tokens": 16,
        "train.batch_tokens": 96,
        "train.max_tokens": 96 * steps,
        "train.eval_every_tokens": 48 * steps,
        "train.sampled_vocab_size": 25,  # of 50; a micro-batch has fewer
    }
    workspace.change(**settings)
    assert run_stage().code == 0
    outputs_alone = results()

    for count in numbers_of_ranks:
        clear()
        end_well(count)
        publish()

        assert results() == outputs_alone, count


def test_ranks_must_share_a_batch_equally():
    reject_unequal_rows(train_params(micro_batch_tokens=16), World(0, 4))

    with pytest.raises(ParamsError, match=r"numerics is exact: 1 micro-batches cannot be divided among 2"):
        reject_unequal_rows(train_params(micro_batch_tokens=128), World(0, 2))
    lengths = {"micro_batch_tokens": 32, "batch_tokens": 16 * 24}
    with pytest.raises(ParamsError, match=r"24 sequences .* which 5 processes cannot divide"):
        reject_unequal_rows(train_params(numerics="fast", **lengths), World(0, 5))


@pytest.mark.slow
def test_two_hosts_of_an_outside_torchrun(workspace, alone):
    """Run the documented command for both hosts on this machine; then the stage publishes the finished run."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=run"]
    meeting_point = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{store.port}", "--rdzv-conf=is_host=false"]
    command = [*torchrun, *meeting_point, "src/train.py", *ARGUMENTS]

    hosts = [started(*command, env=workspace.environment) for _ in range(2)]

    assert [host.wait(CAP_S) for host in hosts] == [0, 0]
    assert_close_to(alone)
    assert publish()["segments"][0]["ranks"] == 2


def test_a_divergence_of_ranks_ends_their_stage_with_its_status(workspace):
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})
    set_runtime(num_processes=2)

    ended = run_stage()

    refused(ended.code, ended.err, 6, "training diverged at step 1: loss ")
    assert ended.err.count("error: ") == 1
    assert load_newest_checkpoint(only_run())["step"] == 1


SRUN = "SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=16 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=8(x2)"
TORCHRUN = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"


def set_environment(monkeypatch, variables: str) -> None:
    """Replace all environment variables."""
    monkeypatch.setattr(os, "environ", dict(variable.split("=") for variable in variables.split()))


@pytest.mark.parametrize(("variables", "world"), [(TORCHRUN, World(3, 8, 1, 2)), (SRUN, World(9, 16, 1, 8))])
def test_torchrun_and_srun_are_recognised(monkeypatch, variables, world):
    set_environment(monkeypatch, variables)

    assert ranks.world_from_environment() == world


def test_a_stage_of_dvc_is_no_rank_of_what_the_environment_names(monkeypatch):
    set_environment(monkeypatch, f"{TORCHRUN} DVC_STAGE=train")

    with pytest.raises(EnvironmentFailure, match=r"^RANK, WORLD_SIZE, .* 8 processes, .* `unset WORLD_SIZE`"):
        ranks.world_from_environment()

    set_environment(monkeypatch, f"{TORCHRUN} DVC_STAGE=train {ranks.STAGE_PID}=1")  # the stage has started it
    assert ranks.world_from_environment().world_size == 8


@pytest.fixture
def handlers(monkeypatch) -> dict[int, Callable]:
    """The handlers of signals that are set, in an environment without OMP_NUM_THREADS."""
    handlers = {}
    set_environment(monkeypatch, "")
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(ranks.logging, "disable", lambda level: None)
    return handlers


def replace_launcher(monkeypatch, launch: Callable) -> None:
    """Replace torch's launcher by a function of its configuration."""
    name = "torch.distributed.launcher.api.elastic_launch"
    monkeypatch.setattr(name, lambda config, program: lambda *arguments: launch(config))


@pytest.mark.parametrize(("chosen", "threads"), [(None, "2"), ("3", "3")])
def test_ranks_share_the_threads_unless_a_person_chose_their_number(handlers, monkeypatch, chosen, threads):
    replace_launcher(monkeypatch, lambda config: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    if chosen:
        os.environ["OMP_NUM_THREADS"] = chosen

    ranks.start_ranks(4, ["train.py"], 600)

    assert os.environ["OMP_NUM_THREADS"] == threads


def test_a_closed_terminal_stops_the_ranks_once(handlers, monkeypatch):
    """The system and the shell each send a signal. The launcher handles none, which `nohup` may have ignored."""

    def close_terminal(config):
        assert config.signals_to_handle == "SIGQUIT"
        stop = handlers[signal.SIGTERM]
        with pytest.raises(SignalException) as stopped:
            stop(signal.SIGHUP, None)
        stop(signal.SIGHUP, None)
        ignored.append(2)
        raise stopped.value

    ignored = []
    replace_launcher(monkeypatch, close_terminal)

    with pytest.raises(Interrupted, match="SIGHUP"):
        ranks.start_ranks(2, ["train.py"], 600)
    assert ignored == [2]

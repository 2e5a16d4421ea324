"""Several ranks on the CPU: any number has the same windows and losses, shares one checkpoint, and one rank writes."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from lm.core.errors import EnvironmentFailure, Interrupted, ParamsError
from lm.train import ranks
from lm.train.checkpoints import load_newest_checkpoint
from lm.train.preflight import reject_unequal_rows
from lm.train.ranks import World
from lm.train.state import digest_of, named_tensors
from lm.train.stop import stop_signals
from support.process import CAP_S, started
from support.rank_cases import record_batches, run_ranks, stop_at
from support.train_cases import (
    ARGUMENTS,
    Ended,
    clear,
    fresh_training,
    make_training,
    only_run,
    results,
    run_stage,
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


def end_well(count: int, sabotage: Callable | None = None, *arguments) -> list[Ended]:
    """Run the stage as `count` ranks, which must all succeed."""
    ended = run_ranks(count, sabotage, *arguments)
    assert [rank.code for rank in ended] == [0] * count, ended
    return ended


class Curves(NamedTuple):
    """The rows of the curves that a run has written."""

    training: np.ndarray  # step, tokens, rate, loss, norm of the whole gradient
    validation: np.ndarray  # step, tokens, loss


def read_curves() -> Curves:
    training = np.loadtxt(TRAINING_CURVE, delimiter=",", skiprows=1)
    validation = np.loadtxt(VALIDATION_CURVE, delimiter=",", skiprows=1, usecols=(0, 1, 2))
    return Curves(training, validation)


def publish() -> dict:
    """Run the stage, which finds that its ranks have finished the run; return model.json."""
    ended = run_stage()
    assert ended.code == 0, ended
    assert "this run is already finished" in ended.out
    return json.loads(Path("data/models/model.json").read_text())


def assert_close(found: Curves, expected: Curves) -> None:
    """Check that only roundings differ; norms are larger than the other numbers."""
    np.testing.assert_allclose(found.validation, expected.validation, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.training[:, :4], expected.training[:, :4], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.training[:, 4], expected.training[:, 4], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def alone(template) -> tuple[Curves, list]:
    """The curves of a run of one process, and the rows of ids of each batch."""
    with fresh_training(template, checkpoint_every_s=3600):
        (batches,) = recorded_batches(1)
        return read_curves(), batches


def recorded_batches(num_ranks: int) -> list:
    """Train as ranks, which must all succeed; return the batches of each."""
    Path("seen").mkdir()
    end_well(num_ranks, record_batches, "seen")
    batches = [json.loads(Path(f"seen/{rank}.json").read_text()) for rank in range(num_ranks)]
    shutil.rmtree("seen")
    return batches


def test_two_ranks_have_the_same_losses(workspace, alone):
    curves_alone, batches_alone = alone

    batches_of_ranks = recorded_batches(2)

    for batch, *parts in zip(batches_alone, *batches_of_ranks, strict=True):
        assert list(itertools.chain(*parts)) == batch, "the ranks divide each batch"
    curves = read_curves()
    assert_close(curves, curves_alone)
    first_loss = curves.validation[0, 2]
    assert first_loss == curves_alone.validation[0, 2], "the same bits, as the weights are the same"

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
    assert_close(read_curves(), alone[0])
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
    assert_close(read_curves(), alone[0])
    assert publish()["segments"][0]["ranks"] == 2


def test_a_divergence_ends_all_ranks(workspace):
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})

    main, other = run_ranks(2)

    assert (main.code, other.code) == (6, 6)
    assert "training diverged at step 1: loss " in main.sentence
    assert other.err == ""
    assert load_newest_checkpoint(only_run())["step"] == 1


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        pytest.param(
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            World(3, 8, 1, 2),
            id="torchrun",
        ),
        pytest.param(
            {
                "SLURM_PROCID": "9",
                "SLURM_STEP_NUM_TASKS": "16",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
            },
            World(9, 16, 1, 8),
            id="srun",
        ),
    ],
)
def test_torchrun_and_srun_are_recognised(monkeypatch, environment, world):
    for name in (*ranks.TORCHRUN, *ranks.SRUN, "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert ranks.world_from_environment() == world


def test_a_stage_of_dvc_is_no_rank_of_what_the_environment_names(monkeypatch):
    for name in ranks.TORCHRUN:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("DVC_STAGE", "train")

    with pytest.raises(EnvironmentFailure, match=r"^RANK, WORLD_SIZE, .* 2 processes, .* `unset WORLD_SIZE`"):
        ranks.world_from_environment()

    monkeypatch.setenv(ranks.STAGE_PID, "1")  # the stage has started it
    assert ranks.world_from_environment().world_size == 2


@pytest.mark.parametrize(("chosen", "world_size", "threads"), [(None, 16, "1"), ("3", 4, "3")])
def test_ranks_share_the_threads_unless_a_person_chose_their_number(launch, monkeypatch, chosen, world_size, threads):
    started = []
    launch(lambda config, program, arguments: started.append((config.nproc_per_node, program, arguments)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(sys, "argv", ["train.py", "--debug"])
    monkeypatch.setattr(os, "environ", {} if chosen is None else {"OMP_NUM_THREADS": chosen})

    ranks.start_ranks(world_size, ["train.py", "--models"], 600)

    assert os.environ["OMP_NUM_THREADS"] == threads
    assert started == [(world_size, sys.executable, ("train.py", "--models", "--debug"))]


class RanksFailed(ChildFailedError):
    """The launcher's error, by the exit code and the time of each rank's failure."""

    def __init__(self, *failures: tuple[int, int]):
        self.failures = {
            rank: SimpleNamespace(exitcode=exitcode, timestamp=timestamp)
            for rank, (exitcode, timestamp) in enumerate(failures)
        }


def test_the_status_is_that_of_the_rank_that_first_said_why_it_failed(launch, monkeypatch):
    """Those that the launcher ended, by a signal, said nothing; the others failed because of the first."""

    def fail(*given):
        raise RanksFailed((-15, 1), (6, 9), (3, 5), (5, 7))

    launch(fail)
    monkeypatch.setattr(os, "environ", {})

    with pytest.raises(SystemExit) as ended:
        ranks.start_ranks(4, ["train.py"], 600)

    assert ended.value.code == 3


def test_a_closed_terminal_stops_the_ranks_once(launch, monkeypatch):
    """The system and the shell each send a signal. The launcher handles none, which `nohup` may have ignored."""

    def close_terminal(config, program, arguments):
        assert config.signals_to_handle == "SIGQUIT"
        with pytest.raises(SignalException) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        ignored.append(2)
        raise stop.value

    ignored = []
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    launch(close_terminal)
    monkeypatch.setattr(os, "environ", {})

    with pytest.raises(Interrupted, match="SIGHUP"):
        ranks.start_ranks(2, ["train.py"], 600)
    assert ignored == [2]


@pytest.fixture
def launch(monkeypatch) -> Iterator[Callable]:
    """A function that replaces torch's launcher by a function of its configuration, the program and the arguments."""

    def replace(act: Callable) -> None:
        monkeypatch.setattr(
            "torch.distributed.launcher.api.elastic_launch",
            lambda config, program: lambda *arguments: act(config, program, arguments),
        )

    monkeypatch.setattr(ranks.logging, "disable", lambda level: None)
    former = {number: signal.getsignal(number) for number in (signal.SIGHUP, *stop_signals())}
    yield replace
    for number, handler in former.items():
        signal.signal(number, handler)

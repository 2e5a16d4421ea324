"""Several ranks on the CPU: any number has the same windows and losses, shares one checkpoint, and one rank writes."""

import contextlib
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
from lm.model.machine import pick_device
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
    return read_model()


def read_model() -> dict:
    return json.loads(Path("data/models/model.json").read_text())


def assert_close(found: Curves, expected: Curves) -> None:
    """Check that only roundings differ; norms are larger than the other numbers."""
    np.testing.assert_allclose(found.validation, expected.validation, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.training[:, :4], expected.training[:, :4], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.training[:, 4], expected.training[:, 4], rtol=0, atol=1e-4)


class RunAlone(NamedTuple):
    """A run of one process: its curves, and the rows of ids of each batch."""

    curves: Curves
    batches: list[list[list[int]]]


@pytest.fixture(scope="module")
def alone(template) -> RunAlone:
    """The run of one process."""
    with fresh_training(template, checkpoint_every_s=3600):
        with recorded_batches() as batches:
            assert run_stage(record_batches, "seen").code == 0
        return RunAlone(read_curves(), batches[0])


@contextlib.contextmanager
def recorded_batches(num_ranks: int = 1) -> Iterator[list]:
    """Make the folder `seen` for `record_batches`. Yield a list that is filled at the end: the batches by rank."""
    batches = []
    Path("seen").mkdir()
    yield batches
    for rank in range(num_ranks):
        batches.append(json.loads(Path(f"seen/{rank}.json").read_text()))
    shutil.rmtree("seen")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_has_the_same_losses(workspace, alone, count):
    with recorded_batches(count) as batches_of_ranks:
        ended = end_well(count, record_batches, "seen")

    for batch, *parts in zip(alone.batches, *batches_of_ranks, strict=True):
        assert list(itertools.chain(*parts)) == batch, "the ranks divide each batch"
    curves = read_curves()
    assert_close(curves, alone.curves)
    first_loss = curves.validation[0, 2]
    assert first_loss == alone.curves.validation[0, 2], "the same bits, as the weights are the same"
    assert all(rank.out == rank.err == "" for rank in ended[1:]), "the main rank prints for all"

    (main, *_) = end_well(count)
    assert "this run is already finished" in main.out
    assert not Path("data/models").exists(), "the stage publishes it"
    assert publish()["segments"][0]["ranks"] == count


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2, 1),
        (1, 2),
        pytest.param(1, 4, marks=pytest.mark.slow),
    ],
)
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
    assert_close(read_curves(), alone.curves)
    segments = publish()["segments"]
    assert [segment["from_step"] for segment in segments] == [0, STOP]
    assert [segment["ranks"] for segment in segments] == [before, after]


def read_outputs() -> dict[str, bytes]:
    paths = [
        "data/models/best_model_params.pt",
        "data/models/last_model_params.pt",
        "data/models/model.json",
        TRAINING_CURVE,
        VALIDATION_CURVE,
    ]
    return {path: Path(path).read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("optimizer", "steps", "numbers_of_ranks"),
    [
        ("muon", 10, (2,)),
        pytest.param("adamw", STEPS, (2, 3, 6), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_has_the_same_bits(workspace, optimizer, steps, numbers_of_ranks):
    settings = {
        "train.numerics": "exact",
        "train.optimizer": optimizer,
        "train.micro_batch_tokens": 16,
        "train.batch_tokens": 96,
        "train.max_tokens": 96 * steps,
        "train.eval_every_tokens": 48 * steps,
        "train.sampled_vocab_size": 25,  # of 50; a micro-batch has fewer
    }
    workspace.change(**settings)
    assert run_stage().code == 0
    outputs_alone = read_outputs()

    for count in numbers_of_ranks:
        clear()
        end_well(count)
        publish()

        assert read_outputs() == outputs_alone, count


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
    assert_close(read_curves(), alone.curves)
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
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"},
            World(0, 1, 0, 1),
            id="a batch script, not srun",
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


def test_gradients_of_many_numbers_are_averaged_in_several_buckets(monkeypatch):
    """At most ten numbers at once, and a longer gradient alone. The other rank has twice these gradients."""
    sent = []

    def add_the_other_rank(flat):
        sent.append(len(flat))
        flat *= 3

    monkeypatch.setattr(ranks, "BUCKET_NUMBERS", 10)
    monkeypatch.setattr(ranks.dist, "all_reduce", add_the_other_rank)
    shapes = [(2, 2), (6,), (1,), (30,), (3, 3), (1,), (1,)]
    parameters = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    for number, p in enumerate(parameters):
        p.grad = torch.full_like(p, number + 1.0)

    World(0, 2).average_gradients(parameters)

    assert sent == [10, 1, 30, 10, 1]
    for number, p in enumerate(parameters):
        own = number + 1
        mean = (own + 2 * own) / 2
        assert torch.equal(p.grad, torch.full_like(p, mean))


def test_a_rank_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert pick_device(1) == torch.device("cuda", 1)
    with pytest.raises(EnvironmentFailure, match="process 3 of this host has no GPU of its own: 2 are visible"):
        pick_device(2)


@pytest.mark.parametrize(("chosen", "world_size", "threads"), [(None, 4, "2"), (None, 16, "1"), ("3", 4, "3")])
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

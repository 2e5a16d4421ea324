"""The ranks of a run: the processes that split each batch, average gradients, and agree.

They are started by the stage (`start_ranks`), torchrun or srun. Rank 0, the main rank, alone prints and writes. With
one process every method returns what it is given.
Training draws no random numbers (no dropout, and a batch is a function of seed and step), so no rank needs a
generator of its own.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lm.core.errors import DivergedError, EnvironmentFailure, Interrupted
from lm.model.machine import collective_backend
from lm.train.stop import CONTINUES, stop_signals

BUCKET_NUMBERS = 1 << 23  # gradient numbers that are averaged in one all-reduce


@dataclasses.dataclass(frozen=True)
class World:
    """This process among all `world_size` ranks of a run, and among the `local_world_size` ranks of its host."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Return True for the one rank that prints and writes."""
        return self.rank == 0

    def all_reduce_max(self, *values: int) -> tuple[int, ...]:
        """Return the maximum of each value over all ranks: a request of one rank reaches all at the same step."""
        if self.world_size == 1:
            return values
        maxima = torch.tensor(values)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return tuple(maxima.tolist())

    def mean(self, number: float) -> float:
        """Return the mean of the numbers of all ranks."""
        if self.world_size == 1:
            return number
        total = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.world_size

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its mean over the ranks, which have equally many rows."""
        if self.world_size == 1:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        # DistributedDataParallel hooks into `forward`, but this model is trained through its `loss`. The traffic is the
        # same, but does not overlap with the last backward pass (benchmarks/results/ddp_overlap.json).
        while grads:
            size = np.cumsum([grad.numel() for grad in grads])
            end = max(1, int(np.searchsorted(size, BUCKET_NUMBERS, side="right")))
            bucket = grads[:end]
            grads = grads[end:]
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= self.world_size
            for grad, mean in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(mean.view_as(grad))

    def add_integers(self, tensors: list[Tensor]) -> None:
        """Replace each int64 tensor by its sum over all ranks."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_gather_numbers(self, numbers: list[float]) -> list[float]:
        """Return the numbers of all ranks, each with equally many, in the order of the ranks."""
        if self.world_size == 1:
            return numbers
        own = torch.tensor(numbers, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(gathered, own)
        return torch.cat(gathered).tolist()

    def all_gather_losses(self, losses: np.ndarray) -> np.ndarray:
        """Combine the losses (W, T) float32 of all ranks; each rank passes NaN for windows that it did not score."""
        if self.world_size == 1:
            return losses
        combined = torch.from_numpy(np.where(np.isnan(losses), -np.inf, losses))
        dist.all_reduce(combined, dist.ReduceOp.MAX)
        return combined.masked_fill_(combined.isneginf(), torch.nan).numpy()


SINGLE_PROCESS = World()


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# srun sets these in a job step. A batch script has SLURM_PROCID and SLURM_NTASKS too, but is not a rank.
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
MAIN_RANK_SPEAKS_S = 2.0  # time for the main rank to print why all ranks end
LAUNCHER_ENDS_S = 5.0  # time for a launcher to end the ranks after one of them has failed
STAGE_PID = "TRAIN_STAGE_PID"  # environment variable of the ranks that the stage has started: its process id


def start_ranks(world_size: int, arguments: list[str], timeout_s: float) -> None:
    """Run `python *arguments` as `world_size` ranks with torch's own launcher, until all have ended.

    The first signal asks the ranks to save a checkpoint and stop within `timeout_s`; a second one ends them. Raise
    Interrupted after a signal, SystemExit with the exit code of a rank that has printed why it failed, or
    EnvironmentFailure, after ending the others, if a rank was killed.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    received: list[int] = []

    def stop(number: int, frame) -> None:
        """Have the launcher send SIGINT to the ranks. After a second signal, or a failure, it ends them by SIGTERM."""
        if received and number == signal.SIGHUP:
            return  # as StopRequest
        received.append(number)
        raise SignalException("stop", signal.SIGINT)

    os.environ[STAGE_PID] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // world_size)))
    debug = [argument for argument in sys.argv if argument == "--debug"]  # exit_with_status has removed it
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id="train",
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        signals_to_handle="SIGQUIT",  # besides those of `stop`
        shutdown_timeout=int(timeout_s),
    )
    logging.disable(logging.ERROR)  # the launcher would log exit codes after a rank's error sentence
    for number in stop_signals():
        signal.signal(number, stop)
    try:
        elastic_launch(config, sys.executable)(*arguments, *debug)
    except SignalException as error:
        number = signal.Signals(received[0] if received else error.sigval)
        raise Interrupted(number, f"all ranks were stopped ({number.name}); {CONTINUES}") from None
    except ChildFailedError as error:
        explained = [failure for failure in error.failures.values() if failure.exitcode > 0]
        if explained:
            sys.exit(min(explained, key=lambda failure: failure.timestamp).exitcode)
        # A rank that ended by SIGTERM was ended by the launcher and is not the cause.
        rank, failure = min(error.failures.items(), key=lambda item: item[1].exitcode == -signal.SIGTERM)
        problem = f"rank {rank} of {world_size} was ended by {failure.signal_name()}"
        raise EnvironmentFailure(f"{problem}, and then all others; {CONTINUES}") from None


def parent_stage() -> int | None:
    """Return the process id of the stage that started this rank, or None if it was not started by a stage."""
    return int(os.environ[STAGE_PID]) if STAGE_PID in os.environ else None


def world_from_environment() -> World:
    """Return this process's rank among those that torchrun or srun started, SINGLE_PROCESS without them.

    Raise EnvironmentFailure in a stage that DVC has started: a rank would neither lock its outputs nor publish results.
    """
    for names in (TORCHRUN, SRUN):
        if all(name in os.environ for name in names):
            # "8(x2)" means 8 on each of 2 hosts.
            numbers = [int(re.split(r"\D", os.environ[name])[0]) for name in names]
            world = World(*numbers)
            if world.world_size > 1 and "DVC_STAGE" in os.environ and parent_stage() is None:
                found = f"{', '.join(names)} in the environment say that this is one of {world.world_size} processes"
                raise EnvironmentFailure(f"{found}, but DVC runs a stage as one; remove them with `unset {names[1]}`")
            return world if world.world_size > 1 else SINGLE_PROCESS
    return SINGLE_PROCESS


@contextlib.contextmanager
def joined(world: World, device: torch.device, timeout_s: float) -> Iterator[None]:
    """Join the process group at MASTER_ADDR:MASTER_PORT, and leave it together; do nothing for a single process.

    Inside, all ranks call the same collective operations in the same order. Raise EnvironmentFailure if the ranks do
    not meet, or if one of them ends or does not answer for `timeout_s`. All ranks see a stop or a divergence. The main
    rank, or the stage that started the ranks, reports it; the others end with its exit code.
    """
    if world.world_size == 1:
        yield
        return
    check_address(world)
    try:
        dist.init_process_group(
            collective_backend(device),
            init_method="env://",
            rank=world.rank,
            world_size=world.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        yield
        world.all_reduce_max(0)  # the main rank may hold the store: it leaves after all have arrived here
        dist.destroy_process_group()
    except (Interrupted, DivergedError) as error:
        is_said_by_stage = isinstance(error, Interrupted) and parent_stage() is not None
        if world.is_main and not is_said_by_stage:
            raise
        time.sleep(MAIN_RANK_SPEAKS_S)  # a launcher ends all ranks as soon as one has ended
        sys.exit(error.exit_code)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        reason = " ".join(str(error).split())
        # The rank that failed has printed why. A launcher ends this one meanwhile; without a launcher, one rank prints
        # first.
        time.sleep(LAUNCHER_ENDS_S + world.rank)
        lost = f"rank {world.rank} of {world.world_size} lost another rank"
        limit = f"had no answer within train.timeout_s {timeout_s:g} of runtime.yaml"
        raise EnvironmentFailure(f"{lost}, or {limit} ({reason[:120]}); {CONTINUES}") from None


def check_address(world: World) -> None:
    """Raise EnvironmentFailure if the environment does not say where the ranks meet."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            rank = f"rank {world.rank} of {world.world_size}"
            problem = f"{name} is not set, so {rank} does not know where rank 0 listens"
            raise EnvironmentFailure(f"{problem}; export it as described in docs/distributed.md")

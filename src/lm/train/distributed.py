"""How the ranks of a run find each other, start their process group, and leave it together.

The main rank takes the locks, not the process that started the ranks: torchrun and srun start them on several hosts
without a parent of ours, and a parent that is killed would give up its lock while its ranks still write. So the other
ranks wait until the main rank has the locks and says whether there is anything to train.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from lm.core.errors import DivergedError, EnvironmentFailure, Interrupted
from lm.model.device import collective_backend
from lm.train.world import SINGLE_PROCESS, World

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# srun sets these in a job step. A batch script has SLURM_PROCID and SLURM_NTASKS too, but is not a rank.
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
RUN_ID = "train-stage"  # by which a rank knows that lm.train.launcher started it
MAIN_RANK_SPEAKS_S = 2.0  # time for the main rank to print why all ranks end
LAUNCHER_ENDS_S = 5.0  # time for a launcher to end the ranks after one of them has failed


def ranks_from_environment() -> tuple[int, int, int, int] | None:
    """Return (rank, world_size, local_rank, local_world_size) as torchrun or srun set them, or None."""
    for names in (TORCHRUN, SRUN):
        if all(name in os.environ for name in names):
            # "8(x2)" means 8 on each of 2 hosts.
            rank, world_size, *local = (int(re.split(r"\D", os.environ[name])[0]) for name in names)
            return rank, world_size, local[0], local[1]
    return None


def is_launched(world: World) -> bool:
    """Return True if lm.train.launcher started this rank; it relays signals and ends the rank by SIGTERM."""
    return world.world_size > 1 and os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID


@contextlib.contextmanager
def join(sharded: bool, timeout_s: float) -> Iterator[World]:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT and yield this rank's World; one process meets no one.

    Raises EnvironmentFailure if the ranks do not meet, or if one of them ends or does not answer for `timeout_s`.
    A stop or a divergence, which all ranks see, is reported by the main rank; the others end with its exit code.
    """
    numbers = ranks_from_environment()
    if numbers is None or numbers[1] == 1:
        yield SINGLE_PROCESS
        return
    rank, world_size = numbers[:2]
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            problem = f"{name} is not set, so rank {rank} of {world_size} does not know where rank 0 listens"
            raise EnvironmentFailure(f"{problem}; export it as described in docs/distributed.md")
    try:
        rendezvous = dist.rendezvous(  # pyright: ignore[reportPrivateImportUsage] - torch documents it
            f"env://?rank={rank}&world_size={world_size}", timeout=timedelta(seconds=timeout_s)
        )
        world = World(*numbers, sharded, timeout_s, next(rendezvous)[0])
        yield world
        leave(world)
    except (Interrupted, DivergedError) as error:
        if rank == 0:
            raise
        time.sleep(MAIN_RANK_SPEAKS_S)  # a launcher ends all ranks as soon as one has ended
        sys.exit(error.exit_code)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        reason = " ".join(str(error).split())
        # The rank that failed has printed why. A launcher ends this one meanwhile; without it, one rank speaks first.
        time.sleep(LAUNCHER_ENDS_S + rank)
        raise EnvironmentFailure(
            f"rank {rank} of {world_size} lost another rank, or had no answer within train.timeout_s {timeout_s:g} of "
            f"runtime.yaml ({reason[:120]}); `dvc repro` continues from the last saved checkpoint"
        ) from None


def announce(world: World, phase: str) -> None:
    """Tell the ranks in `wait_for_main` that the main rank has reached this phase: "waits" for locks, or "holds" them.

    Only between the two may it take longer than `timeout_s`: it waits for another run.
    """
    if world.world_size > 1:
        world.store.set(phase, "")


def wait_for_main(world: World) -> bool:
    """Wait until the main rank has its locks. Return True if it starts training, False if there is nothing to do."""
    timeout = timedelta(seconds=world.timeout_s)
    for phase, longest in (("waits", timeout), ("holds", timedelta(days=365)), ("main", timeout)):
        world.store.wait([phase], longest)
    return world.store.get("main") == b"trains"


def start_group(world: World, device: torch.device) -> None:
    """Start the process group; from here on all ranks call the same collective operations in the same order."""
    if world.world_size == 1:
        return
    if world.is_main:
        world.store.set("main", "trains")
    dist.init_process_group(
        collective_backend(device), store=world.store, rank=world.rank, world_size=world.world_size,
        timeout=timedelta(seconds=world.timeout_s),
    )  # fmt: skip


def leave(world: World) -> None:
    """End the process group; the main rank, which may hold the store, waits for the others to leave first."""
    if not world.is_main:
        world.store.set(f"left {world.rank}", "")
    else:
        if not dist.is_initialized():
            world.store.set("main", "has nothing to do")
        others = [f"left {rank}" for rank in range(1, world.world_size)]
        world.store.wait(others, timedelta(seconds=world.timeout_s))
    if dist.is_initialized():
        dist.destroy_process_group()

"""Ranks of the train stage: forked, as an outside torchrun would start them, or started by the stage itself.

Run as a script, this file is such a rank with a sabotage: the stage starts it instead of train.py.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("src", "tests")]

import torch
import torch.distributed as dist

import lm.core.files
import lm.tokens.tokenfile
import lm.train.run
import train as train_stage
from lm.train.ranks import MAIN_RANK_SPEAKS_S
from support.process import wait_for
from support.train_cases import Ended, Stage, at_step, beside_training, hold_at, write_slowly


def run_ranks(count: int, sabotage: Callable | None = None, *arguments) -> list[Ended]:
    """Run the stage as `count` ranks of an outside launcher, in the current directory, to their ends."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stages = [Stage(become_rank, rank, count, store.port, sabotage, *arguments) for rank in range(count)]
    return [stage.end() for stage in stages]


def become_rank(rank: int, count: int, port: int, sabotage: Callable | None, *arguments) -> None:
    """A sabotage: this process is a rank, with another sabotage. The ranks meet at a store that the test has opened."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    if count > 1:
        train_stage.output_lock = train_stage.publish = forbidden
        lm.tokens.tokenfile.check_content = forbidden
    if rank > 0:
        lm.core.files._temporary_beside = forbidden
    if sabotage is not None:
        sabotage(*arguments)


def forbidden(*arguments):
    """Replace what takes a lock, publishes or reads a whole token file in a rank, or writes a file in other ranks."""
    raise AssertionError(f"rank {os.environ['RANK']} writes or checks {arguments[0]}")


def sabotage_ranks(*words) -> None:
    """A sabotage of a stage that starts ranks: `words` are the function and the integers they start with."""
    os.environ["SABOTAGE"] = " ".join(map(str, words))
    train_stage.__file__ = __file__


def hold_at_and_write_slowly_beside_training(step: int) -> None:
    """A sabotage: as `hold_at`; the main rank's thread writes a checkpoint for longer than the others wait to leave."""
    hold_at(step)
    if os.environ["RANK"] == "0":
        beside_training(write_slowly, 2 * MAIN_RANK_SPEAKS_S, dict)


def hang_at(rank: int, step: int) -> None:
    """A sabotage: after this step this rank hangs until it is ended; the others wait a second for it."""

    def hang() -> None:
        if os.environ["RANK"] == str(rank):
            wait_for(lambda: False)
        dist.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))

    at_step(step, hang)


def stop_at(rank: int, step: int) -> None:
    """A sabotage: one rank alone is asked to stop, by SIGTERM, in this step."""
    if os.environ["RANK"] == str(rank):
        at_step(step, lambda: os.kill(os.getpid(), 15))


if __name__ == "__main__":
    name, *numbers = os.environ["SABOTAGE"].split()
    globals()[name](*map(int, numbers))
    sys.exit(train_stage.main(sys.argv[1:]))

"""Start the ranks of a run on this machine, and relay signals to them.

The stage that starts the ranks has checked the files and holds the locks. The ranks only train.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator

import psutil
import torch

from lm.core.errors import EnvironmentFailure, Interrupted
from lm.train.stop import CONTINUES, RELAYED_AS

RUN_ID = "train-stage"  # by which a rank knows that `start` started it


def start(world_size: int, arguments: list[str]) -> None:
    """Run `python *arguments` as `world_size` ranks with torch's elastic launcher until all have ended.

    Raises SystemExit with the exit code of a rank that has printed why it failed, Interrupted after a second signal,
    or EnvironmentFailure if a rank was killed, after ending the others.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    debug = [argument for argument in sys.argv if argument == "--debug"]  # exit_with_status has removed it
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // world_size)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=RUN_ID,
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    logging.disable(logging.ERROR)  # the elastic launcher would log exit codes after a rank's error sentence
    with _relayed_signals() as received:
        try:
            elastic_launch(config, sys.executable)(*arguments, *debug)
        except SignalException as error:
            raise Interrupted(error.sigval, f"stopped at once ({error.sigval.name}); {CONTINUES}") from None
        except ChildFailedError as error:
            explained = [failure for failure in error.failures.values() if failure.exitcode > 0]
            if explained:
                sys.exit(min(explained, key=lambda failure: failure.timestamp).exitcode)
            if received:
                name = signal.Signals(received[-1]).name
                raise Interrupted(received[-1], f"stopped at once ({name}); {CONTINUES}") from None
            # A rank that ended by SIGTERM was ended by the launcher and is not the cause.
            rank, failure = min(error.failures.items(), key=lambda item: item[1].exitcode == -signal.SIGTERM)
            problem = f"rank {rank} of {world_size} was ended by {failure.signal_name()}"
            raise EnvironmentFailure(f"{problem}, and then all others; {CONTINUES}") from None


def is_rank_of_launcher() -> bool:
    """Return True if `start` started this process; it relays signals and ends the rank by SIGTERM."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID


def stop_with_launcher() -> None:
    """Have this rank asked to stop if its launcher is killed, which holds the run's locks; Linux only."""
    if sys.platform.startswith("linux"):
        signal_at_parents_death = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(signal_at_parents_death, RELAYED_AS[signal.SIGTERM])


@contextlib.contextmanager
def _relayed_signals() -> Iterator[list[int]]:
    """Relay SIGINT and SIGTERM to this process's children; yield the list of those received so far."""
    received: list[int] = []

    def relay(number: int, frame) -> None:
        """Ask the ranks to stop at the first signal, kill them at the second."""
        relayed = signal.SIGKILL if received else RELAYED_AS[signal.Signals(number)]
        received.append(number)
        children = psutil.Process().children()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(relayed)
        if not children:
            raise Interrupted(number, "stopped before training began; run the same command again")

    former = {number: signal.signal(number, relay) for number in RELAYED_AS}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

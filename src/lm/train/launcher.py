"""Begin the ranks of a run on this machine, hand signals on to them, and end as they end."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

import psutil
import torch

from lm.core.errors import EnvironmentFailure, Interrupted
from lm.train.distributed import LAUNCHER
from lm.train.signals import RELAYED_AS

CONTINUES = "`dvc repro` continues from the last saved state"


def start(count: int, arguments: list[str]) -> None:
    """Run `python *arguments` as `count` ranks on this machine, by torch's elastic launcher, until all have ended.

    SIGINT and SIGTERM, or the death of this process's parent, ask the ranks to save their state and leave; a
    second signal kills them. Raises SystemExit with the exit code of a rank that has said why it failed,
    Interrupted, or EnvironmentFailure if one was killed: the others are ended then.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    debug = [argument for argument in sys.argv if argument == "--debug"]  # which no stage's main gets to see
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // count)))
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=count, run_id=LAUNCHER, max_restarts=0, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", local_addr="localhost", signals_to_handle="SIGHUP,SIGQUIT",
    )  # fmt: skip
    logging.disable(logging.ERROR)  # the launcher's log of exit codes, after a rank's one sentence
    with _relayed_signals() as received:
        try:
            elastic_launch(config, sys.executable)(*arguments, *debug)
        except SignalException as error:
            raise Interrupted(error.sigval, f"left at once ({error.sigval.name}); {CONTINUES}") from None
        except ChildFailedError as error:
            spoke = [failure for failure in error.failures.values() if failure.exitcode > 0]
            if spoke:
                sys.exit(min(spoke, key=lambda failure: failure.timestamp).exitcode)
            if received:
                name = signal.Signals(received[-1]).name
                raise Interrupted(received[-1], f"left at once ({name}); {CONTINUES}") from None
            # Those that the launcher ended because of another are not the cause.
            rank, failure = min(error.failures.items(), key=lambda item: item[1].exitcode == -signal.SIGTERM)
            raise EnvironmentFailure(
                f"rank {rank} of {count} was ended by {failure.signal_name()}, all others with it; {CONTINUES}"
            ) from None


@contextlib.contextmanager
def _relayed_signals() -> Iterator[list[int]]:
    """Hand SIGINT and SIGTERM on to this process's children and list them; the parent's death counts as SIGTERM."""
    received, over, parent = [], threading.Event(), os.getppid()

    def relay(number: int, frame) -> None:
        """The first signal asks the ranks to leave, a second one kills them."""
        relayed = signal.SIGKILL if received else RELAYED_AS[number]
        received.append(number)
        children = psutil.Process().children()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(relayed)
        if not children:
            raise Interrupted(number, "stopped before training began; run the same command again")

    def watch_parent() -> None:
        """Look once a second; end with `over`."""
        while not over.wait(1):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    former = {number: signal.signal(number, relay) for number in RELAYED_AS}
    threading.Thread(target=watch_parent, daemon=True).start()
    try:
        yield received
    finally:
        over.set()
        for number, handler in former.items():
            signal.signal(number, handler)

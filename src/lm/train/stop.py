"""Stop a run at a signal: after the current step, with a checkpoint."""

import os
import signal

from lm.core.errors import Interrupted
from lm.core.messages import say_in_handler

CONTINUES = "run the same command again to continue from the last checkpoint"


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop. Under `nohup`, SIGHUP (a closed terminal) remains ignored.

    Clusters often send SIGUSR1 shortly before the time of a job is up.
    """
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signals if is_ignored else [*signals, signal.SIGHUP]


class StopRequest:
    """Remember the first signal for the training loop, end the process at the second, restore the handlers at the end.

    stage: the process id of the stage that started this rank, if one did; its SIGINT, or its end, asks the rank to
    stop.
    verbose: print that the run will stop.
    """

    def __init__(self, stage: int | None = None, verbose: bool = True):
        self._stage = stage
        self._verbose = verbose
        # The launcher of a stage ends its ranks by SIGTERM.
        self._handled = [signal.SIGINT] if stage else stop_signals()

    def __enter__(self):
        self._received = 0
        self._previous = {number: signal.signal(number, self._note) for number in self._handled}
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if self._received and number == signal.SIGHUP:
            return  # the shell and the system each send one when a terminal is closed
        if self._received:
            stopped = f"stopped at once ({signal.Signals(number).name})"
            say_in_handler(f"error: {stopped}; {CONTINUES}")
            os._exit(128 + number)
        self._received = number
        if self._verbose:
            say_in_handler("\nstopping after this step; send the signal again to stop at once")

    @property
    def signal_number(self) -> int:
        """Return the signal received, SIGTERM if the stage that started this rank has ended, or 0."""
        has_lost_stage = self._stage is not None and os.getppid() != self._stage
        return signal.SIGTERM if has_lost_stage else self._received

    @staticmethod
    def interrupted(step: int, signal_number: int) -> Interrupted:
        """Return the error to raise after the checkpoint of `step` is saved."""
        stopped = f"training stopped at step {step} ({signal.Signals(signal_number).name})"
        return Interrupted(signal_number, f"{stopped}; a checkpoint is saved; {CONTINUES}")

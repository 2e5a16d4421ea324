"""Stop a run at a signal: after the current step, with a checkpoint."""

import os
import signal

from lm.core.errors import Interrupted
from lm.core.messages import say_in_handler

# The launcher relays a signal to its ranks as another one: its own SIGTERM ends them after one of them has failed.
RELAYED_AS = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}
CONTINUES = "`dvc repro` continues from the last saved checkpoint"


class StopRequest:
    """Remember the first signal for the training loop, end the process at the second, restore the handlers at the end.

    relayed: signals come from the launcher, which kills its ranks at a second one; its own death may send several.
    verbose: print that the run will stop.
    """

    def __init__(self, relayed: bool = False, verbose: bool = True):
        self._relayed = relayed
        self._verbose = verbose
        self._meaning = {RELAYED_AS[number] if relayed else number: number for number in RELAYED_AS}

    def __enter__(self):
        self._received = 0
        self._former = {number: signal.signal(number, self._note) for number in self._meaning}
        return self

    def __exit__(self, *exception):
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        number = self._meaning[signal.Signals(number)]
        if self._received and self._relayed:
            return
        if self._received:
            stopped = f"stopped at once ({signal.Signals(number).name})"
            say_in_handler(f"error: {stopped}; {CONTINUES}")
            os._exit(128 + number)
        self._received = number
        if self._verbose:
            say_in_handler("\nstopping after this step; send the signal again to stop at once")

    @property
    def signal_number(self) -> int:
        """Return the signal received, or 0."""
        return self._received

    @staticmethod
    def interrupted(step: int, signal_number: int) -> Interrupted:
        """Return the error to raise after the checkpoint of `step` is saved."""
        stopped = f"training stopped at step {step} ({signal.Signals(signal_number).name})"
        return Interrupted(signal_number, f"{stopped}; a checkpoint is saved, `dvc repro` continues from there")

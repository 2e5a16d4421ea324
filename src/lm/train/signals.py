"""Notice that a run should end: SIGINT, SIGTERM, or the process that started it is gone."""

import os
import signal
import sys

from lm.core.errors import Interrupted

ORPHANED = signal.SIGHUP  # stands for it that the process that started this one is gone
# How a launcher hands a signal on to its ranks, which it ends by SIGTERM itself once one of them has failed.
RELAYED_AS = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}


class StopRequest:
    """Turns the first signal into a question the loop asks between steps; a second one ends at once.

    `relayed`: by a launcher, that keeps the second one to itself. Use as a context manager: the former
    handlers come back at its end.
    """

    def __init__(self, relayed: bool = False, speaks: bool = True):
        self._speaks = speaks
        self._meaning = {RELAYED_AS[number] if relayed else number: number for number in RELAYED_AS}

    def __enter__(self):
        self._parent, self._received = os.getppid(), 0
        self._former = {number: signal.signal(number, self._note) for number in self._meaning}
        return self

    def __exit__(self, *exception):
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        number = self._meaning[number]
        if self._received:
            name = signal.Signals(number).name
            os.write(2, f"error: left at once ({name}); `dvc repro` continues from the last saved state\n".encode())
            os._exit(128 + number)
        self._received = number
        if self._speaks:
            print("\nstopping after this step; once more to leave at once", file=sys.stderr, flush=True)

    @property
    def asked_by(self) -> int:
        """The signal that came, ORPHANED if the parent process is gone, else 0."""
        return self._received or (0 if os.getppid() == self._parent else ORPHANED)

    @staticmethod
    def interrupted(step: int, asked_by: int) -> Interrupted:
        """The error to raise once the state of `step` is saved."""
        orphaned = asked_by == ORPHANED
        reason = "the process that started it is gone" if orphaned else signal.Signals(asked_by).name
        return Interrupted(
            signal.SIGTERM if orphaned else asked_by,
            f"training stopped at step {step} ({reason}); its state is saved, `dvc repro` continues from there",
        )

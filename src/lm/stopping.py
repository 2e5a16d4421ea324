"""Notice that a run should end: SIGINT, SIGTERM, or the process that started it is gone."""

import os
import signal
import sys

from lm.errors import Interrupted


class StopRequest:
    """Turns the first signal into a question the loop asks between steps; a second one ends at once.

    Use as a context manager: the former handlers come back at its end.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self):
        self._parent, self._received = os.getppid(), 0
        self._former = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *exception):
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if self._received:
            name = signal.Signals(number).name
            os.write(2, f"error: left at once ({name}); `dvc repro` continues from the last saved state\n".encode())
            os._exit(128 + number)
        self._received = number
        print("\nstopping after this step; once more to leave at once", file=sys.stderr, flush=True)

    @property
    def wanted(self) -> bool:
        """Whether a signal came or the parent process is gone."""
        return bool(self._received) or os.getppid() != self._parent

    def interrupted(self, step: int) -> Interrupted:
        """The error to raise once the state of `step` is saved."""
        reason = signal.Signals(self._received).name if self._received else "the process that started it is gone"
        return Interrupted(
            self._received or signal.SIGTERM,
            f"training stopped at step {step} ({reason}); its state is saved, `dvc repro` continues from there",
        )

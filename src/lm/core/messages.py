"""Best-effort printing: a closed pipe or terminal never stops a run."""

import contextlib
import os
import sys
from typing import TextIO


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line on standard output, or on `file`; if that fails, drop it and all later lines on that stream.

    The reader of a pipe may have ended (`tee` does at Ctrl-C), the terminal may be closed, or the disk of a log may be
    full.
    """
    stream = file or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        send_to_nowhere(stream)


def send_to_nowhere(stream: TextIO) -> None:
    """Send the rest of a stream, including its buffer, to the null device."""
    with contextlib.suppress(OSError, ValueError):  # a stream of another kind has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say_in_handler(text: str) -> None:
    """Write a line on standard error from a signal handler, which may have interrupted another print."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())

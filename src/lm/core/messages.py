"""Print what a person may read, without letting it decide whether work is done and saved."""

import contextlib
import os
import sys
from typing import TextIO


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line on standard output, or on `file`; if it cannot be written, go on without it.

    The reader of a pipe may have ended, as `tee` does at Ctrl-C; a terminal may be closed; the disk of a log may be
    full. Later lines on that stream are dropped.
    """
    stream = file or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        send_to_nowhere(stream)


def send_to_nowhere(stream: TextIO) -> None:
    """Send the rest of a stream, with what is in its buffer, to the null device."""
    with contextlib.suppress(OSError, ValueError):  # a stream of another kind has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say_in_handler(text: str) -> None:
    """Write a line on standard error from a handler of signals, which may have interrupted another print."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())

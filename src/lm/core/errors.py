"""Failures that a person can act on: one sentence each, and the exit code that tells their kind.

A stage's `main` is wrapped in `command`, so that its last line on stderr is the sentence and its
exit status the code below. Anything else that is raised is a bug of ours and keeps its traceback.
"""

import functools
import signal
import sys
import traceback

# Said of bytes that are not the recorded ones: they may be damaged in the cache too.
MEND = "run `python src verify --cache`, which names the command that mends it"


class UserError(Exception):
    """One sentence: the file or parameter, what was found, what is needed, what to do."""

    exit_code = 1


class ParamsError(UserError):
    """A parameter or an argument is wrong."""

    exit_code = 2


class DataError(UserError):
    """The text or the tokens cannot serve: empty, too short, a missing column."""

    exit_code = 3


class NoDocument(DataError):
    """No document begins in the range of characters asked for."""


class IntegrityError(UserError):
    """A file is not what its record says: truncated, altered, or made from something else."""

    exit_code = 4


class EnvironmentFailure(UserError):
    """The machine or the network: no disk, no memory, no connection, no licence."""

    exit_code = 5


class DivergedError(UserError):
    """The loss or a gradient stopped being a finite number."""

    exit_code = 6


class BusyError(UserError):
    """Another process holds the lock of the same output."""

    exit_code = 75


class Interrupted(UserError):
    """SIGINT or SIGTERM; raise with the signal's number."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def command(main):
    """Wrap `main(argv)` so that it returns an exit status and a `UserError` becomes one line.

    `--debug` anywhere in the arguments shows the traceback as well.
    """

    @functools.wraps(main)
    def wrapped(argv: list[str] | None = None) -> int:
        argv = list(sys.argv[1:] if argv is None else argv)
        debug = "--debug" in argv
        try:
            main([argument for argument in argv if argument != "--debug"])
        except KeyboardInterrupt as raised:
            cause, error = raised, Interrupted(signal.SIGINT, "interrupted; run the same command again")
        except UserError as raised:
            cause = error = raised
        except MemoryError as raised:
            cause, error = raised, EnvironmentFailure(f"out of memory: {raised or 'an allocation failed'}")
        except OSError as raised:
            cause = raised
            error = EnvironmentFailure(f"{raised.filename or 'input/output'}: {raised.strerror or raised}")
        else:
            return 0
        if debug:
            traceback.print_exception(cause)
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code

    return wrapped

"""Errors that a user can act on: one sentence and one exit code each. Other exceptions are bugs, with a traceback."""

import contextlib
import errno
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path

from lm.core.messages import say, send_to_nowhere
from lm.core.paths import repository_root

# Advice for a file that differs from its recorded hash: it may be damaged in the cache too.
REPAIR = "run `python src verify`, which names the command that repairs it"

INTERRUPTED = "interrupted; run the same command again"
STDOUT = "standard output"  # as the name of a file

# What to do after an error of the system.
REMEDIES = {
    errno.EACCES: "check who may read and write it (`ls -l`); if it is another user's, work in a clone of it",
    errno.EPERM: "check who may read and write it (`ls -l`)",
    errno.EROFS: "the disk is mounted read-only; work on another one, or mount it for writing",
    errno.ENOENT: "check the name, and that the command runs at the repository's root",
    errno.ENOTDIR: "a folder of the path is a file; rename that file",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENAMETOOLONG: "use shorter names of folders and files",
    errno.ENOSPC: "free some space on that disk and run the same command again",
    errno.EDQUOT: "free some of your quota on that disk and run the same command again",
    errno.EFBIG: "the disk or `ulimit -f` allows no larger file; use another disk, or raise the limit",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "too many files are open on this machine; end other programs",
    errno.ENOMEM: "end other programs, or use a machine with more memory",
    errno.EIO: "the disk, or the network to it, fails; check it (`dmesg`), and run the same command again",
    errno.ESTALE: "the network disk has lost it; mount the disk again, and run the same command again",
    errno.ENODEV: "this disk cannot map files into memory; work on another one",
}


class UserError(Exception):
    """An error that a user can act on: the file or parameter, the actual and the needed value, and the remedy.

    Several errors that are found at once have one line each.
    """

    exit_code = 1


class ParamsError(UserError):
    """A parameter or an argument is wrong."""

    exit_code = 2


class DataError(UserError):
    """The text or the tokens cannot be used: empty, too short, a missing column."""

    exit_code = 3


class NoDocument(DataError):
    """No document begins in the requested range of characters."""


class IntegrityError(UserError):
    """A file differs from its record: truncated, changed, or made from other inputs."""

    exit_code = 4


class EnvironmentFailure(UserError):
    """The machine or the network fails: disk, memory, connection or licence."""

    exit_code = 5


class DivergedError(UserError):
    """The loss or a gradient stopped being a finite number."""

    exit_code = 6


class BusyError(UserError):
    """Another process writes the same output."""

    exit_code = 75


class Interrupted(UserError):
    """A signal asked to stop; raise with its number."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def reject_lost_experiment() -> None:
    """Raise EnvironmentFailure in DVC's copy (for --temp or the queue) of a shallow clone.

    DVC would run all stages there, report success, and lose the experiment: it cannot fetch a commit into a shallow
    clone.
    """
    root = repository_root()
    if root != Path() and (root / ".git" / "shallow").exists():
        found = "the clone has only a part of its history (git clone --depth), and DVC would lose this experiment"
        raise EnvironmentFailure(f"{root}: {found}; run `git fetch --unshallow` there first")


def _advice_on_parameters() -> str:
    """Return how to undo the edits of `dvc exp run -S` in the workspace; "" outside such a run, or in a copy."""
    if "DVC_EXP_NAME" not in os.environ or repository_root() != Path():
        return ""
    return "params.yaml, presets.yaml and sources.yaml keep what -S wrote; `make back` undoes it"


def describe_os_error(error: OSError) -> str:
    """Return a sentence about an error of the system: the file, if it is known, what happened, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    remedy = REMEDIES.get(error.errno or 0, "add --debug to the command of the stage or tool to see where")
    return f"{where}{error.strerror or error}; {remedy}"


@contextlib.contextmanager
def names_file(path: Path | str) -> Iterator[None]:
    """Add `path` to a system error that names no file, such as an error of reading, syncing or locking it."""
    try:
        yield
    except BrokenPipeError:  # of a print
        raise
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def exit_with_status(main: Callable[[list[str]], object]) -> Callable[..., int]:
    """Wrap `main(argv)`: return its status, or 0; print a `UserError`, with `--debug` its traceback too.

    If the reader of a pipe ends first, as `head` does, end quietly with the status of SIGPIPE.
    """

    @functools.wraps(main)
    def wrapped(argv: list[str] | None = None) -> int:
        """Run `main` with the arguments, by default those of the process; return the exit status."""
        argv = list(sys.argv[1:] if argv is None else argv)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # for terminals that cannot show every character

        # Run, and flush standard output.
        status = 0
        raised = None
        try:
            reject_lost_experiment()
            answer = main([argument for argument in argv if argument != "--debug"])
            status = answer if type(answer) is int else 0
        except (KeyboardInterrupt, MemoryError, OSError, UserError) as error:
            raised = error
        raised = _flush_output(raised)

        # Print the error.
        if raised is None:
            return status
        if isinstance(raised, BrokenPipeError) and raised.filename == STDOUT:
            return 128 + signal.SIGPIPE
        if "--debug" in argv:
            traceback.print_exception(raised)
        error = _as_user_error(raised)
        say("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        if isinstance(error, ParamsError | DataError) and (advice := _advice_on_parameters()):
            say(advice, file=sys.stderr)
        return error.exit_code

    return wrapped


def _flush_output(raised: BaseException | None) -> BaseException | None:
    """Flush standard output; return `raised`, or the error of flushing. Name the output in an error without a file.

    An error without a file may come from a print that left nothing to flush. Printing another line shows whether it
    does.
    """
    is_unnamed = isinstance(raised, OSError) and raised.filename is None
    try:
        print(end="\n" if is_unnamed else "", flush=True)
    except OSError as error:
        send_to_nowhere(sys.stdout)
        raised = raised or error
        if isinstance(raised, OSError) and raised.filename is None and raised.errno == error.errno:
            raised.filename = STDOUT
    return raised


def _as_user_error(raised: BaseException) -> UserError:
    """Return the error with its sentence and status."""
    if isinstance(raised, UserError):
        return raised
    if isinstance(raised, KeyboardInterrupt):
        return Interrupted(signal.SIGINT, INTERRUPTED)
    if isinstance(raised, OSError):
        return EnvironmentFailure(describe_os_error(raised))
    return EnvironmentFailure(f"out of memory: {raised or 'an allocation failed'}")

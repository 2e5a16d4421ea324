"""Start a process: its slow imports, during which somebody may interrupt it or edit the code."""

import importlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from lm.core.errors import INTERRUPTED, EnvironmentFailure, IntegrityError, exit_with_status
from lm.core.messages import say_in_handler

OURS = ("evidence", "lm", "tools", "extras")  # packages that are not installed


def import_module(name: str) -> ModuleType:
    """Import a module. A SIGINT meanwhile ends the process at once with one sentence: there is nothing to clean up.

    A KeyboardInterrupt is not enough, because some packages lose it while they are imported. Raise EnvironmentFailure
    if a package is not installed for this Python.
    """
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler  # it may be ignored, for a process in the background
    if is_default:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise
        remedy = "run `source .venv/bin/activate`, or `make .venv/ready` if there is no .venv"
        raise EnvironmentFailure(f"{sys.executable} has no package {package}; {remedy}") from None
    finally:
        if is_default:
            signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, _) -> None:
    say_in_handler(f"error: {INTERRUPTED}")
    os._exit(128 + number)


def start_stage(file: str) -> int:
    """Import the file of a stage as a module, and run its `main` with the arguments of the process; return the status.

    A stage records its inputs when `main` begins, so code that was edited after its import would not be the code that
    runs: stop then. Code is compared by content, because network disks have other clocks, and Git writes old content at
    new times.
    """
    return exit_with_status(lambda _: _import_and_run(Path(file)))()


def _import_and_run(path: Path) -> int:
    before = _read_code(path)
    stage = import_module(path.stem)
    if _read_code(path) != before:
        raise IntegrityError(f"{path.parent}: the code was edited while {path.name} began; run the same command again")
    return stage.main()


def _read_code(path: Path) -> dict[Path, bytes]:
    """Return the code of a stage and of the library."""
    files = [path, *path.parent.glob("lm/**/*.py")]
    return {file: file.read_bytes() for file in files}

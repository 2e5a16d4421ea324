"""Processes that tests start: the end of a test ends them, whatever happened.

Each is the leader of a group of processes, and its children are in that group.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

# The one time limit of all waits, against hanging: an event ends each of them. pytest's own limit is longer.
CAP_S = 600
# The environment of a program that computes with the instructions that every x86-64 processor has.
GENERIC = {"ATEN_CPU_CAPABILITY": "default", "NUMBA_CPU_NAME": "generic"}
HELD = Path(__file__).with_name("held")  # its sitecustomize.py holds programs
# What is to be done at the end of the test.
AT_END = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def ended_processes() -> Iterator[None]:
    """End what the test has started."""
    yield
    AT_END.close()


def started(*command, **options) -> subprocess.Popen:
    """Start a program, which ends with the test; `options` are those of Popen."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    AT_END.callback(process.wait, CAP_S)
    AT_END.callback(end_group, process.pid)
    return process


def hold_at_rename(pattern: str, folder: Path) -> dict[str, str]:
    """Return the environment of programs that are held before they rename a file to a path that matches the pattern.

    The program then makes the file `held` in `folder`, and waits for the file `go` there.
    """
    for name in ("held", "go"):
        (folder / name).unlink(missing_ok=True)
    return {"PYTHONPATH": str(HELD), "HOLD_AT": pattern, "HOLD_IN": str(folder)}


def end_group(leader: int) -> None:
    """Kill a process and the group that it leads; return once they have ended, and their locks with them."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(leader, signal.SIGKILL)
    wait_for(lambda: not living_members(leader))


def living_members(leader: int) -> list[psutil.Process]:
    """Return the processes of a group that run, its leader among them."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if leader in (process.pid, os.getpgid(process.pid)) and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def wait_for(condition: Callable[[], object]) -> None:
    """Return once the condition holds; raise AssertionError after CAP_S."""
    end = time.monotonic() + CAP_S
    while not condition():
        assert time.monotonic() < end, f"waited {CAP_S} s in vain"
        time.sleep(0.01)

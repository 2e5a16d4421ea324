"""Load shim.c into this process, and watch or disturb the file operations of its children below one folder."""

import ctypes
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("shim.c")
KINDS = ("open", "write", "fsync", "rename", "mmap")  # the order of the enum in shim.c
SHORT = 0  # instead of an errno: half of the bytes are written


class Fault(NamedTuple):
    """The call number `at` (from 1) of `kind` fails with `error`, an errno or SHORT."""

    kind: str
    at: int
    error: int

    def __str__(self) -> str:
        return f"{errno.errorcode.get(self.error, 'short')} at {self.kind} {self.at}"


class Operation(NamedTuple):
    """A file operation that succeeded. `number`: an offset, a new size, or whether an open truncates."""

    call: str
    path: str
    other: str
    number: int
    data: bytes


def preload() -> None:
    """Run this program again with shim.c preloaded, unless it is, and exit with its status."""
    if "TORTURE_SHIM" in os.environ:
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), "TORTURE_SHIM": "1", "OMP_NUM_THREADS": "1"}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


def arm(folder: Path, log: Path | None = None, fault: Fault | None = None) -> None:
    """Watch the calls of this process below `folder`: log them, let one fail, or both."""
    descriptor = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kind, at, error = -1, 0, 0  # no fault
    if fault:
        kind = KINDS.index(fault.kind)
        at = fault.at
        error = fault.error
    ctypes.CDLL(None).arm(os.fsencode(folder), descriptor, kind, ctypes.c_long(at), error)


def mark() -> None:
    """Log that the work so far is done: a power cut may not lose it any more."""
    ctypes.CDLL(None).mark()


def disarm() -> dict[str, int]:
    """Stop watching; return how many calls of each kind there were."""
    library = ctypes.CDLL(None)
    library.disarm()
    return {kind: library.calls_of(number) for number, kind in enumerate(KINDS)}


def read_log(log: Path, folder: Path) -> list[Operation]:
    """Return the operations of a log, with paths relative to `folder`."""
    operations = []
    with open(log, "rb") as file:
        while head := file.readline():
            call, path, other, number, size = os.fsdecode(head).rstrip("\n").split("\t")
            path = os.path.relpath(path, folder) if path else ""
            other = os.path.relpath(other, folder) if other else ""
            data = file.read(int(size))
            operations.append(Operation(call, path, other, int(number), data))
    return operations

"""End with 75 if DVC or a stage works in this repository; `make back` asks before it changes files.

    python src check_idle

A process that was killed is not taken for one that works.
"""

import fcntl
from pathlib import Path

import psutil

from lm.core.errors import BusyError, exit_with_status
from lm.core.files import read_json
from tools.common.arguments import tool_parser

RWLOCK = Path(".dvc/tmp/rwlock")


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise BusyError if a process works here."""
    tool_parser("check_idle", __doc__).parse_args(argv)
    # While DVC runs a stage, this file has its process. After a kill it has one that has ended.
    writers = read_json(RWLOCK).get("write", {}) if RWLOCK.exists() else {}
    busy = [RWLOCK for writer in writers.values() if psutil.pid_exists(writer["pid"])]
    # Between stages DVC holds a lock. A stage has one of its output, and may go on when DVC was killed.
    locks = [RWLOCK.with_name("lock"), *Path("data").glob(".*.lock"), *Path("data").glob("*/.*.lock")]
    busy += [lock for lock in locks if lock.exists() and is_locked(lock)]
    if busy:
        raise BusyError(f"{busy[0]}: DVC or a stage works here; wait until it ends, or stop it, and try again")


def is_locked(path: Path) -> bool:
    """Return whether a process has locked a file."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

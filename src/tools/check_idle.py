"""End with 75 if DVC or a stage works in this repository; `make back` asks before it changes files.

    python src check_idle

A process that was killed is not taken for one that works.
"""

from pathlib import Path

import psutil

from lm.core.errors import BusyError, exit_with_status
from lm.core.files import read_json, try_lock
from tools.record.arguments import tool_parser

RWLOCK = Path(".dvc/tmp/rwlock")


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise BusyError if a process works here."""
    tool_parser("check_idle", __doc__).parse_args(argv)
    # While DVC runs a stage, this file has its process. After a kill it has one that has ended.
    writers = read_json(RWLOCK).get("write", {}) if RWLOCK.exists() else {}
    busy = [RWLOCK for writer in writers.values() if psutil.pid_exists(writer["pid"])]
    # Between stages DVC holds a lock. A stage has one of its output, and may go on when DVC was killed.
    for pattern in (".dvc/tmp/lock", "data/.*.lock", "data/*/.*.lock"):
        for path in Path().glob(pattern):
            with open(path) as file:
                if not try_lock(file, path):
                    busy.append(path)
    if busy:
        raise BusyError(f"{busy[0]}: DVC or a stage works here; wait until it ends, or stop it, and try again")

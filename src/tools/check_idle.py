"""Exit with status 75 if DVC or a stage is running in this repository; `make back` checks this before it changes files.

    python src check_idle

A killed process does not count as running.
"""

from pathlib import Path

import psutil

from lm.core.errors import BusyError, exit_with_status
from lm.core.files import read_json, try_lock
from tools.record.arguments import tool_parser

RWLOCK = Path(".dvc/tmp/rwlock")


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise BusyError if DVC or a stage is running here."""
    tool_parser("check_idle", __doc__).parse_args(argv)
    # While DVC runs a stage, this file names its process. After a kill, that process has ended.
    writers = read_json(RWLOCK).get("write", {}) if RWLOCK.exists() else {}
    busy = [RWLOCK for writer in writers.values() if psutil.pid_exists(writer["pid"])]
    # Between stages DVC holds a lock. A stage holds the lock of its output, and may go on after DVC was killed.
    for pattern in (".dvc/tmp/lock", "data/.*.lock", "data/*/.*.lock"):
        for path in Path().glob(pattern):
            with open(path) as file:
                if not try_lock(file, path):
                    busy.append(path)
    if busy:
        raise BusyError(f"{busy[0]}: DVC or a stage is running here; wait until it ends, or stop it, and try again")

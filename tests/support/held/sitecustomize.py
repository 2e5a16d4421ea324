"""Python imports this when it starts, if this folder is in PYTHONPATH: it holds a process before it renames a file.

A file whose new path matches HOLD_AT, as a shell would match it. In the folder HOLD_IN the process then makes the file
`held`, and waits for the file `go`, or for ten minutes.
"""

import fnmatch
import os
import sys
import time

HOLD_AT = os.environ["HOLD_AT"]
FOLDER = os.environ["HOLD_IN"]


def hold(event: str, arguments: tuple) -> None:
    if event != "os.rename" or not fnmatch.fnmatch(os.path.abspath(os.fsdecode(arguments[1])), HOLD_AT):
        return
    open(os.path.join(FOLDER, "held"), "w").close()
    end = time.monotonic() + 600
    while not os.path.exists(os.path.join(FOLDER, "go")) and time.monotonic() < end:
        time.sleep(0.01)


sys.addaudithook(hold)

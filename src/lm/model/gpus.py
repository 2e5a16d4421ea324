"""Divide the GPUs of a machine among processes that do not know of each other, such as runs of DVC's queue."""

import fcntl
import os
import tempfile
from pathlib import Path


def take_free_gpu(names: list[str], folder: Path | None = None) -> int:
    """Return the index of the first GPU that no process of this user has taken, or 0 if all are taken.

    `names` identify the GPUs on this machine, whatever CUDA_VISIBLE_DEVICES hides. The GPU is taken until the process
    ends: the lock of a file in `folder` (the temporary folder).
    """
    for index, name in enumerate(names):
        path = (folder or Path(tempfile.gettempdir())) / f"gpu-{os.getuid()}-{name}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return index  # the descriptor stays open, and with it the lock
    return 0

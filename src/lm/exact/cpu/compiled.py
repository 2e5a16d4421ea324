"""Compile loops with numba, and cache the compiled code beside them.

numba compiles a cached loop again if the file of the loop has changed. A loop of lm.exact also contains constants and
code of other files of lm.exact, so here a change of any of them counts.
"""

import contextlib
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

# Without `fastmath`, LLVM neither joins nor reorders additions and multiplications.
OPTIONS = {"nogil": True, "error_model": "numpy"}
DAMAGED = (EOFError, pickle.UnpicklingError, OSError, AttributeError, ImportError, IndexError, ValueError)


def loop(function: Callable) -> Any:
    """Return the function, compiled at its first call for the types of its arguments."""
    compiled: Any = njit(**OPTIONS)(function)
    with contextlib.suppress(RuntimeError):  # no folder is writable: each process compiles
        compiled._cache = LoopCache(function)
    return compiled


class LoopCache(FunctionCache):
    """The cached code of a loop. Damaged code is compiled again, and a cache that cannot be written is left out."""

    def __init__(self, function: Callable):
        super().__init__(function)
        self._cache_file._source_stamp = newest_change()

    def load_overload(self, sig, target_context):
        """Return the cached code for the types `sig`, or None."""
        try:
            return super().load_overload(sig, target_context)
        except DAMAGED:
            return None

    def save_overload(self, sig, data):
        """Cache the code for the types `sig`, if that is possible."""
        try:
            super().save_overload(sig, data)
        except DAMAGED:
            self.replace_index(sig, data)

    def replace_index(self, sig, data) -> None:
        """Replace a damaged index."""
        with contextlib.suppress(OSError):  # the folder cannot be written, or the disk is full: each process compiles
            self.flush()
            super().save_overload(sig, data)


@functools.cache  # the files as they are when the first loop is defined
def newest_change() -> tuple:
    """Return the times and sizes of all files of lm.exact and of its folders."""
    stats = [path.stat() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    return tuple((stat.st_mtime, stat.st_size) for stat in stats)

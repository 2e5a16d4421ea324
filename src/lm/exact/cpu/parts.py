"""Threads that compute the parts of a loop.

A loop whose last arguments are `part, parts` computes that part of its result; parts may run at the same time.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.threads import get_num_threads

PART_WORK = 2**18  # operations that are worth a thread: waking one takes as long


@functools.cache
def pool() -> ThreadPoolExecutor:
    """Return the threads that compute parts of a loop besides the calling one."""
    return ThreadPoolExecutor(os.cpu_count() or 1)


os.register_at_fork(after_in_child=pool.cache_clear)  # a child process has none of these threads


def run(compute: Callable, *arguments, work: int) -> None:
    """Call a loop in parts, at most one for each thread; arguments are tensors and numbers.

    `work` is about the number of simple operations.
    """
    arrays = [array(each) if isinstance(each, Tensor) else each for each in arguments]
    worth_a_thread = work // PART_WORK
    parts = max(1, min(get_num_threads(), worth_a_thread))

    # Other threads compute the other parts meanwhile.
    others = [pool().submit(compute, *arrays, part, parts) for part in range(1, parts)]
    compute(*arrays, 0, parts)
    for other in others:
        other.result()  # raises the error of a part


def array(x: Tensor) -> np.ndarray:
    """Return the numbers of x, which is contiguous, without copying them."""
    assert x.is_contiguous()
    return x.detach().numpy()


@loop
def rows_of_part(number, part, parts):
    """Return the range of a part of `number` rows."""
    first = number * part // parts
    last = number * (part + 1) // parts
    return range(first, last)

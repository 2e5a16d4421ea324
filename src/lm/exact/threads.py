"""Threads for the cores that other processes leave free.

The threads of a step wait for each other after each product. If one of them shares its core with another process, all
of them wait, and one thread less is faster (benchmarks/results/busy_cores.json).
"""

import os
import time

import psutil
import torch

from lm.core.numerics import Numerics

LOOK_EVERY_S = 2.0
FIRST_LOOK_S = 0.2

_num_threads: int | None = None  # threads of exact numerics, once set
_tuned: tuple[int, int] | None = None  # by the last tuner: torch's threads as it left them, and its maximum


def set_num_threads(number: int, numerics: Numerics) -> None:
    """Compute with this many threads from now on.

    In exact numerics torch's own operations use one thread. They are short, and torch's other threads would wait for
    the next one by keeping busy the cores that the loops need: with two threads on two cores, a step took 1.4 times as
    long.
    """
    global _num_threads, _tuned
    _tuned = None
    _num_threads = number if numerics == "exact" else None
    torch.set_num_threads(1 if numerics == "exact" else number)


def get_num_threads() -> int:
    """Return the number of threads that compute."""
    return torch.get_num_threads() if _num_threads is None else _num_threads


class ThreadTuner:
    """Keep the number of threads at the number of cores that other processes leave free.

    Use it only if the bits of the results do not depend on that number. The number is fixed with `adapts=False`, and if
    OMP_NUM_THREADS is set.
    """

    def __init__(self, numerics: Numerics = "fast", adapts: bool = True):
        self.numerics: Numerics = numerics
        self.most = self.threads = _most_threads()
        self._set()
        self.adapts = adapts and "OMP_NUM_THREADS" not in os.environ
        if self.adapts:
            self._looked, self._busy_s = time.monotonic(), _foreign_cpu_seconds()
            time.sleep(FIRST_LOOK_S)
            self._look()

    def adapt(self) -> None:
        """Measure again if LOOK_EVERY_S seconds have passed; call it between steps."""
        if self.adapts and time.monotonic() - self._looked > LOOK_EVERY_S:
            self._look()

    def warnings(self) -> list[str]:
        """Return a warning if other processes use a core that a thread could use, or an empty list."""
        if self.threads == self.most:
            return []
        used = f"other processes use {self.foreign:.1f} of {len(_usable_cores())} cores"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return [f"{used}; this one takes {threads} instead of {self.most} until they end"]

    def _look(self) -> None:
        """Measure the cores that other processes used since the last measurement, and set the number of threads."""
        now = time.monotonic()
        busy_s = _foreign_cpu_seconds()
        if busy_s is None or self._busy_s is None:
            # Nothing can be measured here: take all threads from now on.
            self.adapts, self.threads = False, self.most
        else:
            self.foreign = max(0.0, (busy_s - self._busy_s) / (now - self._looked))  # cores
            self.threads = max(1, min(self.most, len(_usable_cores()) - round(self.foreign)))
        self._looked = now
        self._busy_s = busy_s
        self._set()

    def _set(self) -> None:
        """Compute with `threads` from now on."""
        global _tuned
        set_num_threads(self.threads, self.numerics)
        _tuned = torch.get_num_threads(), self.most


def _most_threads() -> int:
    """Return the number of threads that torch has, or had before an earlier tuner of this process lowered it."""
    number = torch.get_num_threads()
    return _tuned[1] if _tuned is not None and _tuned[0] == number else number


def _usable_cores() -> list[int]:
    """Return the numbers of the cores on which this process may run; of all cores where the system cannot tell."""
    affinity = getattr(psutil.Process(), "cpu_affinity", None)
    return affinity() if affinity else list(range(psutil.cpu_count() or 1))


def _foreign_cpu_seconds() -> float | None:
    """Return the processor time that other processes have used so far on the cores of this one.

    Time with lowered priority (nice) does not count, because such a process gives way to this one. Return None if the
    system lists fewer cores than it numbers, in an LXC container or with cores that are switched off.
    """
    times = psutil.cpu_times(percpu=True)
    cores = _usable_cores()
    if max(cores) >= len(times):
        return None
    total = sum(times[core].user + times[core].system for core in cores)
    own = psutil.Process().cpu_times()
    return total - own.system - (own.user if os.nice(0) <= 0 else 0.0)

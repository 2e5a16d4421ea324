"""What every benchmark shares: the machine, an idle check, interleaved rounds, ratios, a JSON of it all.

A time alone says little: another load of the machine, or another machine, changes it. So the cases
take turns within each round, in turned order every other time, and what is reported beside the
seconds is the ratio of a peer to ours within a round.

    busy = [busy_share()]
    seconds = interleave({"ours": run_ours, "peer": run_peer}, rounds=5)
    busy.append(busy_share())
    write_results(path, "name", seconds=seconds, ours="ours", busy=busy, unit_of_the_input=…)
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lm.core.files import write_json

IDLE_SHARE = 0.05  # a machine whose other processes use more of it than this is not idle


def hardware() -> dict:
    """The machine: processor, cores that this process may use, memory in GiB, system, Python."""
    return {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor_name() -> str:
    """The processor's name where Linux tells it, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def versions(*packages: str) -> dict[str, str]:
    """The installed version of each package; those that are absent are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def busy_share(seconds: float = 1.0) -> float:
    """The share of all cores (0 to 1) that others use while this process sleeps for `seconds`."""
    return psutil.cpu_percent(seconds) / 100


_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stderr=subprocess.STDOUT)
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run_measured(command: list[str], log: Path, **options) -> int:
    """Run a command, what it prints into `log`; return the most memory that one of its processes took, in MB.

    A small process stands between, for Linux counts the caller's own peak into that of what it starts.
    `options` are subprocess.run's. Raises RuntimeError with the last lines of the log if the command fails.
    """
    peak = log.with_suffix(".peak")
    with open(log, "w") as file:
        done = subprocess.run([sys.executable, "-S", "-c", _MEASURE, str(peak), *command], stdout=file, **options)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{log.read_text()[-2000:]}")
    return round(int(peak.read_text()) * (1 if sys.platform == "darwin" else 1024) / 1e6)


def interleave(
    cases: dict[str, Callable[[], object]], rounds: int, fewer: dict[str, int] | None = None
) -> dict[str, list[float]]:
    """Time each case once a round, the cases in turned order every other round; return the seconds.

    `fewer` names slow cases that run in the first rounds only, and the number of these rounds. What a case has left for
    the kernel to write is written before the next one begins, whose time it would lengthen.
    """
    seconds = {name: [] for name in cases}
    for index in range(rounds):
        names = [name for name in cases if index < (fewer or {}).get(name, rounds)]
        for name in names if index % 2 == 0 else reversed(names):
            os.sync()
            start = time.perf_counter()
            cases[name]()
            seconds[name].append(time.perf_counter() - start)
            print(f"round {index + 1} of {rounds}: {name} {seconds[name][-1]:.3f} s", flush=True)
    return seconds


def summary(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(seconds: dict[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """How many times longer each peer takes than `ours` within a round: median, min and max."""
    return {
        name: summary([peer / own for peer, own in zip(times, seconds[ours], strict=False)])
        for name, times in seconds.items()
        if name != ours
    }


def write_results(
    path: Path | str, name: str, *, seconds: dict[str, list[float]], ours: str, busy: list[float], **details
) -> dict:
    """Write and return everything; a machine that was not idle is named as such, also on stderr.

    `busy` holds the shares that busy_share() measured around the rounds; `details` what else the
    benchmark has to say (versions, input, rates).
    """
    idle = max(busy) <= IDLE_SHARE
    if not idle:
        print(f"warning: others used {max(busy):.0%} of the machine; measure again when it is idle", file=sys.stderr)
    results = {
        "benchmark": name,
        "hardware": hardware(),
        "idle": idle,
        "busy_shares": busy,
        **details,
        "seconds": seconds,
        "ours": ours,
        "times_longer_than_ours": ratios(seconds, ours),
    }
    write_json(path, results)
    return results

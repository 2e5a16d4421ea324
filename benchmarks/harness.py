"""What every benchmark shares: the machine, an idle check, interleaved rounds, ratios, results; a clone.

A time alone says little: another load of the machine, or another machine, changes it. So the cases take turns within
each round, in reversed order every other time, and what is reported beside the seconds is the ratio of a peer to ours
within a round.

    busy = [busy_share()]
    seconds = interleave({"ours": run_ours, "peer": run_peer}, rounds=5)
    busy.append(busy_share())
    write_results("name", seconds=seconds, ours="ours", busy=busy, unit_of_the_input=…)
"""

import importlib.metadata
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lm.core.files import write_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DECIDING = ("src", "params.yaml", "presets.yaml", "sources.yaml", "dvc.yaml", "dvc.lock", "metrics", "requirements")
IDLE_SHARE = 0.05  # a machine whose other processes use more of it than this is not idle


def hardware() -> dict:
    """Return the processor, cores that this process may use, memory in GiB, system, Python."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    found = {}
    for line in lines:
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    if "cpu family" in found:  # "AMD EPYC" alone is several
        processor = "{model name} (family {cpu family}, model {model})".format_map(found)
    else:
        processor = platform.processor()
    return {
        "processor": processor,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the installed version of each package; those that are absent are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def busy_share(seconds: float = 1.0) -> float:
    """Return the share of all cores (0 to 1) that others use while this process sleeps for `seconds`."""
    return psutil.cpu_percent(seconds) / 100


# Rounds and ratios.


def interleave(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each case once a round, in reversed order every other round; return the seconds."""
    seconds = {name: [] for name in cases}
    for index in range(rounds):
        for name in cases if index % 2 == 0 else reversed(cases):
            start = time.perf_counter()
            cases[name]()
            seconds[name].append(time.perf_counter() - start)
            print(f"round {index + 1} of {rounds}: {name} {seconds[name][-1]:.3f} s", flush=True)
    return seconds


def ratios(seconds: dict[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """Return how many times longer each peer takes than `ours` within a round: median, min and max."""
    found = {}
    for name, times in seconds.items():
        if name != ours:
            of_rounds = [peer / own for peer, own in zip(times, seconds[ours], strict=False)]
            found[name] = {"median": statistics.median(of_rounds), "min": min(of_rounds), "max": max(of_rounds)}
    return found


def write_results(name: str, *, seconds: dict[str, list[float]], ours: str, busy: list[float], **details) -> None:
    """Write results/NAME.json; a machine that was not idle is named as such, also on stderr.

    `busy` holds the shares that busy_share() measured around the rounds; `details` what else the benchmark has to say
    (versions, input, rates).
    """
    idle = max(busy) <= IDLE_SHARE
    if not idle:
        print(f"warning: others used {max(busy):.0%} of the machine; measure again when it is idle", file=sys.stderr)
    found = {
        "benchmark": name,
        "hardware": hardware(),
        "idle": idle,
        "busy_shares": busy,
        **details,
        "seconds": seconds,
        "ours": ours,
        "times_longer_than_ours": ratios(seconds, ours),
    }
    write_json(RESULTS / f"{name}.json", found)


# Commands in a clone.


def run(folder: Path, command: str) -> str:
    """Run a command in a folder, with the programs of this environment first; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DVC_ROOT", "PYTHONPATH")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    words = shlex.split(command)
    done = subprocess.run(words, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout


def clone_of_last_commit(parent: Path) -> Path:
    """Clone the last commit into `parent`, with the outputs of the pipeline; return the clone.

    It shares the files of DVC's cache, but not its records of runs: the stages that are out of date do run.
    """
    if changed := run(ROOT, f"git status --porcelain {' '.join(DECIDING)}"):
        sys.exit(f"error: the clone would lack uncommitted changes; commit them first:\n{changed}")
    clone = parent / "clone"
    run(ROOT, f"git clone --quiet . {clone}")
    run(clone, "git switch --quiet -C main")
    (clone / ".dvc" / "cache").mkdir()
    (clone / ".dvc" / "cache" / "files").symlink_to(Path(run(ROOT, "dvc cache dir").strip()) / "files")
    run(clone, "dvc checkout --quiet")
    return clone

"""What every benchmark shares: the machine, an idle check, interleaved rounds, ratios, results; a stage by itself.

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
import yaml

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


def interleave(
    cases: dict[str, Callable[[], object]], rounds: int, fewer: dict[str, int] | None = None
) -> dict[str, list[float]]:
    """Time each case once a round, in reversed order every other round; return the seconds.

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
    """Return the median, the smallest and the largest value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(seconds: dict[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """Return how many times longer each peer takes than `ours` within a round: median, min and max."""
    found = {}
    for name, times in seconds.items():
        if name != ours:
            # A slow peer runs in the first rounds only.
            found[name] = summary([peer / own for peer, own in zip(times, seconds[ours], strict=False)])
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


# A stage of the pipeline by itself, in a folder that holds links to the code and copies of the parameter files.


def stage_folder(folder: Path) -> Path:
    """Make `folder` what a stage takes for the repository: the same code, parameters of its own, no data."""
    for name in ("data/init", "data/local", "data/processed_datasets"):
        (folder / name).mkdir(parents=True)
    for name in ("src", "dvc.yaml", "requirements.txt", "requirements"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    return folder


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


def change_params(folder: Path, values: dict) -> None:
    """Set parameters by dotted name in the file that has the first section; a missing section below it is created."""
    for name, value in values.items():
        *parents, last = name.split(".")
        files = ["params.yaml", "presets.yaml", "sources.yaml"]
        contents = {each: yaml.safe_load((folder / each).read_text()) for each in files}
        file = next(each for each in files if parents[0] in contents[each])
        section = contents[file]
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
        (folder / file).write_text(yaml.safe_dump(contents[file], sort_keys=False))


def read_values(texts: list[str]) -> dict:
    """Return the parameters of `--set NAME=VALUE …`."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        values[name] = yaml.safe_load(value)
    return values


def run_stage(folder: Path, stage: str) -> dict[str, float]:
    """Run the stage's command of dvc.yaml in `folder`; return its seconds and its peak of resident memory."""
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"}
    start = time.perf_counter()
    peak_mb = run_measured(command_of(stage), folder / f"{stage}.log", folder, environment)
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 2), "peak_rss_gib": round(peak_mb * 1e6 / 2**30, 3)}


def command_of(stage: str) -> list[str]:
    """Return the words of the stage's command of dvc.yaml, with this Python."""
    command = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["cmd"]
    if isinstance(command, list):
        command = command[-1]  # the first one checks parameters
    _, *arguments = shlex.split(command)
    return [sys.executable, *arguments]


_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stderr=subprocess.STDOUT)
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run_measured(command: list[str], log: Path, cwd: Path, environment: dict[str, str]) -> int:
    """Run a command, what it prints into `log`; return the most memory that one of its processes took, in MB.

    A small process stands between, for Linux counts the caller's own peak into that of what it starts. Raises
    RuntimeError with the last lines of the log if the command fails.
    """
    peak = log.with_suffix(".peak")
    between = [sys.executable, "-S", "-c", _MEASURE, str(peak), *command]
    with open(log, "w") as file:
        done = subprocess.run(between, stdout=file, cwd=cwd, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{log.read_text()[-2000:]}")
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return round(int(peak.read_text()) * unit_bytes / 1e6)

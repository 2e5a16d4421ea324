"""Write the results of a script, with the commit, the command and the machine."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

from lm.core.files import write_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def write_result(path: Path, **found) -> None:
    """Write the commit, the command and the machine, then the results."""
    write_json(path, {"commit": commit(), "command": command(), "hardware": hardware(), **found})


def commit() -> str:
    """Return the last commit, ending in `-dirty` if files differ from it; empty outside of a Git repository."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(describe, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def command() -> str:
    """Return the command of this process."""
    return f"PYTHONPATH=src:benchmarks {shlex.join(['python', *sys.argv])}"


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
    """Return the installed version of each package."""
    return {package: importlib.metadata.version(package) for package in packages}

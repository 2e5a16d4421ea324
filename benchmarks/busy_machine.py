"""Training steps of the default model beside foreign processes that never sleep: with and without our settings.

    PYTHONPATH=src:benchmarks python benchmarks/busy_machine.py [--rounds 5] [--seconds 6]

A foreign process counts in a loop and keeps one core busy. Every measurement is a process of its own, because the
settings of lm.core.environment are read when torch is loaded; "without" leaves GOMP_SPINCOUNT to libgomp. The settings
take turns in every round, and the ratio to the idle machine is taken within a round. Writes
benchmarks/results/busy_machine.json.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import lm.core.environment

from harness import busy_share, hardware, ratios, versions
from lm.core.files import write_json

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = (0, 1, 2)  # busy processes
WITH, WITHOUT = "with our settings", "without"
LIBGOMP_SPINS = "9223372036854775807"  # what libgomp does by itself, about: it spins for minutes
STEP = """
import sys, time
import lm.core.environment
import torch
from document_mask import Training, draw_stream
from lm.core.params import read_section
from lm.model.device import keep_freed_memory
from lm.train.config import TrainParams
keep_freed_memory()
training = Training(draw_stream(1900), read_section("params.yaml", "train", TrainParams), torch.float32)
times, end = [], time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end or len(times) < 4:
    started = time.perf_counter()
    training()
    times.append(time.perf_counter() - started)
print(sorted(times[1:])[len(times[1:]) // 2])
"""


@contextlib.contextmanager
def foreign_processes(count: int):
    """Keep `count` cores busy meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def step_seconds(settings: dict[str, str], seconds: float) -> float:
    """Return the median time of a step in a new process with these settings."""
    environment = {name: value for name, value in os.environ.items() if name not in lm.core.environment.SETTINGS}
    environment |= {"PYTHONPATH": "src:benchmarks"} | settings
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(seconds)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    """Measure each number of foreign processes with both settings, in turns, and write the results."""
    parser = argparse.ArgumentParser(description="Training steps beside busy processes.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of steps in a measurement (6)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "busy_machine.json")
    args = parser.parse_args()
    busy, settings = [busy_share()], {WITH: {}, WITHOUT: {"GOMP_SPINCOUNT": LIBGOMP_SPINS}}
    seconds = {(foreign, name): [] for foreign in FOREIGN for name in settings}
    for _ in range(args.rounds):
        for foreign, name in seconds:
            with foreign_processes(foreign):
                seconds[foreign, name].append(step_seconds(settings[name], args.seconds))
    busy.append(busy_share())
    found = [
        {
            "foreign_processes": foreign, "settings": name, "step_ms": 1000 * statistics.median(times),
            "times_idle": ratios(times, seconds[0, name]), "times_idle_with": ratios(times, seconds[0, WITH]),
        }
        for (foreign, name), times in seconds.items()
    ]  # fmt: skip
    write_json(
        args.out, {"hardware": hardware(), "versions": versions("torch"), "idle": max(busy) <= 0.1, "steps": found}
    )
    for each in found:
        name = f"{each['foreign_processes']} foreign, {each['settings']}"
        print(f"{name:30} {each['step_ms']:6.0f} ms, {each['times_idle']}")


if __name__ == "__main__":
    main()

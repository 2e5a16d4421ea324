"""Training steps of the default model beside processes that never sleep, with several choices of threads.

    PYTHONPATH=src:benchmarks python benchmarks/busy_cores.py [--rounds 6] [--steps 12]

Each setting is a process of its own, since libgomp reads its environment when torch is loaded. The processes take
turns; 0, 1 and 2 busy processes (`while True: pass`) run beside all of them. "free cores" is lm.model.threads, as the
stage train uses it. Writes benchmarks/results/busy_cores.json: the seconds of a step, and their ratio to those of "free
cores" on an idle machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from harness import IDLE_SHARE, busy_share, hardware, versions
from lm.core.files import write_json

ROOT = Path(__file__).resolve().parent.parent
OURS = "free cores"
SETTINGS = {
    OURS: {},
    "all cores": {"ADAPTS": "no"},
    "all cores, GOMP_SPINCOUNT=1000": {"ADAPTS": "no", "GOMP_SPINCOUNT": "1000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
WORKER = """
import lm.core.environment, os, sys, time
from document_mask import Training, draw_stream
from lm.core.params import read_section
from lm.model import device
from lm.model.threads import FreeCores
from lm.train.config import TrainParams
import torch

device.keep_freed_memory()
step = Training(draw_stream(1900), read_section("params.yaml", "train", TrainParams), torch.float32)
most = torch.get_num_threads()
step()
for line in sys.stdin:
    torch.set_num_threads(most)
    cores = FreeCores("ADAPTS" not in os.environ)  # the other settings, whose turns are over, do not count
    started = time.perf_counter()
    for _ in range(int(line)):
        cores.adapt()
        step()
    print((time.perf_counter() - started) / int(line), flush=True)
"""


class Worker:
    """A process that trains with one setting."""

    def __init__(self, environment: dict[str, str]):
        inherited = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "ADAPTS")}
        inherited["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"
        command = [sys.executable, "-c", WORKER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, env=inherited | environment, **pipes)
        self(1)

    def __call__(self, steps: int) -> float:
        """Take `steps` steps; return the seconds of one."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(num_busy: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds of a step, one figure a round, of each setting beside `num_busy` busy processes."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    workers: dict[str, Worker] = {}
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    try:
        workers |= {name: Worker(environment) for name, environment in SETTINGS.items()}
        for number in range(rounds):
            for name in list(SETTINGS)[:: 1 if number % 2 else -1]:
                seconds[name].append(workers[name](steps))
    finally:
        for worker in workers.values():
            worker.stop()
        for process in busy:
            process.kill()
    return seconds


def main() -> None:
    """Measure, print the figures and write them."""
    parser = argparse.ArgumentParser(description="Seconds of a training step beside busy processes.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12, help="of a setting's turn")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "busy_cores.json")
    args = parser.parse_args()
    others = busy_share()
    results = {str(number): measure(number, args.rounds, args.steps) for number in (0, 1, 2)}
    idle = statistics.median(results["0"][OURS])
    summary = {
        number: {
            name: {"median_s": statistics.median(found), "range_s": [min(found), max(found)],
                   "times_idle": statistics.median(found) / idle}
            for name, found in seconds.items()
        }
        for number, seconds in results.items()
    }  # fmt: skip
    for number, settings in summary.items():
        print(f"beside {number} busy processes")
        for name, figures in settings.items():
            print(f"  {name:32s} {1e3 * figures['median_s']:6.0f} ms, {figures['times_idle']:.2f} times our idle step")
    shares = [others, busy_share()]
    found = {"benchmark": "busy_cores", "hardware": hardware(), "idle": max(shares) < IDLE_SHARE, "busy_shares": shares}
    write_json(args.out, found | {"versions": versions("torch"), "busy_processes": summary})


if __name__ == "__main__":
    main()

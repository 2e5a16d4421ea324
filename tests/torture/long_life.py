"""Train for very many tiny steps, while the clock jumps and the disk of .runs fills up, and watch what grows.

    PYTHONPATH=src:tests python tests/torture/long_life.py [--steps 50000]

A checkpoint is saved every 2 seconds. At half of the steps none can be written any more (a limit on the size of files
stands in for the full disk): the stage ends with 5 and one sentence, and goes on once there is space. Memory, open
files and files in .runs stay flat, and the results have the bytes of an undisturbed run. If not, the exit status is 1.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import psutil
from record import record

from support.train_cases import Ended, Stage, at_step, clear, limit_files, make_training, results, set_runtime

MAX_GROWTH_MIB = 4.0  # of a least-squares line through the second half of a run, in 10,000 steps
WARM_UP = 0.5  # share of the samples in which allocators and caches fill up
TINY = {
    "optimizer": "adamw",
    "seq_len": 8,
    "batch_tokens": 8,
    "micro_batch_tokens": 8,
    "warmup_steps": 2,
    "eval_tokens": 64,
}


def disturb(full_disk_at: int) -> None:
    """A sabotage: the clock jumps by days, back and forth; from a step on no file can have more than 16 kB."""
    clock, calls = time.time, itertools.count()
    time.time = lambda: clock() + (-1) ** next(calls) * 86_400 * 3
    at_step(full_disk_at, lambda: limit_files(16_384))


def watch(stage: Stage) -> tuple[Ended, np.ndarray]:
    """Wait for the end of a stage; return it and (N, 3): its memory in MiB, open files, and files in .runs."""
    process, samples = psutil.Process(stage.process.pid), []
    while stage.process.exitcode is None:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ends meanwhile
            files = sum(path.is_file() for path in Path(".runs").rglob("*"))
            samples.append((process.memory_info().rss / 2**20, process.num_fds(), files))
        stage.process.join(0.25)
    return stage.end(), np.array(samples)


def growth(samples: np.ndarray, steps: int) -> dict[str, float]:
    """Check that a run of so many steps stays flat; return its figures."""
    late = samples[int(WARM_UP * len(samples)) : -4]  # the last samples see the results being written
    slope = np.polyfit(np.linspace(WARM_UP * steps, steps, len(late)), late[:, 0], 1)[0] * 10_000
    assert slope < MAX_GROWTH_MIB, f"memory grows by {slope:.1f} MiB in 10,000 steps"
    files, handles = late[:, 2], late[:, 1]
    assert np.ptp(handles) <= 2 and files.max() <= 16, (handles.max(), files.max())
    return {
        "MiB per 10,000 steps": round(slope, 2),
        "open files": int(handles.max()),
        "files in .runs": int(files.max()),
    }


def main(argv: list[str]) -> int:
    """Run undisturbed, then disturbed, compare the results, and record the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of so small steps only wait for each other
    steps, started = parser.parse_args(argv).steps, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        workspace = make_training(Path(folder))
        lengths = {
            "max_tokens": 8 * steps,
            "log_every_tokens": 8 * (steps // 50),
            "eval_every_tokens": 8 * (steps // 5),
        }
        workspace.change(**{f"train.{name}": value for name, value in (TINY | lengths).items()})
        set_runtime(checkpoint_every_s=2)
        ended, samples = watch(Stage())
        assert ended.code == 0, ended.err
        figures, expected = growth(samples, steps), results()
        clear()
        ended, _ = watch(Stage(disturb, steps // 2))
        assert ended.code == 5 and "free some space" in ended.sentence, ended
        ended, _ = watch(Stage(disturb, steps + 1))
        assert ended.code == 0 and "resumed at step" in ended.out, ended
        assert results() == expected, "the disturbed run has other bytes"
    record("long_life", {"steps": steps, **figures, "lost or wrong": 0}, started)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

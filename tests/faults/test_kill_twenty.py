"""Killed twenty times, `dvc repro` ends with the bits of a run that was never disturbed."""

import functools
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.train_cases import wait_for
from support.workspace import Workspace

KILLS, MAX_STEPS, LOG_STEPS, EVAL_STEPS = 20, 2000, 50, 250
RESULTS = ["data/models/best_model_params.pt", "data/models/last_model_params.pt", "plots/training.csv",
           "plots/validation.csv", "metrics/train.json"]  # fmt: skip


def make_workspace(folder, finished):
    """The small pipeline, then a training of 2,000 steps that saves a checkpoint ten times a second."""
    workspace = Workspace(folder, finished)
    counts = {"max": MAX_STEPS, "log_every": LOG_STEPS, "eval_every": EVAL_STEPS}
    workspace.change(**{f"train.{name}_tokens": 512 * steps for name, steps in counts.items()})
    runtime = folder / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("checkpoint_every_s: 30", "checkpoint_every_s: 0.1"))
    return workspace


def states(workspace):
    return {path.name for path in Path(workspace.folder).glob(".runs/*/checkpoint-*.json")}


def kill_somewhere(workspace, rng):
    """Start `dvc repro` and kill its process group: mostly within training, else on the way there.

    Returns how many states it has saved.
    """
    seen = states(workspace)
    repro = subprocess.Popen(
        ["dvc", "repro", "train"], cwd=workspace.folder, env=workspace.environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def saves(number):
        seen.update(states(workspace))
        return len(seen) - before >= number or repro.poll() is not None

    before = len(seen)
    if rng.random() < 0.8:
        wait_for(functools.partial(saves, rng.randint(1, 3)), 120)
        time.sleep(rng.uniform(0, 0.05))
    else:
        time.sleep(rng.uniform(0, 5))
    assert repro.poll() is None, "the training has ended before it was killed often enough"
    os.killpg(repro.pid, signal.SIGKILL)
    repro.wait()
    saves(0)
    return len(seen) - before


@pytest.mark.slow
def test_25_twenty_kills_change_no_bit(tmp_path, finished):
    undisturbed, workspace = (make_workspace(tmp_path / name, finished) for name in ("undisturbed", "killed"))
    undisturbed.repro("train")
    rng = random.Random(0)
    saved = [kill_somewhere(workspace, rng) for _ in range(KILLS)]
    assert sum(map(bool, saved)) >= KILLS // 2, saved
    printed = workspace.run("dvc", "repro", "train").stdout
    assert "resumed at step" in printed
    for name in RESULTS:
        assert (workspace.folder / name).read_bytes() == (undisturbed.folder / name).read_bytes(), name
    for name, every, first in (("training", LOG_STEPS, LOG_STEPS), ("validation", EVAL_STEPS, 0)):
        rows = (workspace.folder / "plots" / f"{name}.csv").read_text().splitlines()[1:]
        assert [int(row.split(",")[0]) for row in rows] == list(range(first, MAX_STEPS + 1, every))
    assert workspace.repro("train") == set()
    assert not list(workspace.folder.glob(".runs/**/*checkpoint-*"))

"""Run experiments beside each other on one cache, kill some, and compare all with runs of one at a time.

    PYTHONPATH=src:tests python tests/torture/concurrency.py [--minutes 10] [--seed 1]

Four lanes run `dvc exp run --temp --force` one after the other in one repository, mostly with the same seeds, so that
they share inputs, cache and run folders. Now and then a random process of them is killed. At the end every experiment
that DVC recorded must have the outputs of the same parameters run alone, every object of the cache must have its hash,
and `dvc repro`, once, must bring the outputs of the commit.
"""

import argparse
import contextlib
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import psutil
import yaml
from record import record

from support.train_cases import wait_for
from support.workspace import Workspace

LANES, SEEDS = 4, 5
PAUSE_S = (15.0, 35.0)  # between two kills


def make(folder: Path) -> Workspace:
    """Return the small pipeline after its first run, on a commit that has its lock file."""
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.commit()
    workspace.repro()
    workspace.commit()
    return workspace


def outputs(lock: str) -> dict[str, str]:
    """Return path → MD5 of the outputs in the text of a dvc.lock."""
    stages = yaml.safe_load(lock)["stages"].values()
    return {out["path"]: out["md5"] for stage in stages for out in stage["outs"]}


def recorded(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return the outputs of every experiment that DVC recorded, by name."""
    refs = workspace.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout.split()
    named = {ref.rpartition("/")[2]: ref for ref in refs if "-s" in ref.rpartition("/")[2]}
    return {name: outputs(workspace.run("git", "show", f"{ref}:dvc.lock").stdout) for name, ref in named.items()}


def seed_of(name: str) -> int:
    """Return the training seed of an experiment, which its name ends with."""
    return int(name.rpartition("-s")[2])


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the living processes whose working directory is inside a folder, this one left out."""
    found = []
    for process in psutil.process_iter():
        try:
            inside = Path(process.cwd()).is_relative_to(folder)
            if inside and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def lane(workspace: Workspace, number: int, end: float, counts: Counter) -> None:
    """Run one experiment after the other until `end` (time.monotonic())."""
    attempt = 0
    while time.monotonic() < end:
        name = f"lane{number}-{attempt}-s{1 + attempt % SEEDS}"
        chosen = ("-n", name, "-S", f"train.seed={seed_of(name)}")
        done = workspace.run("dvc", "exp", "run", "--temp", "--force", *chosen, check=False)
        counts["recorded by a lane" if done.returncode == 0 else "ended without a record"] += 1
        if "Could not override" in done.stderr:
            # DVC writes the parameters of an experiment into params.yaml for a moment. It was killed meanwhile.
            workspace.run("git", "restore", "params.yaml", check=False)
            counts["torn params.yaml"] += 1
        attempt += 1


def storm(workspace: Workspace, end: float, seed: int) -> Counter:
    """Run the lanes and kill a random process now and then; return the counts when nothing runs any more."""
    counts, rng = Counter(), random.Random(seed)
    lanes = [threading.Thread(target=lane, args=(workspace, number, end, counts)) for number in range(LANES)]
    for each in lanes:
        each.start()
    while time.monotonic() < end:
        time.sleep(rng.uniform(*PAUSE_S))
        if victims := processes_in(workspace.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(victims).send_signal(signal.SIGKILL)
                counts["killed"] += 1
    for each in lanes:
        each.join()
    wait_for(lambda: not processes_in(workspace.folder), 600)
    return counts


def damaged_objects(cache: Path) -> list[str]:
    """Return the objects of DVC's cache whose content does not have the MD5 of their name."""
    objects = [path for path in cache.glob("files/md5/??/*") if path.is_file()]
    digests = {path: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() for path in objects}
    return [str(path) for path, md5 in digests.items() if md5 != path.parent.name + path.stem]


def main(argv: list[str] | None = None) -> int:
    """Run the storm, then each seed alone in a second repository; return 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args, started = parser.parse_args(argv), time.monotonic()
    with tempfile.TemporaryDirectory() as base:
        workspace = make(Path(base, "busy"))
        committed = outputs((workspace.folder / "dvc.lock").read_text())
        counts = storm(workspace, time.monotonic() + 60 * args.minutes, args.seed)
        found = recorded(workspace)
        alone = make(Path(base, "alone"))
        expected = {}
        for seed in sorted({seed_of(name) for name in found}):
            alone.run("dvc", "exp", "run", "-n", f"alone-s{seed}", "-S", f"train.seed={seed}")
            expected[seed] = recorded(alone)[f"alone-s{seed}"]
        wrong = [name for name, outs in found.items() if outs != expected[seed_of(name)]]
        wrong += damaged_objects(workspace.folder / ".dvc" / "cache")
        workspace.run("dvc", "repro", "--force")
        if outputs((workspace.folder / "dvc.lock").read_text()) != committed:
            wrong.append("dvc repro")
    print("\n".join(f"WRONG: {name}" for name in wrong))
    if wrong:
        return 1
    what = ("killed", "recorded by a lane", "ended without a record", "torn params.yaml")
    counted = {each: counts[each] for each in what}
    record("concurrency", {"minutes": args.minutes, "experiments": len(found), **counted, "lost or wrong": 0}, started)
    return 0


if __name__ == "__main__":
    sys.exit(main())

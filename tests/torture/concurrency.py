"""Run experiments beside each other on one cache, kill some, and compare all with runs of one at a time.

    PYTHONPATH=src:tests python tests/torture/concurrency.py [--minutes 10] [--seed 1]

Four lanes run `dvc exp run --temp --force` one after the other, and two workers run DVC's queue, all in one repository
and mostly with the same seeds of training, so that they share inputs, cache and run folders. Now and then a random
process of them is killed. At the end nothing may still run; every experiment that DVC recorded must have the outputs
of the same parameters run alone in another repository; every object of the cache must have its hash; and `dvc repro`,
once, must bring the outputs of the commit. Where DVC was killed while it had the parameters of an experiment in
params.yaml, the file is brought back, and counted.
"""

import argparse
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

LANES, QUEUE_WORKERS, SEEDS = 4, 2, 5
PAUSE_S = (15.0, 35.0)  # between two kills
QUEUE_ENDS_S, ENDS_S = 180, 600  # for the queue to take its last runs; for processes to end


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


class Storm:
    """The lanes, the queue and the killer, until `end` (time.monotonic())."""

    def __init__(self, workspace: Workspace, end: float, seed: int):
        self.workspace, self.end, self.random = workspace, end, random.Random(seed)
        self.counts, self.lock = Counter(), threading.Lock()

    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def lane(self, number: int) -> None:
        """Run one experiment after the other."""
        attempt = 0
        while not self.is_over():
            name = f"lane{number}-{attempt}-s{1 + attempt % SEEDS}"
            chosen = ("-n", name, "-S", f"train.seed={seed_of(name)}")
            done = self.workspace.run("dvc", "exp", "run", "--temp", "--force", *chosen, check=False)
            self.count("recorded by a lane" if done.returncode == 0 else "ended without a record")
            lines = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
            print(f"{name}: {done.returncode} {lines[0][:100] if done.returncode and lines else ''}", flush=True)
            if "Could not override" in done.stderr:
                # DVC writes the parameters of an experiment into params.yaml for a moment. It was killed meanwhile.
                self.workspace.run("git", "restore", "params.yaml", check=False)
                self.count("torn params.yaml")
            attempt += 1

    def queue(self) -> None:
        """Queue experiments and keep two workers alive."""
        for number in range(3 * SEEDS):
            name = f"queue-{number}-s{1 + number % SEEDS}"
            chosen = ("-n", name, "-S", f"train.seed={seed_of(name)}")
            command = ("dvc", "exp", "run", "--queue", "--force", *chosen)
            # It fails if it is killed, or if another process holds DVC's lock.
            while not self.is_over() and self.workspace.run(*command, check=False).returncode:
                time.sleep(1)
        while not self.is_over():
            self.workspace.run("dvc", "queue", "start", "-j", str(QUEUE_WORKERS), check=False)
            time.sleep(10)

    def kill(self) -> None:
        """Kill a random process now and then."""
        while not self.is_over():
            time.sleep(self.random.uniform(*PAUSE_S))
            victims = processes_in(self.workspace.folder)
            if victims and not self.is_over():
                try:
                    self.random.choice(victims).send_signal(signal.SIGKILL)
                    self.count("killed")
                except psutil.NoSuchProcess:
                    continue

    def run(self) -> Counter:
        """Run all until the end, and return the counts when nothing runs any more."""
        jobs = [threading.Thread(target=self.lane, args=(number,)) for number in range(LANES)]
        jobs += [threading.Thread(target=self.queue), threading.Thread(target=self.kill)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        self.workspace.run("dvc", "queue", "stop", check=False)  # workers end after the run they have
        try:
            wait_for(lambda: not processes_in(self.workspace.folder), QUEUE_ENDS_S)
        except AssertionError:
            self.workspace.run("dvc", "queue", "stop", "--kill", check=False)
            wait_for(lambda: not processes_in(self.workspace.folder), ENDS_S)
        return self.counts


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
        counts = Storm(workspace, time.monotonic() + 60 * args.minutes, args.seed).run()
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

"""Send signals to `dvc repro` at moments spread over its life, the imports included, and recover with one command.

    PYTHONPATH=src:tests python tests/torture/signal_moments.py [--moments 200] [--minutes 60]

Each moment runs one stage of the small pipeline below a shell, and sends SIGINT, SIGTERM or SIGKILL to DVC, to the
stage or to the process group. Then every process must end; what dvc.lock records must be what an
undisturbed run gives, and be there; and `dvc repro`, once, must bring the same bytes. DVC does not write its files
.dvc/tmp/rwlock and dvc.lock atomically: one that a signal left torn is counted, and first deleted or brought back.
--minutes ends earlier, and records how many moments there were. The exit status is 1 at the first moment that breaks
one of these rules.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import psutil
import yaml
from record import record

from lm.core.files import sha256_file
from support.train_cases import wait_for
from support.workspace import Workspace

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TARGETS = ("dvc", "stage", "group")
ENDS_S = 300  # for a stage whose DVC was killed to end on a busy machine


class Pipeline:
    """A small pipeline that has run, and what its stages gave."""

    def __init__(self, folder: Path):
        self.workspace = Workspace(folder)
        self.workspace.make_small()
        self.workspace.commit()
        self.workspace.repro()
        self.lock = yaml.safe_load((folder / "dvc.lock").read_text())
        self.stages = list(self.lock["stages"])
        self.contents = {stage: self.read(stage) for stage in self.stages}

    def read(self, stage: str) -> dict[str, str]:
        """Return the SHA-256 of every file of a stage's outputs."""
        outputs = [self.workspace.folder / out["path"] for out in self.lock["stages"][stage]["outs"]]
        files = itertools.chain(*([path] if path.is_file() else path.rglob("*") for path in outputs))
        return {str(path): sha256_file(path) for path in files if path.is_file()}

    def forget(self, stage: str) -> None:
        """Delete what DVC and the training know of a stage's runs, so that the next one runs it."""
        self.others = {name: entry for name, entry in self.lock["stages"].items() if name != stage}
        self.write_lock()
        for name in (".dvc/cache/runs", ".runs"):
            shutil.rmtree(self.workspace.folder / name, ignore_errors=True)

    def write_lock(self) -> None:
        """Write dvc.lock with all stages but the one that runs next."""
        text = yaml.safe_dump(self.lock | {"stages": self.others}, sort_keys=False)
        (self.workspace.folder / "dvc.lock").write_text(text)

    def recorded(self, stage: str):
        """Return the outputs that dvc.lock records of a stage, or None."""
        entry = yaml.safe_load((self.workspace.folder / "dvc.lock").read_text())["stages"].get(stage)
        return entry and entry["outs"]

    def mend(self) -> list[str]:
        """Mend DVC's files that a signal has left torn, as docs/troubleshooting.md says; return which they were."""
        torn, rwlock = [], self.workspace.folder / ".dvc" / "tmp" / "rwlock"
        if rwlock.exists() and rwlock.stat().st_size == 0:
            torn.append("torn rwlock")
            rwlock.unlink()
        if is_torn((self.workspace.folder / "dvc.lock").read_text(), self.others):
            torn.append("torn dvc.lock")
            self.write_lock()
        return torn

    def start(self, stage: str) -> subprocess.Popen:
        """Start `dvc repro` of one stage below a shell, in a session of their own; it takes an interrupt."""
        with open(self.workspace.folder / "repro.txt", "w") as file:
            return subprocess.Popen(
                ["sh", "-c", f"dvc repro -s {stage}; exit $?"], cwd=self.workspace.folder, start_new_session=True,
                env=self.workspace.environment, stdout=file, stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip

    def seconds(self, stage: str) -> float:
        """Return the seconds of an undisturbed run of a stage, and check its bytes."""
        self.forget(stage)
        started = time.monotonic()
        assert self.start(stage).wait() == 0, stage
        assert self.read(stage) == self.contents[stage], stage
        return time.monotonic() - started


def is_torn(lock: str, others: dict) -> bool:
    """Return True if the text of a dvc.lock has lost a part: its end, or one of the stages that did not run."""
    try:
        stages = yaml.safe_load(lock)["stages"]
        return not lock.endswith("\n") or any(stages.get(name) != entry for name, entry in others.items())
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        return True


def session_of(process: subprocess.Popen, with_dead: bool = False) -> list[psutil.Process]:
    """Return the processes of the session that this process leads or led, oldest first; `with_dead` zombies too."""
    found = []
    for pid in psutil.pids():
        try:
            is_alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            if os.getsid(pid) == process.pid and (is_alive or with_dead):
                found.append(psutil.Process(pid))
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return sorted(found, key=lambda one: (one.create_time(), one.pid))


def send(shell: subprocess.Popen, number: int, target: str) -> bool:
    """Send the signal to the group or to a process of it, the stage's if it has begun; return False if all is over."""
    processes = session_of(shell)
    if not processes or shell.poll() is not None:
        return False
    if target == "group":
        os.killpg(shell.pid, number)
    else:
        processes[min({"dvc": 1, "stage": 2}[target], len(processes) - 1)].send_signal(number)
    return True


def disturb(pipeline: Pipeline, stage: str, after_s: float, number: int, target: str) -> list[str]:
    """Send one signal to a run of a stage and recover; return what happened, in the words of the record."""
    pipeline.forget(stage)
    shell = pipeline.start(stage)
    time.sleep(after_s)
    was_sent = send(shell, number, target)
    wait_for(lambda: shell.poll() is not None, ENDS_S)
    # DVC takes a dead process that nobody has waited for yet for one that lives, and for the owner of its lock.
    wait_for(lambda: not session_of(shell, with_dead=True), ENDS_S)
    mended = pipeline.mend()
    expected, outs = pipeline.lock["stages"][stage]["outs"], pipeline.recorded(stage)
    printed = (pipeline.workspace.folder / "repro.txt").read_text()
    assert outs in (None, expected), f"dvc.lock records other outputs of {stage}\n{printed}"
    assert outs is None or pipeline.read(stage) == pipeline.contents[stage], (
        f"{stage} is recorded, not there\n{printed}"
    )
    assert outs or shell.returncode, f"dvc repro ended with 0 without {stage}\n{printed}"
    assert pipeline.workspace.repro("-s", stage) == (set() if outs else {stage})
    assert pipeline.recorded(stage) == expected and pipeline.read(stage) == pipeline.contents[stage], stage
    end = "ended before the signal" if not was_sent else "recorded whole" if outs else "not recorded"
    return [end, *mended]


def main(argv: list[str]) -> int:
    """Disturb the stages one after the other and record how the runs ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--stages", nargs="*", help="default: all")
    args = parser.parse_args(argv)
    started, rng, ends, sent = time.monotonic(), random.Random(0), Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder))
        stages = args.stages or pipeline.stages
        lasts = {stage: pipeline.seconds(stage) for stage in stages}
        kinds = list(itertools.product(SIGNALS, TARGETS))
        # Steps of the golden ratio spread the moments evenly over a life, however many there are.
        for i in itertools.count():
            if sum(sent.values()) == args.moments or time.monotonic() - started > 60 * args.minutes:
                break
            stage, (number, target) = stages[i % len(stages)], rng.choice(kinds)
            fraction = (i // len(stages) * 0.618034 + rng.random() / len(stages)) % 1
            print(f"{i}: {stage} at {fraction:.2f}, {number.name} to the {target}", end="", flush=True)
            happened = disturb(pipeline, stage, fraction * lasts[stage], number, target)
            print(":", ", ".join(happened), flush=True)
            ends.update(happened)
            sent[number.name] += happened[0] != "ended before the signal"
    record("signal_moments", {"moments": sum(sent.values()), **sent, **ends, "lost or wrong": 0}, started)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

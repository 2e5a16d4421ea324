"""Run experiments of the board on this machine, one after the other, each in a clone of its own."""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
from dvc.repo import Repo

from extras.submit.board import ENDED, QUEUED, Board, Experiment, Record, run
from lm.core.errors import EnvironmentFailure

FOLDER = Path(".submit")
SHOWN_LOG_BYTES = 65_536
PUSHES = 3  # attempts to push a result
POLL_S, END_S = 1.0, 60.0  # between two looks at the process; for a process group to save a checkpoint and end


class SavedCheckpoints:
    """A copy of an experiment's `.runs` in the folder submit/ of the default DVC remote."""

    def __init__(self, repository: Path, name: str):
        """Use the remote of a repository. Runs find their checkpoints by fingerprint, so one name may serve several."""
        with Repo(str(repository)) as repo:
            remote = repo.cloud.get_remote()
        self.fs, self.root = remote.fs, remote.fs.join(remote.path, "submit", name)
        self._sent: dict[str, tuple[int, int]] = {}  # file → time of change in ns, bytes

    def save(self, runs: Path) -> None:
        """Copy new files to the remote, a checkpoint before its record, and delete there what is gone here."""
        files = sorted((p for p in runs.rglob("[!.]*") if p.is_file()), key=lambda p: (p.suffix == ".json", p))
        present = {}
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # training deletes old checkpoints meanwhile
                name, stat = path.relative_to(runs).as_posix(), path.stat()
                present[name] = stat.st_mtime_ns, stat.st_size
                if present[name] != self._sent.get(name):
                    self.fs.makedirs(self.fs.parent(self._there(name)), exist_ok=True)
                    self.fs.put_file(str(path), self._there(name))
        for name in self._sent.keys() - present.keys():
            self.fs.remove(self._there(name))
        self._sent = present

    def restore(self, runs: Path) -> None:
        """Copy what the remote has into `runs`, in which training finds it."""
        for there in self.fs.find(self.root) if self.fs.exists(self.root) else []:
            path = runs.joinpath(*self.fs.relparts(there, self.root))
            path.parent.mkdir(parents=True, exist_ok=True)
            self.fs.get_file(there, str(path))
            name, stat = path.relative_to(runs).as_posix(), path.stat()
            self._sent[name] = stat.st_mtime_ns, stat.st_size

    def delete(self) -> None:
        if self.fs.exists(self.root):
            self.fs.remove(list(self.fs.find(self.root)))

    def _there(self, name: str) -> str:
        return self.fs.join(self.root, *name.split("/"))


class Job:
    """An experiment that this worker has claimed, and its folder in .submit."""

    def __init__(self, board: Board, experiment: Experiment, args: argparse.Namespace, stop: threading.Event):
        """Name the folder of an experiment and find its saved checkpoints; `args` has the seconds of `heartbeat`, …"""
        self.board, self.experiment, self.args, self.stop = board, experiment, args, stop
        self.repository = Path.cwd()
        self.folder = self.repository / FOLDER / f"{experiment.name}.{os.getpid()}"
        self.clone, self.log = self.folder / "clone", self.folder / "log"
        self.runs = self.clone / ".runs"
        self.checkpoints = SavedCheckpoints(self.repository, experiment.name)

    def run(self) -> None:
        """Run the experiment, push its cache and its ref, and write how it ended; release it if asked to stop."""
        try:
            self.prepare()
            name = self.experiment.name
            ended = self.supervise("dvc", "exp", "run", "--pull", "-n", name)
            for _ in range(PUSHES if not ended else 0):
                ended = self.supervise("dvc", "exp", "push", "--force", "origin", name)
                if ended != "failed" or self.stop.wait(self.args.heartbeat):
                    break
        except EnvironmentFailure as error:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(f"error: {error}\n")
            ended = "failed"
        # A failed experiment keeps its checkpoints: queued again under its name, it resumes from them.
        if ended in ("stopped", "failed"):
            self.save_checkpoints()
        if ended == "stopped":
            self.board.release(self.experiment)
        elif ended != "taken" and self.write_end(ended or "done") and not ended:
            self.checkpoints.delete()
        shutil.rmtree(self.folder, ignore_errors=True)

    def prepare(self) -> None:
        """Clone the remote, check out the experiment as it was queued, and fetch its saved checkpoints."""
        stash, clone = self.experiment.stash_rev, self.clone
        self.folder.mkdir(parents=True)
        reference = ("--reference-if-able", str(self.repository))
        run("git", "clone", "-q", "--no-checkout", *reference, self.board.url, str(clone))
        run("git", "fetch", "-q", "origin", QUEUED + self.experiment.name, folder=clone)
        run("git", "checkout", "-q", "--detach", f"{stash}^1", folder=clone)
        run("git", "restore", f"--source={stash}", "--staged", "--worktree", ".", folder=clone)
        # DVC's pickled arguments of `dvc exp run --queue` are not used.
        run("git", "rm", "-q", "-f", "--ignore-unmatch", ".dvc/tmp/repro.dat", folder=clone)
        for key, field in (("user.name", "%an"), ("user.email", "%ae")):
            value = run("git", "show", "-s", f"--format={field}", stash, folder=clone).strip()
            run("git", "config", key, value, folder=clone)
        local = self.repository / ".dvc/config.local"
        if local.exists():
            shutil.copy(local, clone / ".dvc")
        cache = run("dvc", "cache", "dir", folder=self.repository).strip()
        run("dvc", "cache", "dir", "--local", str(self.repository / cache), folder=clone)
        self.checkpoints.restore(self.runs)

    def supervise(self, *command: str) -> str:
        """Run a command in the clone and send heartbeats. Return "" if it succeeds, else failed, stopped or taken."""
        with open(self.log, "ab") as log:
            child = subprocess.Popen(
                command, cwd=self.clone, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        beat = save = time.monotonic()
        while child.poll() is None:
            now = time.monotonic()
            if self.stop.wait(POLL_S):
                end_group(child)
                return "stopped"
            if now >= beat:
                beat = now + self.args.heartbeat
                try:
                    is_ours = self._write("running")
                except EnvironmentFailure as error:  # the next heartbeat may arrive
                    warn(error)
                else:
                    if not is_ours:
                        end_group(child)
                        return "taken"
            if now >= save:
                save = now + self.args.save_every
                self.save_checkpoints()
        return "failed" if child.returncode else ""

    def save_checkpoints(self) -> None:
        """Copy the training checkpoints to the DVC remote, or warn: the next copy may succeed."""
        try:
            self.checkpoints.save(self.runs)
        except Exception as error:  # each kind of remote raises its own exceptions
            warn(f"training checkpoints were not copied: {error}")

    def write_end(self, state: str) -> bool:
        """Write the last state, again and again if the Git remote does not answer; return False if it may not."""
        while True:
            try:
                return self._write(state)
            except EnvironmentFailure as error:
                warn(error)
                if self.stop.wait(self.args.heartbeat):
                    return False

    def _write(self, state: str) -> bool:
        """Write the state and the log's end; return False if the experiment was cancelled or taken over."""
        record, log = Record(state, self.experiment.record.worker), self._end_of_log()
        written = self.board.write(self.experiment, record, log)
        if not written:  # a push of ours may have arrived though its answer was lost
            found = self.board.experiments().get(self.experiment.name)
            if found and found.record == self.experiment.record:
                written = self.board.write(found, record, log)
        self.experiment = written or self.experiment
        return written is not None

    def _end_of_log(self) -> str:
        end = self.log.read_bytes()[-SHOWN_LOG_BYTES:] if self.log.exists() else b""
        return end.decode("utf-8", errors="replace")


def warn(problem: object) -> None:
    print(f"warning: {problem}", file=sys.stderr, flush=True)


def end_group(child: subprocess.Popen) -> None:
    """Send SIGTERM to a process and its descendants, so that training saves a checkpoint; kill them after a minute."""
    end, sent = time.monotonic() + END_S, signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, sent)
        while child.poll() is None or group_runs(child.pid):
            if time.monotonic() > end:
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.1)


def group_runs(group: int) -> bool:
    """Return True if a process of the group runs; zombies do not."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                return True
    return False


def remove_leftovers(folder: Path) -> None:
    """Delete the folders of workers that were killed."""
    for path in folder.glob("*.*"):
        pid = path.suffix[1:]
        if path.is_dir() and pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def work(board: Board, args: argparse.Namespace) -> None:
    """Run experiments until none is free, or with --wait until all have ended; SIGTERM and SIGINT stop the worker."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    remove_leftovers(FOLDER)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    worker = ":".join(filter(None, [socket.gethostname(), os.environ.get("SLURM_JOB_ID"), str(os.getpid())]))
    board.experiments()  # raises now if the remote is wrong
    while not stop.is_set():
        try:
            experiment = board.claim_next(worker, args.lost_after)
            others = args.wait and any(found.record.state not in ENDED for found in board.experiments().values())
        except EnvironmentFailure as error:
            warn(error)
            stop.wait(args.heartbeat)
            continue
        if experiment:
            print(f"{worker}: {experiment.name}", flush=True)
            Job(board, experiment, args, stop).run()
        elif others:
            stop.wait(args.heartbeat)
        else:
            break

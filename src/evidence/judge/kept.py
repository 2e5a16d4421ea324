"""The losses of a commit with a seed: run once in a worktree, and kept under the hash of all that decides them.

A runner is a command. It runs in the worktree, with the variables SEED, LOSSES (the table that it writes: a row for
each document) and REPOSITORY (the folder in which judge was started).
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evidence.errors import CandidateCrashed, Forged, RunFailed, WrongInput
from evidence.intervals import LEAST_DOCUMENTS
from evidence.judge.commits import Commit, environment, own_folder, worktree
from evidence.runs import LossRun
from evidence.table import read_losses

STANDARD_ERROR = 2  # its descriptor
# Statuses that say nothing about the candidate: a full disk, a lost network, a busy file, a signal.
OF_THE_MACHINE = (5, 75, *(128 + number for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)))


class Runner(NamedTuple):
    """A command, and the files outside Git that decide what it gives."""

    command: tuple[str, ...]
    inputs: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        """Return a hash of the command, wherever its program lies, and of these files."""
        program, *arguments = self.command
        words = [Path(program).name, *arguments]
        content = hashlib.sha256("\0".join(words).encode())
        for path in self.inputs:
            content.update(f"\0{path}\0".encode())
            with open(path, "rb") as file:
                content.update(hashlib.file_digest(file, "sha256").digest())
        return content.hexdigest()


def folder_of(runner: Runner, commit: Commit) -> Path:
    """Return where the losses of the files of a commit are kept, a table for each seed: SEED-HASH.csv."""
    return own_folder() / "losses" / f"{commit.tree[:16]}-{runner.key[:16]}"


def kept_losses(folder: Path, seed: int) -> LossRun | None:
    """Return the losses of a seed, None if it has not run. Raise Forged if the table has not the hash in its name."""
    for path in folder.glob(f"{seed}-*.csv"):
        if path.name != name_of(path, seed):
            raise Forged(f"{path}: damaged or edited; remove it, and the same command runs it again")
        return read_losses(path)
    return None


def name_of(path: Path, seed: int) -> str:
    """Return the name under which a table is kept."""
    return f"{seed}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.csv"


def losses_of(runner: Runner, commit: Commit, seeds: Sequence[int], is_base: bool) -> list[LossRun]:
    """Return the losses of a commit with each of the seeds; those that are missing are run first."""
    folder = folder_of(runner, commit)
    found = {seed: kept_losses(folder, seed) for seed in seeds}
    missing = [seed for seed in seeds if found[seed] is None]
    if missing:
        with worktree(commit) as checked_out:
            for seed in missing:
                written = run(runner, commit, seed, checked_out, is_base)
                folder.mkdir(parents=True, exist_ok=True)
                shutil.move(written, folder / name_of(written, seed))
                found[seed] = kept_losses(folder, seed)
    losses = [each for each in found.values() if each is not None]
    reject_ignored_seed(commit, losses, is_base)
    return losses


def run(runner: Runner, commit: Commit, seed: int, folder: Path, is_base: bool) -> Path:
    """Run a commit with a seed in its worktree, and return the table that it wrote.

    Raise RunFailed if the machine fails, or the base; CandidateCrashed if the candidate does.
    """
    what = f"{commit.short} ({commit.subject}) with seed {seed}"
    print(f"running {what}", file=sys.stderr, flush=True)
    written = folder.with_name("losses.csv")
    written.unlink(missing_ok=True)
    variables = environment(SEED=str(seed), LOSSES=str(written), REPOSITORY=os.getcwd())
    try:
        status = run_to_the_end(runner.command, folder, variables)
    except OSError as error:
        failure = RunFailed if is_base else CandidateCrashed
        remedy = "it must be a program, such as ./train.sh of the commit, or bash with -c for a line of a shell"
        raise failure(f"the run of {what} cannot start: {runner.command[0]}: {error.strerror}; {remedy}") from None
    if status:
        status = 128 - status if status < 0 else status
        is_of_machine = is_base or status in OF_THE_MACHINE
        failure = RunFailed if is_of_machine else CandidateCrashed
        raise failure(f"the run of {what} ended with status {status}, as said above")

    # The table must be one, of documents enough.
    failure = RunFailed if is_base else CandidateCrashed
    try:
        losses = read_losses(written)
    except WrongInput as error:
        raise failure(f"the run of {what} wrote no losses: {error}") from None
    if len(losses.documents) < LEAST_DOCUMENTS:
        reason = "because a change must be better over documents, too"
        found = f"the run of {what} scored {len(losses.documents)} documents"
        raise failure(f"{found}; it must score at least {LEAST_DOCUMENTS}, {reason}")
    return written


def run_to_the_end(command: Sequence[str], folder: Path, variables: dict[str, str]) -> int:
    """Run a command in a folder; return its exit status. If this process is asked to end, end all that it started."""
    process = None
    former = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=STANDARD_ERROR, start_new_session=True)
        return process.wait()
    except BaseException:
        if process is not None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, former)


def reject_ignored_seed(commit: Commit, found: list[LossRun], is_base: bool) -> None:
    """Raise CandidateCrashed, or RunFailed for the base, if two seeds gave the same losses: they show no noise."""
    for i, losses in enumerate(found):
        if any(np.array_equal(losses.nats, other.nats) for other in found[:i]):
            failure = RunFailed if is_base else CandidateCrashed
            raise failure(f"{commit.short} ({commit.subject}) has equal losses with two seeds: it ignores SEED")

"""The losses of a commit with a seed: run once in a worktree, and kept under the hash of all that decides them.

A runner is a command. It runs in the worktree, with the variables SEED, LOSSES (the table that it writes: a row for
each document) and REPOSITORY (the folder in which judge was started).
"""

import functools
import hashlib
import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import CandidateCrashed, EvidenceError, RunFailed, WrongInput
from evidence.intervals import LEAST_DOCUMENTS, dominating_documents, effective_documents
from evidence.judge.commits import Commit, environment, own_folder, worktree
from evidence.runs import Run, make_groups
from evidence.table import read_losses

LAST_LINES = 20  # of a run that failed, which are printed
# Statuses that say nothing about the candidate: a full disk, a lost network, a busy file, a signal.
STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
OF_THE_MACHINE = (5, 75, *(128 + number for number in STOPPING))


class Runner(NamedTuple):
    """A command, and the files outside Git that decide what it gives."""

    command: tuple[str, ...]
    inputs: tuple[Path, ...] = ()


def folder_of(runner: Runner, commit: Commit) -> Path:
    """Return where the losses of a commit are kept, a table for each seed: SEED.csv.

    The name of the folder is a hash of all that decides a run but its seed: the files of the commit, the command,
    wherever its program lies, the files outside Git, and the Python and the packages that run judge.
    """
    program, *arguments = runner.command
    words = [commit.tree, Path(program).name, *arguments, *python_and_packages()]
    for path in runner.inputs:
        with open(path, "rb") as file:
            words += [str(path), hashlib.file_digest(file, "sha256").hexdigest()]
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    return own_folder() / "losses" / key


@functools.cache
def python_and_packages() -> list[str]:
    """Return the implementation and version of Python, and of each installed package."""
    installed = [f"{each.metadata['Name']}=={each.version}" for each in importlib.metadata.distributions()]
    return [sys.implementation.name, sys.version, *sorted(installed)]


def losses_of(runner: Runner, commit: Commit, seeds: Sequence[int], is_base: bool) -> list[Run]:
    """Return the losses of a commit with each of the seeds; those that are missing are run first."""
    folder = folder_of(runner, commit)
    tables = {seed: folder / f"{seed}.csv" for seed in seeds}
    missing = [seed for seed in seeds if not tables[seed].exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with worktree(commit) as checked_out:
            for seed in missing:
                os.replace(run(runner, commit, seed, checked_out, is_base), tables[seed])
    losses = [read_losses(table, seed) for seed, table in tables.items()]
    if make_groups(losses)[0].repeats:
        failure = RunFailed if is_base else CandidateCrashed
        raise failure(f"{commit.short} ({commit.subject}) has equal losses with two seeds: it ignores SEED")
    return losses


def run_fresh(runner: Runner, commit: Commit, seed: int, is_base: bool) -> Run:
    """Run a commit with a seed in a new worktree, and return its losses, which are not kept."""
    with worktree(commit) as checked_out:
        return read_losses(run(runner, commit, seed, checked_out, is_base), seed)


def run(runner: Runner, commit: Commit, seed: int, folder: Path, is_base: bool) -> Path:
    """Run a commit with a seed in its worktree, and return the table that it wrote.

    Raise RunFailed if the machine fails, or the base; CandidateCrashed if the candidate does.
    """
    failure = RunFailed if is_base else CandidateCrashed
    what = f"the run of {commit.short} ({commit.subject}) with seed {seed}"
    written = own_folder() / "losses.csv"
    log = own_folder() / "run.log"
    written.unlink(missing_ok=True)
    print(f"running {commit.short} ({commit.subject}) with seed {seed}", file=sys.stderr, flush=True)
    variables = environment(SEED=str(seed), LOSSES=str(written), REPOSITORY=os.getcwd())
    try:
        status = run_to_the_end(runner.command, folder, variables, log)
    except OSError as error:
        remedy = "it must be a program, such as ./train.sh of the commit, or bash with -c for a line of a shell"
        raise failure(f"{what} cannot start: {runner.command[0]}: {error.strerror}; {remedy}") from None
    if status:
        if status in OF_THE_MACHINE:
            failure = RunFailed
        raise with_log(failure(f"{what} ended with status {status}; its last lines are above, all in {log}"), log)

    # The table must be one, of documents enough.
    try:
        losses = read_losses(written)
    except WrongInput as error:
        raise with_log(failure(f"{what} wrote no losses: {error}"), log) from None
    reject_few_documents(losses, what, failure)
    return written


def with_log(failure: EvidenceError, log: Path) -> EvidenceError:
    """Print the last lines of a run, and return the failure with them as its notes."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]:
        print(line, file=sys.stderr)
        failure.add_note(line)
    return failure


def reject_few_documents(losses: Run, what: str, failure: type[EvidenceError]) -> None:
    """Raise `failure` if a gain cannot be shown over documents: they are too few, or one has nearly all of the text."""
    effective = effective_documents(losses.sizes)
    if effective < LEAST_DOCUMENTS:
        longest, fraction = next(iter(dominating_documents(losses.sizes).items()))
        found = f"scored {len(losses.sizes)} documents, which count like {effective:.1f} of equal length"
        why = f"document {losses.name_of_document(longest)} has {100 * fraction:.0f} % of the bytes"
        remedy = f"they must count like {LEAST_DOCUMENTS}, because a change must be better over documents, too"
        raise failure(f"{what} {found}: {why}; {remedy}")


def run_to_the_end(command: Sequence[str], folder: Path, variables: dict[str, str], log: Path) -> int:
    """Run a command in a folder; return its exit status. If this process is asked to end, end all that it started."""
    process = None
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with open(log, "w") as file:
            process = subprocess.Popen(
                command, cwd=folder, env=variables, stdout=file, stderr=file, start_new_session=True
            )
        status = process.wait()
        return 128 - status if status < 0 else status
    except BaseException:
        if process is not None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)

"""The losses of a commit with a seed: run once in a worktree, and kept under the hash of all that decides them.

A runner is a command. It runs in the worktree, with the variables SEED, LOSSES (the table that it writes: a row for
each document) and REPOSITORY (the folder in which judge was started). If it prints a metric instead, its last value is
kept as a table of one row.
"""

import csv
import functools
import hashlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import EvidenceError, RunFailed, WrongInput
from evidence.intervals import LEAST_DOCUMENTS, dominating_documents, effective_documents
from evidence.judge.commits import Commit, environment, own_folder, worktree
from evidence.runs import Run
from evidence.table import COLUMNS, read_run

LAST_LINES = 20  # of a run that failed, which are printed
STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
# Statuses that say nothing about the candidate: a full disk, a lost network, a busy file, a signal.
OF_THE_MACHINE = (5, 75, *(128 + number for number in STOPPING))


class Metric(NamedTuple):
    """The number in the last match of a pattern; one of which more is better counts as its negative."""

    pattern: str
    is_higher_better: bool

    def __str__(self) -> str:
        return f"{'maximize' if self.is_higher_better else 'minimize'} {self.pattern}"

    def write(self, log: Path, table: Path) -> None:
        """Write the number of a log as a table of one row. Raise WrongInput or ValueError if there is none."""
        matches = re.findall(self.pattern, read_log(log))
        if not matches:
            raise WrongInput(f"nothing that it printed matches {self.pattern}")
        number = float(matches[-1])
        loss = -number if self.is_higher_better else number
        with open(table, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([COLUMNS["score"][1:], [self, loss, "false"]])


class Runner(NamedTuple):
    """A command, the files outside Git that decide what it gives, and the metric that it prints, if any."""

    command: tuple[str, ...]
    inputs: tuple[Path, ...] = ()
    metric: Metric | None = None

    def read(self, table: Path, seed: int | None = None) -> Run:
        """Return the run that a table is of."""
        return read_run(table, seed, "score" if self.metric else "nats")


def folder_of(runner: Runner, commit: Commit) -> Path:
    """Return where the losses of a commit are kept, a table for each seed: SEED.csv.

    The name of the folder is a hash of all that decides a run but its seed: the files of the commit, the command,
    wherever its program lies, the files outside Git, and the Python and the packages that run judge.
    """
    program, *arguments = runner.command
    words = [commit.tree, Path(program).name, *arguments, str(runner.metric), *python_and_packages()]
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


def losses_of(runner: Runner, commit: Commit, seeds: Sequence[int], failure: type[EvidenceError]) -> list[Run]:
    """Return the losses of a commit with each of the seeds; those that are missing are run first.

    Raise `failure` if they cannot count, or RunFailed if the machine fails.
    """
    folder = folder_of(runner, commit)
    tables = {seed: folder / f"{seed}.csv" for seed in seeds}
    missing = [seed for seed in seeds if not tables[seed].exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with worktree(commit) as checked_out:
            for seed in missing:
                os.replace(run(runner, commit, seed, checked_out, failure), tables[seed])
                read_different(runner, tables, commit, failure)
    return read_different(runner, tables, commit, failure)


def read_different(
    runner: Runner, tables: Mapping[int, Path], commit: Commit, failure: type[EvidenceError]
) -> list[Run]:
    """Return the losses in the tables that exist. Raise `failure` if they do not depend on the seed.

    Two equal losses of documents come from one training. Half of all numbers may be equal, because they are rounded.
    """
    losses = [runner.read(table, seed) for seed, table in tables.items() if table.exists()]
    different = {run.values.tobytes() for run in losses}
    if len(different) < (len(losses) / 2 if runner.metric else len(losses)):
        raise failure(
            f"{commit.short} ({commit.subject}) gives equal results with several seeds: it ignores SEED, or rounds "
            "them; set the seed where the trainer calls manual_seed (1337 in nanoGPT)"
        )
    return losses


def run(runner: Runner, commit: Commit, seed: int, folder: Path, failure: type[EvidenceError]) -> Path:
    """Run a commit with a seed in its worktree, and return the table that it wrote."""
    what = f"the run of {commit.short} ({commit.subject}) with seed {seed}"
    written = own_folder() / "losses.csv"
    log = own_folder() / "run.log"
    written.unlink(missing_ok=True)
    link_inputs(runner.inputs, folder)
    print(f"running {commit.short} ({commit.subject}) with seed {seed}", file=sys.stderr, flush=True)
    variables = environment(SEED=str(seed), LOSSES=str(written), REPOSITORY=os.getcwd())
    try:
        status = run_to_the_end(runner.command, folder, variables, log)
    except OSError as error:
        raise failure(
            f"{what} cannot start: {runner.command[0]}: {error.strerror}{advice(runner.command, folder, log)}; "
            "it must be a program, such as ./train.sh of the commit, or bash with -c for a line of a shell"
        ) from None
    if status:
        if status in OF_THE_MACHINE:
            failure = RunFailed
        said = f"ended with status {status}{advice(runner.command, folder, log)}"
        raise with_log(failure(f"{what} {said}; its last lines are above, all in {log}"), log)

    # The table must be one, of documents enough.
    try:
        if runner.metric:
            runner.metric.write(log, written)
        losses = runner.read(written)
    except (WrongInput, ValueError) as error:
        raise with_log(failure(f"{what} gave neither losses (LOSSES) nor a number (--metric): {error}"), log) from None
    if not runner.metric:
        reject_few_documents(losses, what, failure)
    return written


def with_log(failure: EvidenceError, log: Path) -> EvidenceError:
    """Print the last lines of a run, and return the failure with them as its notes."""
    for line in read_log(log).splitlines()[-LAST_LINES:]:
        print(line, file=sys.stderr)
        failure.add_note(line)
    return failure


def read_log(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def advice(command: Sequence[str], folder: Path, log: Path) -> str:
    """Return how to avoid two common reasons for which a command fails in a worktree, "" if it is another one."""
    for word in command:
        script = folder / word
        if os.path.isfile(script) and re.match(rb"#!.*\r\n", script.read_bytes()):
            return f"; {word} has line ends of Windows (CR LF), which no shell can read; save it with LF"
    if "No such file" in read_log(log):
        return "; a worktree lacks files that Git ignores: name them with --input"
    return ""


def link_inputs(inputs: Sequence[Path], folder: Path) -> None:
    """Link the files outside Git that a worktree lacks."""
    for path in inputs:
        link = folder / path
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.absolute())


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

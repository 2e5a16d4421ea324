"""Experiments that were sent to other machines, as refs of the Git remote.

refs/submit/queued/NAME is DVC's stash commit of the experiment. refs/submit/state/NAME is a commit without parents.
Its message is a record, its tree holds the end of the log, and its date is when the worker was last heard. Git changes
a ref only if it still has the value that the sender read, so of two workers that claim an experiment, one gets it.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import EnvironmentFailure

QUEUED, STATE = "refs/submit/queued/", "refs/submit/state/"
ENDED = ("done", "failed", "cancelled")


class Record(NamedTuple):
    """The message of a state: running, done, failed or cancelled, and the worker that wrote it."""

    state: str
    worker: str = ""


def read_record(message: str) -> Record | None:
    """Return the record in the message of a state, or None if it is malformed."""
    with contextlib.suppress(ValueError, TypeError):
        record = Record(*json.loads(message))
        if record.state in ("queued", "running", *ENDED) and isinstance(record.worker, str):
            return record
    return None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment on the board: its stash commit, its state, and the commit of the state ("" if none)."""

    name: str
    stash_rev: str
    record: Record
    state_rev: str = ""
    heard: int = 0  # seconds since the epoch

    def shown_state(self, lost_after_s: float) -> str:
        lost = self.record.state == "running" and time.time() - self.heard > lost_after_s
        return "lost" if lost else self.record.state


class Board:
    """Read and write the refs of a Git remote through a temporary repository: the user's own does not change."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url

    def git(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """Run Git in the temporary repository and return its output; raise EnvironmentFailure if it fails."""
        identity = ("-c", "user.name=submit", "-c", "user.email=submit@localhost")
        return run("git", *identity, *arguments, folder=self.folder, check=check, text=text)

    def experiments(self) -> dict[str, Experiment]:
        """Return all experiments of the remote by name, in the order in which they were sent."""
        self.git("fetch", "-q", "--prune", self.url, "+refs/submit/*:refs/submit/*")
        form = "--format=%(refname)%09%(objectname)%09%(committerdate:unix)%09%(contents:subject)"
        lines = self.git("for-each-ref", "--sort=committerdate", form, "refs/submit").splitlines()
        refs = {ref: rest for ref, *rest in (line.split("\t", 3) for line in lines)}
        found = {}
        for ref, (stash_rev, *_) in refs.items():
            if ref.startswith(QUEUED):
                name = ref.removeprefix(QUEUED)
                rev, heard, subject = refs.get(STATE + name, ("", "0", '["queued"]'))
                if record := read_record(subject):
                    found[name] = Experiment(name, stash_rev, record, rev, int(heard or 0))
                else:
                    remedy = f"`git push {self.url} :{STATE}{name}` queues the experiment again"
                    print(f"warning: {STATE}{name} is not a state of `submit`; {remedy}", file=sys.stderr, flush=True)
        return found

    def send(self, stash_revs: dict[str, str]) -> None:
        """Put stash commits on the board by name, in place of ended experiments of the same names."""
        old_states = [f":{STATE}{name}" for name, found in self.experiments().items() if found.state_rev]
        states = [ref for ref in old_states if ref.removeprefix(f":{STATE}") in stash_revs]
        stashes = [f"+{rev}:{QUEUED}{name}" for name, rev in stash_revs.items()]
        self.git("push", "-q", "--atomic", self.url, *stashes, *states)

    def claim_next(self, worker: str, lost_after_s: float) -> Experiment | None:
        """Claim the first experiment that is queued or lost; return None if there is none."""
        for experiment in self.experiments().values():
            if experiment.shown_state(lost_after_s) in ("queued", "lost"):
                claimed = self.write(experiment, Record("running", worker))
                if claimed:
                    return claimed
        return None

    def write(self, experiment: Experiment, record: Record, log: str = "") -> Experiment | None:
        """Replace the state of an experiment; return it, or None if someone else changed the state meanwhile."""
        blob = self.git("hash-object", "-w", "--stdin", text=log).strip()
        tree = self.git("mktree", text=f"100644 blob {blob}\tlog\n").strip()
        rev = self.git("commit-tree", tree, "-m", json.dumps(record)).strip()
        written = dataclasses.replace(experiment, record=record, state_rev=rev, heard=int(time.time()))
        return written if self._replace(experiment, rev) else None

    def release(self, experiment: Experiment) -> bool:
        """Remove the state of an experiment, so that it is queued again; return False if it was changed meanwhile."""
        return self._replace(experiment, "")

    def _replace(self, experiment: Experiment, rev: str) -> bool:
        """Change the state from what was read to `rev`; raise EnvironmentFailure if the remote does not answer."""
        ref = STATE + experiment.name
        lease = f"--force-with-lease={ref}:{experiment.state_rev}"
        output = self.git("push", "--porcelain", lease, self.url, f"{rev}:{ref}", check=False)
        if not any(line.startswith(("Done", "!")) for line in output.splitlines()):
            raise EnvironmentFailure(f"{self.url}: the Git remote did not take {ref}; {output.strip()[-300:]}")
        return not any(line.startswith("!") for line in output.splitlines())

    def log(self, experiment: Experiment) -> str:
        """Return the end of the experiment's log, as its worker last sent it."""
        return self.git("show", f"{experiment.state_rev}:log") if experiment.state_rev else ""


def run(*command: str, folder: Path | str = ".", check: bool = True, text: str | None = None) -> str:
    """Run a command and return its output, with its errors if `check` is off; raise EnvironmentFailure if it fails."""
    errors = subprocess.PIPE if check else subprocess.STDOUT
    done = subprocess.run(command, cwd=folder, input=text, stdout=subprocess.PIPE, stderr=errors, text=True)
    if check and done.returncode:
        reason = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise EnvironmentFailure(f"{' '.join(command[:8])} ended with {done.returncode}: {reason}")
    return done.stdout


@contextlib.contextmanager
def open_board(repository: Path) -> Iterator[Board]:
    """Open the board of a repository's Git remote `origin`, which needs no objects that the repository has."""
    url = run("git", "remote", "get-url", "origin", folder=repository).strip()
    if (repository / url).exists():
        url = str((repository / url).resolve())  # a relative path, as seen from the temporary repository
    objects = Path(run("git", "rev-parse", "--git-path", "objects", folder=repository).strip())
    with tempfile.TemporaryDirectory(prefix="submit-") as folder:
        run("git", "init", "-q", "--bare", folder)
        (Path(folder) / "objects/info/alternates").write_text(f"{(repository / objects).resolve()}\n")
        yield Board(Path(folder), url)

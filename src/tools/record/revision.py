"""The files of an experiment, a Git revision or the workspace."""

import contextlib
import fnmatch
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc_data.index import DataIndexDirError

from lm.core.errors import EnvironmentFailure, IntegrityError, ParamsError
from lm.core.git import FETCH_ALL, git, reject_split_index
from tools.record.lock import Lock, hash_of_folder, md5_of_content, parse_lock
from tools.record.paths import LOCK, PIPELINE

WORKSPACE = "workspace"
NO_REPOSITORY = "this folder is not in a DVC repository; run the command in the project's folder"
NO_GIT = (
    "this folder has no .git, as after a download as ZIP, and DVC needs it; clone the repository, "
    "or run `git init && git add -A && git commit -m start`"
)


def check_repository() -> None:
    """Raise ParamsError outside a repository of Git, EnvironmentFailure in one that DVC cannot read."""
    if git("rev-parse", "--git-dir") is None:
        raise ParamsError(NO_GIT if Path(".dvc").is_dir() else NO_REPOSITORY)
    reject_split_index()


@contextlib.contextmanager
def explain_failures() -> Iterator[None]:
    """Raise ParamsError outside a DVC project, EnvironmentFailure if DVC finds no name of the user."""
    try:
        yield
    except NotDvcRepoError:
        raise ParamsError(NO_REPOSITORY) from None
    except KeyError as error:
        if "getpwuid" not in str(error):
            raise
        raise EnvironmentFailure(f"user {os.getuid()} has no name, which DVC asks for; run `export USER=me`") from None


def find_experiments() -> list[tuple[str, str]]:
    """Return (name, commit) of each finished experiment; those that started from different commits may share a name."""
    check_repository()
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", "refs/exps") or ""
    found = []
    for line in listed.splitlines():
        # refs/exps/XX/YY…/NAME, where XXYY… is the commit from which the experiment started.
        reference, commit = line.split()
        _, _, *start, name = reference.split("/")
        if len("".join(start)) == 40:
            found.append((name, commit))
    return found


def experiment_names() -> list[str]:
    """Return the name of each finished experiment."""
    return [name for name, _ in find_experiments()]


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern of names."""
    return any(letter in name for letter in "*?[")


def matching(patterns: list[str]) -> list[str]:
    """Return the names that the patterns match, each once; ParamsError if a pattern matches none."""
    names: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(sorted(experiment_names()), pattern) if is_pattern(pattern) else [pattern]
        if not matched:
            raise ParamsError(
                f"{pattern}: no finished experiment has such a name; `dvc exp list -A` lists them, and "
                "`dvc queue status` those that are not finished"
            )
        names += matched
    return list(dict.fromkeys(names))


def unfinished(patterns: list[str]) -> dict[str, str]:
    """Return name → state of the experiments in the queue, or running elsewhere, that match a pattern."""
    check_repository()
    with explain_failures(), Repo() as repo:
        queued = {entry["name"]: entry["status"] for entry in repo.experiments.celery_queue.status()}
        running = {entry.name: "Running" for entry in repo.experiments.tempdir_queue.iter_active()}
    states = {name: state for name, state in (queued | running).items() if name and state != "Success"}
    finished = set(experiment_names())
    return {
        name: state
        for name, state in sorted(states.items())
        if name not in finished and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }


def find_commit(name: str) -> str | None:
    """Return the commit of an experiment or a Git revision, None for WORKSPACE. ParamsError unless there is one."""
    check_repository()
    if name == WORKSPACE:
        return None
    commits = {commit for experiment, commit in find_experiments() if experiment == name}
    if len(commits) > 1:
        remedy = "name one by its hash, which `dvc exp list -A` shows"
        raise ParamsError(f"{name} is the name of several experiments; {remedy}")
    of_git = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if of_git and commits - {of_git}:
        (experiment,) = commits
        both = f"the experiment {experiment} and the git revision {of_git}"
        raise ParamsError(f"{name} is the name of {both}; name one of them by this hash")
    commits |= {of_git} if of_git else set()
    if not commits:
        problem = "is neither an experiment nor a git revision; `dvc exp list -A` lists the experiments, "
        problem += f"`git branch` the branches; HEAD means the last commit, and {WORKSPACE} the files in this folder"
        if git("rev-parse", "--is-shallow-repository") == "true":
            problem += "; the clone has only a part of its history, which `git fetch --unshallow` completes"
        raise ParamsError(f"{name} {problem}")

    # DVC would wait forever for files that Git cannot read: a partial clone (`git clone --filter`) lacks some, others
    # may be lost or damaged.
    (commit,) = commits
    objects = git("rev-list", "--objects", "--no-walk", "--missing=print", commit) or ""
    if any(line.startswith("?") for line in objects.splitlines()):
        raise EnvironmentFailure(f"{name}: {FETCH_ALL}")
    git("archive", "--format=tar", f"--output={os.devnull}", commit)  # reads them all
    return commit


class Revision:
    """The files of an experiment, a Git revision or the workspace.

    Parameters and hashes come from dvc.lock: params.yaml may have been edited since.
    """

    def __init__(self, name: str):
        """Open revision `name`; ParamsError if it does not exist."""
        self.name = name
        self._commit = find_commit(name)

    @functools.cached_property
    def _folder(self) -> str:
        """Return the folder of the project inside a larger Git repository, as a prefix of the commit's paths."""
        is_commit = self._commit is not None
        return (git("rev-parse", "--show-prefix") or "") if is_commit else ""

    @property
    def origin(self) -> str:
        """Return the commit that an experiment started from, or HEAD for the workspace; a Git revision is its own."""
        if self._commit is None:
            return git("rev-parse", "HEAD") or "no commit"
        is_experiment = self._commit in (commit for _, commit in find_experiments())
        parent = git("rev-parse", f"{self._commit}^") if is_experiment else None
        return parent or self._commit

    @functools.cached_property
    def lock(self) -> Lock:
        """Return dvc.lock. Raise IntegrityError if it is missing or broken."""
        lock = self.read_if_there(LOCK)
        pipeline = self.read_if_there(PIPELINE)
        if lock is None or pipeline is None:
            raise IntegrityError(f"{self.name}: has no {LOCK}, so no run is recorded there; run `dvc repro` first")
        return parse_lock(lock, pipeline, f"{self.name}: {LOCK}")

    def read_if_there(self, path: Path) -> str | None:
        """Return the text of a file of the commit, or in the workspace; None if it is not there."""
        if self._commit is None:
            return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        blob = git("rev-parse", "--verify", "--quiet", f"{self._commit}:./{path.as_posix()}")
        return git("cat-file", "blob", blob) if blob else None

    @functools.cached_property
    def _files(self) -> DVCFileSystem:
        """Return all files, also those in DVC's cache or its remote."""
        with explain_failures():
            return DVCFileSystem(rev=self._commit, subrepos=bool(self._folder))

    def read(self, path: Path) -> bytes:
        """Return the bytes of an output. IntegrityError if they are not those that dvc.lock records."""
        outputs = self.lock.hashes("outs")
        try:
            known = self._files.info(f"{self._folder}{path}").get("dvc_info") or {}
            content = cast(bytes, self._files.read_bytes(f"{self._folder}{path}"))
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(
                f"{self.name}: {path} is neither in git nor in DVC's cache ({error}); run `dvc repro` there, or "
                "`dvc pull` it"
            ) from None
        recorded = outputs.get(str(path), known.get("md5"))
        found = md5_of_content(content)
        if recorded not in (None, found):
            raise IntegrityError(
                f"{self.name}: {path} has the md5 {found}, {LOCK} says {recorded}; run `dvc repro` "
                "(or, if the cache is damaged, `dvc repro -f` with the stage that writes it)"
            )
        return content

    def read_json(self, path: Path) -> dict:
        """Return the content of a JSON output."""
        return json.loads(self.read(path))

    def files_of(self, folder: str) -> dict[str, str]:
        """Return name → md5 of the files in a folder of code, or {} if they are not those with which the stages ran."""
        files = {}
        for path in self._files.find(f"{self._folder}{folder}"):
            name = str(path).removeprefix("/").removeprefix(f"{self._folder}{folder}/")
            files[name] = md5_of_content(cast(bytes, self._files.read_bytes(path)))
        return files if hash_of_folder(files) == self.lock.hashes("deps").get(folder) else {}

"""Runs of this repository: the files of an experiment, a Git revision or the workspace, read and checked.

`read_run` reads all of a run, also what DVC has in its cache. `find_known_runs` reads the scores of all finished runs,
by their dvc.lock and metrics alone: quick for hundreds of experiments.
"""

import contextlib
import csv
import dataclasses
import fnmatch
import functools
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.parquet as pq
import pygit2
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.scm import SCMError
from dvc_data.index import DataIndexDirError

from evidence.runs import Run
from lm.core.errors import EnvironmentFailure, IntegrityError, ParamsError
from lm.core.git import FETCH_ALL, git
from lm.text.slices import TEST
from tools.common.lock import Lock, hash_of_folder, md5_of_content, parse_lock, read_timing
from tools.common.parameters import preset_names_left_out
from tools.common.paths import (
    CURVE,
    DOCUMENT_LOSSES,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    LOCK,
    MANIFEST,
    MODEL,
    PIPELINE,
    VALIDATION_SIDECAR,
)
from tools.common.test_reads import TEST_READS, parse_test_reads

WORKSPACE = "workspace"
SEED = "train.seed"
DIGEST = "checkpoint_digest"  # a column of plots/validation.csv
CODE = ("src/", "requirements.txt")  # inputs that two runs with the same bits may differ in
BRANCHES = "refs/heads/"
TAGS = "refs/tags/"
NO_REPOSITORY = "this folder is not in a DVC repository; run the command in the project's folder"
NO_GIT = (
    "this folder has no .git, as after a download as ZIP, and DVC needs it; clone the repository, "
    "or run `git init && git add -A && git commit -m start`"
)


# A run, and what differs between two.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What DVC recorded of a run beside its losses."""

    params: dict[str, object]  # by dotted name
    inputs: dict[str, str]  # path → hash of the data and code that the stages read
    tokens_seen: int
    best_tokens_seen: int  # by the best model
    num_parameters: int
    train_seconds: float | None  # None: not trained on this machine
    validations: list[dict[str, str]]  # rows of plots/validation.csv as text by column
    is_lossy: bool = False  # whether the tokenizer changes the validation text
    num_earlier_looks: int = 0  # at the test split, for other weights, when this run was recorded
    code: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)  # folder → file → md5, if known

    @property
    def configuration(self) -> str:
        """Return everything that made the run except its seed, as one comparable string."""
        return configuration(self.params, self.inputs)

    @property
    def data(self) -> dict[str, str]:
        """Return the inputs without code."""
        return {path: md5 for path, md5 in self.inputs.items() if not path.startswith(CODE)}


@dataclasses.dataclass(frozen=True)
class KnownRun:
    """A finished run of which only the score is read."""

    name: str
    bits_per_byte: float
    seed: int
    params: dict[str, object]  # as in `Run`
    inputs: dict[str, str]

    @property
    def configuration(self) -> str:
        return configuration(self.params, self.inputs)

    @property
    def parameters(self) -> str:
        """Return the parameters except the seed as one comparable string."""
        return configuration(self.params, {})


def configuration(params: Mapping[str, object], inputs: Mapping[str, str]) -> str:
    """Return parameters except the seed, and inputs, as one comparable string."""
    others = {name: value for name, value in params.items() if name != SEED}
    return json.dumps([others, dict(inputs)], sort_keys=True)


# Git and DVC.


@contextlib.contextmanager
def explain_failures() -> Iterator[None]:
    """Raise ParamsError outside a repository, EnvironmentFailure if DVC cannot read it or asks for a user's name."""
    try:
        yield
    except (NotDvcRepoError, SCMError):
        is_project = Path(".dvc").is_dir() and not Path(".git").exists()
        raise ParamsError(NO_GIT if is_project else NO_REPOSITORY) from None
    except pygit2.GitError as error:
        remedy = "`git fsck` checks it"
        if "not owned" in str(error):
            remedy = f"run `git config --global --add safe.directory {Path.cwd()}`"
        raise EnvironmentFailure(f"DVC cannot open the repository of Git: {error}; {remedy}") from None
    except KeyError as error:
        if "getpwuid" not in str(error):
            raise
        raise EnvironmentFailure(f"user {os.getuid()} has no name, which DVC asks for; run `export USER=me`") from None


def open_git() -> pygit2.Repository:
    """Return the Git repository of the working folder; ParamsError if there is none."""
    with explain_failures():
        path = pygit2.discover_repository(".")
        if path is None:
            raise NotDvcRepoError(".")
        return pygit2.Repository(path)


def find_experiments() -> list[tuple[str, str]]:
    """Return (name, commit) of each finished experiment; those that started from different commits may share a name."""
    repository = open_git()
    found = []
    for reference in repository.references:
        # refs/exps/XX/YY…/NAME, where XXYY… is the commit from which the experiment started.
        _, kind, *start, name = reference.split("/")
        if kind == "exps" and len("".join(start)) == 40:
            found.append((name, str(repository.references[reference].target)))
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


def find_commit(name: str) -> pygit2.Commit | None:
    """Return the commit of an experiment or a Git revision, None for WORKSPACE. ParamsError unless there is one."""
    repository = open_git()
    if name == WORKSPACE:
        return None
    of_git = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    commits = [of_git] if of_git else [commit for experiment, commit in find_experiments() if experiment == name]
    if len(commits) > 1:
        remedy = "name one by its hash, which `dvc exp list -A` shows"
        raise ParamsError(f"{name} is the name of several experiments; {remedy}")
    if not commits:
        problem = "is neither an experiment nor a git revision; `dvc exp list -A` lists the experiments, "
        problem += f"`git branch` the branches; HEAD means the last commit, and {WORKSPACE} the files in this folder"
        if git("rev-parse", "--is-shallow-repository") == "true":
            problem += "; the clone has only a part of its history, which `git fetch --unshallow` completes"
        raise ParamsError(f"{name} {problem}")

    # DVC would wait for ever for files that Git cannot read: a partial clone (`git clone --filter`) lacks some, others
    # may be lost or damaged.
    (commit,) = commits
    objects = git("rev-list", "--objects", "--no-walk", "--missing=print", commit) or ""
    if any(line.startswith("?") for line in objects.splitlines()):
        raise EnvironmentFailure(f"{name}: {FETCH_ALL}")
    git("archive", "--format=tar", f"--output={os.devnull}", commit)  # reads them all
    return repository[commit].peel(pygit2.Commit)


# The files of a state.


class Revision:
    """The files of an experiment, a Git revision or the workspace.

    Parameters and hashes come from dvc.lock: params.yaml may have been edited since.
    """

    def __init__(self, name: str, commit: pygit2.Commit | None = None):
        """Open revision `name`, whose commit may be known; ParamsError if it does not exist."""
        self.name = name
        self._commit = commit or find_commit(name)

    @property
    def origin(self) -> pygit2.Commit:
        """Return the commit that an experiment started from, or HEAD for the workspace; a Git revision is its own."""
        if self._commit is None:
            return open_git().revparse_single("HEAD").peel(pygit2.Commit)
        is_experiment = str(self._commit.id) in (commit for _, commit in find_experiments())
        return self._commit.parents[0] if is_experiment else self._commit

    @functools.cached_property
    def lock(self) -> Lock:
        """Return dvc.lock. Raise IntegrityError if it is missing or broken."""
        lock = self.read_if_there(LOCK)
        pipeline = self.read_if_there(PIPELINE)
        if lock is None or pipeline is None:
            raise IntegrityError(f"{self.name}: has no {LOCK}, so no run is recorded there; run `dvc repro` first")
        return parse_lock(lock.decode("utf-8"), pipeline.decode("utf-8"), f"{self.name}: {LOCK}")

    def read_if_there(self, path: Path) -> bytes | None:
        """Return the bytes of a file of the commit, or in the workspace; None if it is not there."""
        if self._commit is None:
            return path.read_bytes() if path.is_file() else None
        try:
            found = self._commit.tree[path.as_posix()]
        except KeyError:
            return None
        return found.data if isinstance(found, pygit2.Blob) else None

    @functools.cached_property
    def _files(self) -> DVCFileSystem:
        """Return all files, also those in DVC's cache or its remote."""
        with explain_failures():
            return DVCFileSystem(rev=str(self._commit.id) if self._commit else None)

    def read(self, path: Path) -> bytes:
        """Return the bytes of an output. IntegrityError if they are not those that dvc.lock records."""
        outputs = self.lock.hashes("outs")
        try:
            known = self._files.info(str(path)).get("dvc_info") or {}
            content = cast(bytes, self._files.read_bytes(str(path)))
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

    def copy(self, path: Path, to: str) -> None:
        """Copy a file or a folder to the local path `to`."""
        try:
            self._files.get(str(path), to, recursive=True)
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(f"{self.name}: {path} cannot be read ({error}); `dvc pull` it") from None

    def files_of(self, folder: str) -> dict[str, str]:
        """Return name → md5 of the files in a folder of code, or {} if they are not those with which the stages ran."""
        files = {}
        for path in self._files.find(folder):
            name = str(path).removeprefix("/").removeprefix(f"{folder}/")
            files[name] = md5_of_content(cast(bytes, self._files.read_bytes(path)))
        return files if hash_of_folder(files) == self.lock.hashes("deps").get(folder) else {}


# Reading runs whole.


def read_runs(revisions: list[Revision]) -> tuple[list[Run], dict[str, Facts]]:
    """Read runs that were evaluated on the same documents, and their facts by name; IntegrityError if they were not."""
    for other in revisions[1:]:
        reject_other_text(revisions[0], other)
    runs = []
    facts = {}
    for revision in revisions:
        run, facts[revision.name] = read_run(revision)
        runs.append(run)
    if not all(np.array_equal(runs[0].sizes, run.sizes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")
    return runs, facts


def reject_other_text(first: Revision, other: Revision) -> None:
    """Raise IntegrityError unless both validation files hold the same documents, whatever the tokenizer."""
    # The same range of characters of the same file.
    sidecars = [revision.read_json(VALIDATION_SIDECAR) for revision in (first, other)]
    texts = [(meta["source"].get("text_sha256"), meta["slice"]) for meta in sidecars]
    if None in texts[0] or texts[0] != texts[1]:
        described = " and ".join(
            f"{meta['source']['name']} {meta['slice']} ({meta['documents']} documents, {meta['utf8_bytes']} bytes)"
            for meta in sidecars
        )
        raise IntegrityError(
            f"{first.name} and {other.name} were evaluated on different documents: {described}; "
            "compare runs with the same data.source, validation range and selection"
        )


def read_run(revision: Revision) -> tuple[Run, Facts]:
    """Read the losses and records of a run. IntegrityError if it is not finished, or a loss is not finite."""
    lock = revision.lock
    if not lock.is_finished:
        found = f"{revision.name}: {LOCK} has no evaluation of the model and the text that it records"
        raise IntegrityError(f"{found}; run `dvc repro` there")
    losses = pq.read_table(io.BytesIO(revision.read(DOCUMENT_LOSSES)))
    columns = {name: losses[name].to_numpy() for name in losses.column_names}
    if not np.isfinite(columns["nats"]).all():
        raise IntegrityError(
            f"{revision.name}: {DOCUMENT_LOSSES} contains losses that are not finite; run `dvc repro -f eval`"
        )
    model = revision.read_json(MODEL)
    details = revision.read_json(EVALUATION_DETAILS)
    params = preset_names_left_out(lock.params)
    code = [path for path, md5 in lock.inputs.items() if path.startswith(CODE) and md5.endswith(".dir")]
    facts = Facts(
        params=params,
        inputs=lock.inputs,
        tokens_seen=model["last"]["tokens_seen"],
        best_tokens_seen=model["best"]["tokens_seen"],
        num_parameters=model["training"]["parameters"],
        train_seconds=read_timing(model).get("train_seconds"),
        validations=parse_curve(revision.read(CURVE)),
        num_earlier_looks=num_earlier_looks(revision, model["best"].get("sha256")),
        is_lossy="lossy_tokenizer" in details,
        code={path: revision.files_of(path) for path in code},
    )
    run = Run(
        name=revision.name,
        seed=cast(int, params[SEED]),
        values=columns["nats"] / math.log(2),
        sizes=columns["utf8_bytes"],
        configuration=facts.configuration,
        sources=columns.get("source"),
    )
    return run, facts


def parse_curve(content: bytes) -> list[dict[str, str]]:
    """Return the rows of plots/validation.csv as text by column."""
    return list(csv.DictReader(content.decode("utf-8").splitlines()))


def read_curve(path: Path) -> dict[int, dict[str, str]]:
    """Return the rows of a curve of validations by step, or {} if the file does not exist."""
    return {int(row["step"]): row for row in parse_curve(path.read_bytes())} if path.exists() else {}


def num_earlier_looks(revision: Revision, weights_sha256: str | None) -> int:
    """Return how many looks at its test split, for other weights, a revision holds: its run may be chosen by them.

    Looks at any text count if its own cannot be read.
    """
    content = revision.read_if_there(TEST_READS)
    if content is None:
        return 0
    reads = parse_test_reads(content.decode("utf-8", "replace"), f"{revision.name}: {TEST_READS}")
    others = [read for read in reads if read.weights_sha256 != weights_sha256]
    if not others:
        return 0
    try:
        manifest = revision.read_json(MANIFEST)
    except IntegrityError:
        return len(others)
    test_sha256 = manifest.get(TEST, {}).get("sha256")
    return sum(read.test_sha256 == test_sha256 for read in others)


# Reading scores.


@dataclasses.dataclass(frozen=True)
class KnownRuns:
    """The runs that are known here, each once, and the names of states without a finished run."""

    runs: list[KnownRun]
    without_results: list[str]
    experiment_names: list[str]


def find_known_runs() -> KnownRuns:
    """Return the runs of the workspace, branches, tags, HEAD and finished experiments; the same files count once."""
    # Read what is here first, so that a run in several places has the shorter name.
    repository = open_git()
    experiments = find_experiments()
    revisions = [Revision(WORKSPACE), *named_commits(repository)]
    for name, commit in experiments:
        revisions.append(Revision(name, repository[commit].peel(pygit2.Commit)))

    runs: list[KnownRun] = []
    without_results: list[str] = []
    seen: set[tuple[bytes | None, bytes | None]] = set()
    for revision in revisions:
        files = revision.read_if_there(LOCK), revision.read_if_there(EVAL_METRICS)
        if None not in files and files in seen:
            continue
        seen.add(files)
        run = read_known_run(revision)
        if run:
            runs.append(run)
        else:
            without_results.append(revision.name)
    return KnownRuns(runs, without_results, [name for name, _ in experiments])


def named_commits(repository: pygit2.Repository) -> Iterator[Revision]:
    """Yield HEAD, each branch and each tag; a tag of anything else than a commit is left out."""
    names = [] if repository.head_is_unborn else ["HEAD"]
    names += [name for name in repository.references if name.startswith((BRANCHES, TAGS))]
    for name in names:
        try:
            commit = repository.revparse_single(name).peel(pygit2.Commit)
        except (pygit2.GitError, KeyError, ValueError):
            continue
        yield Revision(name.removeprefix(BRANCHES).removeprefix(TAGS), commit)


def read_known_run(revision: Revision) -> KnownRun | None:
    """Return the run of a revision; None if its dvc.lock and metrics/eval.json are not those of one finished run."""
    metrics = revision.read_if_there(EVAL_METRICS)
    try:
        lock = revision.lock
        if metrics is None or not lock.is_finished:
            return None
        if lock.hashes("outs").get(str(EVAL_METRICS)) != md5_of_content(metrics):
            return None
        params = preset_names_left_out(lock.params)
        score = float(json.loads(metrics)["bits_per_byte"])
        return KnownRun(revision.name, score, int(params[SEED]), params, lock.inputs)
    except (IntegrityError, ValueError, KeyError, TypeError, AttributeError):  # as a merge leaves it
        return None

"""Runs of this repository: the files of an experiment, a Git revision or the workspace, read and checked.

`read_run` reads all of a run, also what DVC has in its cache. `find_known_runs` reads the scores of all finished runs,
by their dvc.lock and metrics alone: quick for hundreds of experiments.
"""

import contextlib
import csv
import dataclasses
import fnmatch
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pyarrow.parquet as pq
import pygit2
import yaml
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.scm import RevError, SCMError
from dvc_data.index import DataIndexDirError
from pygit2 import GitError

from evidence.runs import Group, LossRun
from lm.core.errors import EnvironmentFailure, IntegrityError, ParamsError
from lm.core.git import FETCH_ALL, git
from lm.core.params import read_yaml
from lm.text.slices import TEST
from tools.common.lock import (
    hash_of_folder,
    hashes,
    md5_of_content,
    parse_lock,
    read_lock,
    read_timing,
    stages_of_former_runs,
)
from tools.common.parameters import preset_names_left_out, recorded_params
from tools.common.paths import (
    DOCUMENT_LOSSES,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    LOCK,
    MANIFEST,
    MODEL,
    PIPELINE,
    PLOTS,
    VALIDATION_SIDECAR,
)
from tools.common.test_reads import TEST_READS, parse_test_reads

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader


WORKSPACE = "workspace"
SEED = "train.seed"
ABSENT = "(none)"
DIGEST = "checkpoint_digest"  # a column of plots/validation.csv
CODE = ("src/", "requirements.txt")  # inputs that two runs with the same bits may differ in
# Inputs that cannot explain a difference: those of stages before and after the model, and what is made from the rest.
STAGES_LEFT_OUT = ("fetch", "audit", "plot")
INPUTS_LEFT_OUT = ("data/models", "data/audit")
EVALUATION = "eval"  # the stage that ends a run
BRANCHES = "refs/heads/"
TAGS = "refs/tags/"
NO_REPOSITORY = "this folder is not in a DVC repository; run the command in the project's folder"
NO_GIT = (
    "this folder has no .git, as after a download as ZIP, and DVC needs it; clone the repository, "
    "or run `git init && git add -A && git commit -m start`"
)


@contextlib.contextmanager
def explain_failures() -> Iterator[None]:
    """Raise ParamsError outside a repository, EnvironmentFailure if DVC cannot read it or asks for a user's name.

    A RevError, of a revision that does not exist, passes.
    """
    try:
        yield
    except RevError:
        raise
    except (NotDvcRepoError, SCMError):
        is_project = Path(".dvc").is_dir() and not Path(".git").exists()
        raise ParamsError(NO_GIT if is_project else NO_REPOSITORY) from None
    except GitError as error:
        remedy = "`git fsck` checks it"
        if "not owned" in str(error):
            remedy = f"run `git config --global --add safe.directory {Path.cwd()}`"
        raise EnvironmentFailure(f"DVC cannot open the repository of Git: {error}; {remedy}") from None
    except KeyError as error:
        if "getpwuid" not in str(error):
            raise
        raise EnvironmentFailure(f"user {os.getuid()} has no name, which DVC asks for; run `export USER=me`") from None


def reject_unreadable(revision: str) -> None:
    """Raise EnvironmentFailure if Git cannot read all files of a revision: DVC would wait for them for ever.

    A partial clone (`git clone --filter`) lacks some; others may be lost or damaged.
    """
    commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:  # not a revision of Git
        return
    objects = git("rev-list", "--objects", "--no-walk", "--missing=print", commit) or ""
    if any(line.startswith("?") for line in objects.splitlines()):
        raise EnvironmentFailure(f"{revision}: {FETCH_ALL}")
    git("archive", "--format=tar", f"--output={os.devnull}", commit)  # reads them all


def is_shallow() -> bool:
    """Return whether the clone has only a part of its history."""
    return git("rev-parse", "--is-shallow-repository") == "true"


# A run, and what differs between two.


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run(LossRun):
    """A run that DVC recorded."""

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


def configuration(params: Mapping[str, object], inputs: Mapping[str, str]) -> str:
    """Return parameters except the seed, and inputs, as one comparable string."""
    others = {name: value for name, value in params.items() if name != SEED}
    return json.dumps([others, dict(inputs)], sort_keys=True)


def what_differs(a: Group[Run], b: Group[Run]) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B) of parameters and inputs that differ."""
    rows = different_parameters(a, b)
    for path, files, md5, other_md5 in different_inputs(a, b):
        name = f"{path}: {', '.join(files)}" if files else path
        rows.append((name, md5[:10], other_md5[:10]))
    return rows


def different_parameters(a: Group[Run], b: Group[Run]) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B); the seed only between two single runs, as a group has several."""
    rows = different_entries(a.runs[0].params, b.runs[0].params)
    if len(a.runs) + len(b.runs) > 2:
        rows = [row for row in rows if row[0] != SEED]
    return rows


def different_inputs(a: Group[Run], b: Group[Run]) -> list[tuple[str, list[str], str, str]]:
    """Return rows (path, files of a folder of code that differ, md5 of A, md5 of B) of code and data."""
    first = a.runs[0]
    other = b.runs[0]
    rows = []
    for path, md5, other_md5 in different_entries(first.inputs, other.inputs):
        files = changed_files(first.code.get(path, {}), other.code.get(path, {}))
        rows.append((path, files, str(md5), str(other_md5)))
    return rows


def changed_files(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the names of the files that two versions of a folder do not share; [] if one of them is not known."""
    if not a or not b:
        return []
    return [name for name, *_ in different_entries(a, b)]


def different_entries(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return rows (name, value in A, value in B) of the entries that differ, by name."""
    rows = [(name, a.get(name, ABSENT), b.get(name, ABSENT)) for name in sorted(a.keys() | b.keys())]
    return [row for row in rows if row[1] != row[2]]


def same_until(a: Run, b: Run) -> str | None:
    """Say until which validation two runs of equal parameters and data had the same bits, and what differs then.

    Return None for other runs, and without recorded digests of the checkpoints.
    """
    digest = "checkpoint_digest"
    have_digests = all(run.validations and all(row.get(digest) for row in run.validations) for run in (a, b))
    if not have_digests or a.params != b.params or a.data != b.data:
        return None
    until = "different from step 0 on"
    for x, y in zip(a.validations, b.validations, strict=False):
        if x != y:
            losses = f"validation losses {x['val_loss']} and {y['val_loss']}"
            if x[digest] == y[digest]:
                cause = "the machine" if a.inputs == b.inputs else "the code"
                return f"equal weights at step {x['step']} (digest {x[digest]}), other {losses}: {cause} differs"
            return f"{until}; step {x['step']} has the {losses}, digests {x[digest]} and {y[digest]}"
        until = f"identical until step {x['step']}"
    if len(a.validations) == len(b.validations):
        return "identical"
    shorter = min(a, b, key=lambda run: len(run.validations))
    return f"{until}, the last validation of `{shorter.name}`"


# Files of a state.


class Revision:
    """Files of one recorded state. Parameters and hashes come from dvc.lock: params.yaml may have been edited since."""

    def __init__(self, name: str):
        """Open revision `name` of the repository around the working folder; ParamsError if it does not exist."""
        self.name = name
        if name != WORKSPACE:
            reject_unreadable(name)
        elif LOCK.exists():
            read_lock()  # names conflicts of a merge
        try:
            with explain_failures():
                self._files = DVCFileSystem(rev=None if name == WORKSPACE else name)
                lock = self._content(LOCK)[0].decode("utf-8")
        except RevError:
            if experiment_names().count(name) > 1:
                problem = "is the name of several experiments; name one by its hash, which `dvc exp list -A` shows"
            else:
                problem = (
                    "is neither an experiment nor a git revision; `dvc exp list -A` lists the experiments, "
                    f"and {WORKSPACE} means the files in this folder"
                )
            if is_shallow():
                problem += "; the clone has only a part of its history, which `git fetch --unshallow` completes"
            raise ParamsError(f"{name} {problem}") from None
        self.stages: dict[str, dict] = parse_lock(lock, f"{name}: {LOCK}")["stages"]

    def _content(self, path: Path | str) -> tuple[bytes, str | None]:
        """Return a file's bytes (from git, the workspace, DVC's cache or its remote) and its md5 in DVC's index."""
        try:
            known = self._files.info(str(path)).get("dvc_info") or {}
            return cast(bytes, self._files.read_bytes(str(path))), known.get("md5")
        except SCMError:
            raise
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(
                f"{self.name}: {path} is neither in git nor in DVC's cache ({error}); run `dvc repro` there, or "
                "`dvc pull` it"
            ) from None

    def read(self, path: Path | str) -> bytes:
        """Return the bytes of an output. IntegrityError if they are not those that dvc.lock records."""
        content, recorded = self._content(path)
        recorded = self.hashes("outs").get(str(path), recorded)
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if recorded not in (None, found):
            raise IntegrityError(
                f"{self.name}: {path} has the md5 {found}, {LOCK} says {recorded}; run `dvc repro` "
                "(or, if the cache is damaged, `dvc repro -f` with the stage that writes it)"
            )
        return content

    def read_if_there(self, path: Path) -> bytes | None:
        """Return the bytes of a file that is in Git or in the workspace, None if it is not there."""
        return cast(bytes, self._files.read_bytes(str(path))) if self._files.exists(str(path)) else None

    def read_json(self, path: Path | str) -> dict:
        """Return the content of a JSON output."""
        return json.loads(self.read(path))

    def copy(self, path: Path | str, to: str) -> None:
        """Copy a file or a folder to the local path `to`."""
        try:
            self._files.get(str(path), to, recursive=True)
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(f"{self.name}: {path} cannot be read ({error}); `dvc pull` it") from None

    def hashes(self, kind: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
        """Return path → md5 of the "deps" or "outs" of all stages except `leave_out`."""
        stages = (stage for name, stage in self.stages.items() if name not in leave_out)
        return {entry["path"]: entry["md5"] for stage in stages for entry in stage.get(kind, ())}

    def files_of(self, folder: str) -> dict[str, str]:
        """Return name → md5 of the files in a folder of code, or {} if they are not those with which the stages ran."""
        files = {}
        for path in self._files.find(folder):
            name = str(path).removeprefix("/").removeprefix(f"{folder}/")
            files[name] = md5_of_content(cast(bytes, self._files.read_bytes(path)))
        return files if hash_of_folder(files) == self.hashes("deps").get(folder) else {}

    def params(self) -> dict[str, object]:
        """Return the parameters that the stages ran with, by dotted name; a list is one value."""
        return recorded_params({"stages": self.stages})

    def results(self) -> dict[str, dict]:
        """Return model.json and, as `evaluation`, the details of eval."""
        return {**self.read_json(MODEL), "evaluation": self.read_json(EVALUATION_DETAILS)}


def experiment_names() -> list[str]:
    """Return the name of each finished experiment; those that started from different commits may share one."""
    with explain_failures(), Repo() as repo:
        by_commit = repo.experiments.ls(all_commits=True)
    return [name for entries in by_commit.values() for name, _ in entries]


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


# Reading runs whole.


def read_runs(revisions: list[Revision]) -> list[Run]:
    """Read runs that were evaluated on the same documents; IntegrityError if they were not."""
    for other in revisions[1:]:
        reject_other_text(revisions[0], other)
    runs = [read_run(revision) for revision in revisions]
    if not all(np.array_equal(runs[0].utf8_bytes, run.utf8_bytes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")
    return runs


def read_run(revision: Revision) -> Run:
    """Read the losses and metrics of a run; IntegrityError if a loss is not finite or the run is too old."""
    results = revision.results()
    losses = pq.read_table(io.BytesIO(revision.read(DOCUMENT_LOSSES)))
    columns = {name: losses[name].to_numpy() for name in losses.column_names}
    if not np.isfinite(columns["nats"]).all():
        raise IntegrityError(
            f"{revision.name}: {DOCUMENT_LOSSES} contains losses that are not finite; run `dvc repro -f eval`"
        )
    inputs = revision.hashes("deps", STAGES_LEFT_OUT)
    params = preset_names_left_out(revision.params())
    curve = revision.read(PLOTS / "validation.csv").decode("utf-8")
    return Run(
        name=revision.name,
        seed=params[SEED],
        nats=columns["nats"],
        utf8_bytes=columns["utf8_bytes"],
        sources=columns.get("source"),
        params=params,
        inputs=comparable_inputs(inputs),
        tokens_seen=results["last"]["tokens_seen"],
        best_tokens_seen=results["best"]["tokens_seen"],
        num_parameters=results["training"]["parameters"],
        train_seconds=read_timing(results).get("train_seconds"),
        validations=list(csv.DictReader(curve.splitlines())),
        num_earlier_looks=num_earlier_looks(revision, results["best"].get("sha256")),
        is_lossy="lossy_tokenizer" in results.get("evaluation", {}),
        code={path: revision.files_of(path) for path, md5 in inputs.items() if is_code_folder(path, md5)},
    )


def comparable_inputs(inputs: dict[str, str]) -> dict[str, str]:
    """Return the inputs (path → md5) of all stages except STAGES_LEFT_OUT without INPUTS_LEFT_OUT."""
    return {path: md5 for path, md5 in inputs.items() if path not in INPUTS_LEFT_OUT}


def is_code_folder(path: str, md5: str) -> bool:
    """Return whether an input of a stage is a folder of code."""
    return path.startswith(CODE) and md5.endswith(".dir")


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


def read_curve(path: Path) -> dict[int, dict[str, str]]:
    """Read a curve of validations; return its rows by step, or {} if the file does not exist."""
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


# Reading scores.


@dataclasses.dataclass(frozen=True)
class KnownRun:
    """A finished run of which only the score is read."""

    name: str
    bits_per_byte: float
    seed: int
    params: dict[str, object]  # by dotted name, as in `Run`
    inputs: dict[str, str]  # path → hash of the data and code that the stages read, as in `Run`

    @property
    def configuration(self) -> str:
        return configuration(self.params, self.inputs)

    @property
    def parameters(self) -> str:
        """Return the parameters except the seed as one comparable string."""
        return configuration(self.params, {})


@dataclasses.dataclass(frozen=True)
class KnownRuns:
    """The runs that are known here, each once, and the names of states without a finished run."""

    runs: list[KnownRun]
    without_results: list[str]
    experiment_names: list[str]


def find_known_runs() -> KnownRuns:
    """Return the runs of the workspace, branches, tags, HEAD and finished experiments; the same files count once."""
    runs: list[KnownRun] = []
    without_results: list[str] = []
    experiments: list[str] = []
    seen: set[tuple[bytes, bytes]] = set()
    with explain_failures(), Repo() as repo:
        folder = Path(os.path.relpath(repo.root_dir, repo.scm.root_dir))
        git_repository = pygit2.Repository(repo.scm.root_dir)

        # Read what is here first, so that a run in several places has the shorter name.
        states = [(WORKSPACE, read_here(LOCK), read_here(EVAL_METRICS))]
        for name, commit in named_commits(git_repository):
            states.append((name, read_of(commit, folder / LOCK), read_of(commit, folder / EVAL_METRICS)))
        for entries in repo.experiments.ls(all_commits=True).values():
            for name, sha in entries:
                experiments.append(name)
                commit = git_repository.revparse_single(sha).peel(pygit2.Commit)
                states.append((name, read_of(commit, folder / LOCK), read_of(commit, folder / EVAL_METRICS)))

    order = list(read_yaml(PIPELINE)["stages"])
    for name, lock, metrics in states:
        if lock is None or metrics is None:
            without_results.append(name)
            continue
        if (lock, metrics) in seen:
            continue
        seen.add((lock, metrics))
        run = known_run(name, lock, metrics, order)
        if run is None:
            without_results.append(name)
        else:
            runs.append(run)
    return KnownRuns(runs, without_results, experiments)


def named_commits(repository: pygit2.Repository) -> Iterator[tuple[str, pygit2.Commit]]:
    """Yield the name and the commit of HEAD, each branch and each tag; a tag of anything else is left out."""
    if not repository.head_is_unborn:
        yield "HEAD", repository.head.peel(pygit2.Commit)
    for reference in repository.references:
        for prefix in (BRANCHES, TAGS):
            if not reference.startswith(prefix):
                continue
            try:
                commit = repository.references[reference].peel(pygit2.Commit)
            except (pygit2.GitError, KeyError, ValueError):
                continue
            yield reference.removeprefix(prefix), commit


def read_here(path: Path) -> bytes | None:
    """Return the bytes of a file in this folder, None if there is none."""
    return path.read_bytes() if path.exists() else None


def read_of(commit: pygit2.Commit, path: Path) -> bytes | None:
    """Return the bytes of a file of a commit, None if it has none, or if a partial clone lacks it."""
    try:
        found = commit.tree[path.as_posix()]
    except KeyError:
        return None
    return found.data if isinstance(found, pygit2.Blob) else None


def known_run(name: str, lock: bytes, metrics: bytes, order: list[str]) -> KnownRun | None:
    """Return the run of a dvc.lock and metrics/eval.json; None if they are not of one finished run.

    order: the stages of dvc.yaml. A dvc.lock may still have others.
    """
    try:
        recorded = Loader(lock).get_single_data()["stages"]
        score = float(json.loads(metrics)["bits_per_byte"])
        stages = {stage: recorded[stage] for stage in order if stage in recorded}
        content = {"stages": stages}
        is_of_this_run = hashes(content, "outs").get(str(EVAL_METRICS)) == md5_of_content(metrics)
        is_finished = EVALUATION not in stages_of_former_runs(content)
        params = preset_names_left_out(recorded_params(content))
        seed = int(params[SEED])
        before = {stage: entry for stage, entry in stages.items() if stage not in STAGES_LEFT_OUT}
        inputs = hashes({"stages": before}, "deps")
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):  # as a merge leaves it
        return None
    if not (is_of_this_run and is_finished):
        return None
    return KnownRun(name, score, seed, params, comparable_inputs(inputs))


def read_known_run(name: str) -> KnownRun | None:
    """Return the run of an experiment, a git revision or the workspace; None if it is not finished.

    Raise ParamsError if the revision does not exist, IntegrityError if it has no results.
    """
    revision = Revision(name)
    order = list(read_yaml(PIPELINE)["stages"])
    return known_run(name, revision.read(LOCK), revision.read(EVAL_METRICS), order)


class Loader(SafeLoader):  # pyright: ignore[reportGeneralTypeIssues]
    """Read YAML 1.2 as ruamel.yaml does: that takes 60 ms for a dvc.lock, this takes 5, and `noise` reads hundreds."""

    yaml_implicit_resolvers: ClassVar[dict] = {}  # those of YAML 1.1 take 1e-05 for a text, and "on" for true


PLAIN_VALUES = {
    "null": r"~|null|",
    "bool": r"true|false",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}
for kind, pattern in PLAIN_VALUES.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})$"), None)

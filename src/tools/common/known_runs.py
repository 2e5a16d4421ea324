"""All finished runs that are known here, by their dvc.lock and metrics alone: quick for hundreds of experiments.

Experiments, HEAD, branches and tags are read from Git's objects, the workspace from its files. The weights and the
losses of documents, which are in DVC's cache, are not read.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pygit2
import yaml
from dvc.repo import Repo

from lm.core.params import read_yaml
from tools.common.dvc_repository import explain_failures
from tools.common.lock import hashes, md5_of_content, stages_of_former_runs
from tools.common.parameters import preset_names_left_out, recorded_params
from tools.common.paths import EVAL_METRICS, LOCK, PIPELINE
from tools.common.read_runs import STAGES_LEFT_OUT, comparable_inputs
from tools.common.revisions import WORKSPACE, Revision
from tools.common.runs import SEED, configuration

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader

EVALUATION = "eval"  # the stage that ends a run
BRANCHES = "refs/heads/"
TAGS = "refs/tags/"


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
        git = pygit2.Repository(repo.scm.root_dir)

        # Read what is here first, so that a run in several places has the shorter name.
        states = [(WORKSPACE, read_here(LOCK), read_here(EVAL_METRICS))]
        for name, commit in named_commits(git):
            states.append((name, read_of(commit, folder / LOCK), read_of(commit, folder / EVAL_METRICS)))
        for entries in repo.experiments.ls(all_commits=True).values():
            for name, sha in entries:
                experiments.append(name)
                commit = git.revparse_single(sha).peel(pygit2.Commit)
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


def named_commits(git: pygit2.Repository) -> Iterator[tuple[str, pygit2.Commit]]:
    """Yield the name and the commit of HEAD, each branch and each tag; a tag of anything else is left out."""
    if not git.head_is_unborn:
        yield "HEAD", git.head.peel(pygit2.Commit)
    for reference in git.references:
        for prefix in (BRANCHES, TAGS):
            if not reference.startswith(prefix):
                continue
            try:
                commit = git.references[reference].peel(pygit2.Commit)
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

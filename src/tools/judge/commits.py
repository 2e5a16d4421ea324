"""The two commits that a judgement compares, and what it refuses to compare before anything runs."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from lm.core.errors import IntegrityError, ParamsError
from lm.core.git import git
from tools.common.commands import run
from tools.common.parameters import flatten
from tools.common.paths import LOCK, METRICS, PARAMS, PLOTS

# What runs and judgements write: the results of a commit, not what is judged.
WRITTEN = (str(LOCK), str(METRICS), str(PLOTS), "judgements.csv")
LEFT_OUT = [f":(exclude){path}" for path in WRITTEN]
# Code that scores a model, or judges scores.
MEASURE = ("src/eval.py", "src/evidence", "src/lm/evaluate", "src/lm/model/score.py", "src/tools")
FIXED_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "judge"), ("EMAIL", "judge@localhost"))
}


class Commit(NamedTuple):
    """A commit by its full hash, the hash of its files without WRITTEN, and its parameters by dotted name."""

    hash: str
    tree: str
    params: dict[str, object]

    @property
    def short(self) -> str:
        return self.hash[:10]

    @property
    def subject(self) -> str:
        """Return the first line of its message."""
        return git("log", "-1", "--format=%s", self.hash) or ""


def read_commit(revision: str) -> Commit:
    """Return the commit that a revision names; ParamsError if there is none, or if its params.yaml is no YAML."""
    found = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found is None:
        raise ParamsError(f"{revision} is not a Git revision; `git log --oneline` and `git branch` list some")
    text = git("show", f"{found}:./{PARAMS}")
    if text is None:
        raise ParamsError(f"{revision} has no {PARAMS}; name a commit of this project")
    try:
        return Commit(found, tree_of(found), flatten(yaml.safe_load(text)))
    except (yaml.YAMLError, AttributeError) as error:
        raise ParamsError(f"{revision}: {PARAMS} is no list of parameters ({' '.join(str(error).split())})") from None


def tree_of(commit: str) -> str:
    """Return the hash of the files of a commit without WRITTEN: equal for a change that was made and undone."""
    with scratch_index() as index:
        run("git", "read-tree", commit, folder=".", **index)
        run("git", "rm", "-r", "--cached", "--quiet", "--ignore-unmatch", "--", *WRITTEN, folder=".", **index)
        return run("git", "write-tree", folder=".", **index).strip()


@contextlib.contextmanager
def scratch_index() -> Iterator[dict[str, str]]:
    """Yield a variable of the environment that names an empty index, so that Git does not change the repository's."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"GIT_INDEX_FILE": f"{folder}/index"}


def commit_of_workspace() -> Commit:
    """Return HEAD, or a commit of the workspace on top of it if they differ in more than the outputs of runs.

    Equal files give an equal commit. No branch moves, and the index stays as it is.
    """
    head = git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head is None:
        raise ParamsError("there is no commit yet; run `git add -A && git commit -m start`")
    with scratch_index() as index:
        run("git", "read-tree", head, folder=".", **index)
        run("git", "add", "--all", "--", ".", *LEFT_OUT, folder=".", **index)
        tree = run("git", "write-tree", folder=".", **index).strip()
    if tree == git("rev-parse", f"{head}^{{tree}}"):
        return read_commit(head)
    date = git("log", "-1", "--format=%cI", head) or ""
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    message = ("-m", "uncommitted changes")
    return read_commit(
        run("git", "commit-tree", tree, "-p", head, *message, folder=".", **FIXED_IDENTITY, **dates).strip()
    )


def reject_incomparable(base: Commit, candidate: Commit, any_budget: bool) -> None:
    """Raise ParamsError if the two commits cannot be judged; IntegrityError if they score models by other code."""
    if base.tree == candidate.tree:
        raise ParamsError(f"nothing differs from {base.short}; change something, or name an earlier commit as base")
    if both_differ("train.seed", base, candidate):
        raise ParamsError(f"train.seed {values('train.seed', base, candidate)}; leave it, judge runs several seeds")
    if both_differ("train.max_tokens", base, candidate) and not any_budget:
        found = f"train.max_tokens {values('train.max_tokens', base, candidate)}"
        raise ParamsError(f"{found}, so the longer run may be better for that reason; with --any-budget it counts")
    scoring = [name for name in base.params if name.startswith("eval.") and both_differ(name, base, candidate)]
    if scoring:
        raise ParamsError(f"{scoring[0]} {values(scoring[0], base, candidate)}; both must be scored alike")
    measures = [path for path in changed_files(base, candidate) if path.startswith(MEASURE)]
    if measures:
        remedy = "judge a change of training alone, from a commit that has both the former and the new scoring"
        raise IntegrityError(f"{measures[0]} differs from {base.short}, and it decides how models are scored; {remedy}")


def changed_files(a: Commit, b: Commit) -> list[str]:
    """Return the files that two commits do not share, without what runs and judgements write."""
    names = git("diff", "--name-only", "--no-renames", a.hash, b.hash, "--", ".", *LEFT_OUT) or ""
    return names.splitlines()


def both_differ(name: str, base: Commit, candidate: Commit) -> bool:
    """Return whether a parameter differs."""
    return base.params.get(name) != candidate.params.get(name)


def values(name: str, base: Commit, candidate: Commit) -> str:
    """Return the values of a parameter, to go on after its name."""
    return f"is {base.params.get(name)} in {base.short} and {candidate.params.get(name)} in the workspace"

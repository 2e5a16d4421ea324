"""The commits that a judgement compares, and a worktree in which one of them runs."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import Forged, RunFailed, WrongInput

# By a hook of Git they would name its repository.
OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "judge"), ("EMAIL", "judge@localhost"))
}


class Commit(NamedTuple):
    """A commit: its full hash, the hash of the files that decide its runs, and the first line of its message."""

    hash: str
    tree: str
    subject: str

    @property
    def short(self) -> str:
        return self.hash[:10]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a command of Git: those of this process without those of a hook, and `more`."""
    own = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    return {**own, "LC_ALL": "C", **more}


def git(*words: str, **variables: str) -> str:
    """Return what a command of Git prints. Raise RunFailed if it fails."""
    done = subprocess.run(
        ["git", *words], capture_output=True, encoding="utf-8", errors="surrogateescape", env=environment(**variables)
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise RunFailed(f"'git {' '.join(words)}' failed: {said}")
    return done.stdout.strip()


def exists(revision: str) -> bool:
    """Return whether Git knows a commit of this name."""
    words = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    return subprocess.run(words, capture_output=True, env=environment()).returncode == 0


def read_commit(revision: str, left_out: Sequence[str]) -> Commit:
    """Return the commit that a revision names; files `left_out` decide no run. WrongInput if there is none."""
    if not exists(revision):
        raise WrongInput(f"{revision} is not a Git revision; `git log --oneline` and `git branch` list some")
    found = git("rev-parse", f"{revision}^{{commit}}")
    return Commit(found, tree_of(found, left_out), git("log", "-1", "--format=%s", found))


def tree_of(commit: str, left_out: Sequence[str]) -> str:
    """Return the hash of the files of a commit without those left out: equal for a change that was undone."""
    with scratch_index() as index:
        git("read-tree", commit, **index)
        git("rm", "-r", "-f", "--cached", "--quiet", "--ignore-unmatch", "--", *left_out, **index)
        return git("write-tree", **index)


@contextlib.contextmanager
def scratch_index() -> Iterator[dict[str, str]]:
    """Yield a variable of the environment that names an empty index, so that Git does not change the repository's."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"GIT_INDEX_FILE": f"{folder}/index"}


def commit_of_workspace(left_out: Sequence[str]) -> Commit:
    """Return HEAD, or a commit of the workspace on top of it if they differ in more than what is left out.

    The same files always give the same commit. The branches and the index of Git do not change.
    """
    if not exists("HEAD"):
        raise WrongInput("there is no commit yet; run `git add -A && git commit -m start`")
    with scratch_index() as index:
        git("read-tree", "HEAD", **index)
        git("add", "--all", **index)
        git("reset", "--quiet", "HEAD", "--", *left_out, **index)
        tree = git("write-tree", **index)
    if tree == git("rev-parse", "HEAD^{tree}"):
        return read_commit("HEAD", left_out)
    date = git("log", "-1", "--format=%cI", "HEAD")
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    commit = git("commit-tree", tree, "-p", "HEAD", "-m", "uncommitted changes", **IDENTITY, **dates)
    return read_commit(commit, left_out)


def changed_files(base: Commit, candidate: Commit) -> list[str]:
    """Return the files that two commits do not share, without those that decide no run."""
    return names_in(git("diff-tree", "-r", "-z", "--name-only", "--no-renames", base.tree, candidate.tree))


def names_in(printed: str) -> list[str]:
    """Return the names that Git prints with -z; without it, Git would write letters beyond ASCII as numbers."""
    return printed.rstrip("\0").split("\0") if printed else []


def reject_changed(base: Commit, candidate: Commit, may_change: Sequence[str], fixed: Sequence[str]) -> None:
    """Raise Forged if the candidate changes a file below a path of `fixed`, or, of another one, not of `may_change`.

    With an empty `may_change` all other files may change.
    """
    for file in changed_files(base, candidate):
        if is_below(file, fixed) or (may_change and not is_below(file, may_change)):
            reason = "may not change, because it decides how a model is scored or what it reads"
            raise Forged(f"{file} differs from {base.short}; it {reason}; judge from a commit that has the new file")


def reject_absent(base: Commit, paths: Sequence[str]) -> None:
    """Raise WrongInput unless the base has a file or a folder at each of the paths."""
    files = names_in(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", base.hash))
    for path in paths:
        if not any(is_below(file, [path]) for file in files):
            raise WrongInput(f"--fixed is {path}, which {base.short} lacks; name a file or a folder of it")


def is_below(file: str, paths: Sequence[str]) -> bool:
    """Return whether a file is one of the paths, or in one of these folders."""
    return any(Path(file).is_relative_to(Path(path)) for path in paths)


def own_folder() -> Path:
    """Return the folder in which judge keeps losses and worktrees; no command of Git or DVC touches it."""
    return Path(git("rev-parse", "--path-format=absolute", "--git-common-dir")) / "evidence"


@contextlib.contextmanager
def worktree(commit: Commit) -> Iterator[Path]:
    """Yield a folder with the files of a commit, which is gone at the end; a killed judge leaves it to the next one."""
    folder = own_folder() / "worktree"
    remove_worktree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    git("worktree", "add", "--quiet", "--force", "--detach", str(folder), commit.hash)
    try:
        yield folder
    finally:
        remove_worktree(folder)


def remove_worktree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    git("worktree", "prune")

"""The commits that a judgement compares, and a worktree in which one of them runs."""

import contextlib
import importlib.machinery
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import Forged, RunFailed, WrongInput

# By a hook of Git they would name its repository.
OF_A_HOOK = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)
IDENTITY = ("-c", "user.name=judge", "-c", "user.email=judge@localhost")
NAMED = 3  # changed files that the name of uncommitted changes lists


class Commit(NamedTuple):
    """A commit: its full hash, the hash of the files that decide its runs, and the first line of its message."""

    hash: str
    tree: str
    subject: str

    @property
    def short(self) -> str:
        return self.hash[:10]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of this process without those of a hook of Git, and `more`."""
    own = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    return {**own, "LC_ALL": "C", **more}


def git(*words: str, **variables: str) -> str:
    """Return what a command of Git prints. Raise RunFailed if it fails.

    No hook runs, and no commit is read in place of another one (`git replace`).
    """
    done = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *words],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=environment(GIT_NO_REPLACE_OBJECTS="1", GIT_LITERAL_PATHSPECS="1", **variables),
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise RunFailed(f"'git {' '.join(words)}' failed: {said}")
    return done.stdout.strip()


def read_commit(revision: str, left_out: Sequence[str]) -> Commit:
    """Return the commit that a revision names; files `left_out` decide no run. WrongInput if there is none."""
    try:
        found = git("rev-parse", "--verify", f"{revision}^{{commit}}")
    except RunFailed:
        raise WrongInput(f"{revision} is not a Git revision; `git log --oneline` and `git branch` list some") from None
    return Commit(found, tree_of(found, left_out), git("log", "-1", "--format=%s", found))


def tree_of(commit: str, left_out: Sequence[str]) -> str:
    """Return the hash of a commit's files in this folder without those left out: equal for a change that was undone."""
    with scratch_index() as index:
        git("read-tree", commit, **index)
        git("rm", "-r", "-f", "--cached", "--quiet", "--ignore-unmatch", "--", *left_out, **index)
        return git("write-tree", f"--prefix={prefix()}", **index)


def prefix() -> str:
    """Return this folder's path in the repository, with a slash at its end; "" for the top folder."""
    return git("rev-parse", "--show-prefix")


@contextlib.contextmanager
def scratch_index() -> Iterator[dict[str, str]]:
    """Yield a variable of the environment that names an empty index, so that Git does not change the repository's."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"GIT_INDEX_FILE": f"{folder}/index"}


def commit_of_workspace(left_out: Sequence[str]) -> Commit:
    """Return HEAD, or a commit of the workspace on top of it if they differ in more than what is left out.

    The branches and the index of Git do not change. A file that the output of this command is written to is left out,
    too.
    """
    head = read_commit("HEAD", left_out)
    with scratch_index() as index:
        git("read-tree", "HEAD", **index)
        git("add", "--all", **index)
        git("reset", "--quiet", "HEAD", "--", *left_out, *files_of_output(), **index)
        tree = git("write-tree", **index)
    changed = names_in(git("diff-tree", "-r", "-z", "--name-only", "--no-renames", "HEAD", tree))
    if not changed:
        return head
    message = f"uncommitted: {', '.join(changed[:NAMED])}{' …' if len(changed) > NAMED else ''}"
    return read_commit(git(*IDENTITY, "commit-tree", tree, "-p", "HEAD", "-m", message), left_out)


def files_of_output() -> list[str]:
    """Return the new files that the standard output and error of this process are written to."""
    streams = [os.fstat(number) for number in (1, 2)]
    new = names_in(git("ls-files", "-z", "--others", "--exclude-standard"))
    return [name for name in new if any(os.path.samestat(os.lstat(name), stream) for stream in streams)]


def changed_files(base: Commit, candidate: Commit, kind: str = "ACDMT") -> list[str]:
    """Return the files that two commits do not share, without those that decide no run; `kind` A: the new ones."""
    words = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", f"--diff-filter={kind}"]
    return names_in(git(*words, base.tree, candidate.tree))


def names_in(printed: str) -> list[str]:
    """Return the names that Git prints with -z; without it, Git would write letters beyond ASCII as numbers."""
    return printed.rstrip("\0").split("\0") if printed else []


def files_of(commit: Commit) -> list[str]:
    """Return the files of a commit that decide its runs."""
    return names_in(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit.tree))


def reject_changed(base: Commit, candidate: Commit, may_change: Sequence[str], fixed: Sequence[str]) -> None:
    """Raise Forged if the candidate changes a file below a path of `fixed`, or, of another one, not of `may_change`.

    With an empty `may_change` all other files may change. A new file that shadows a module may not.
    """
    for file in changed_files(base, candidate):
        if is_below(file, fixed) or (may_change and not is_below(file, may_change)):
            reason = "it may not change, because it decides how a model is scored or what it reads"
            raise Forged(f"{file} differs from {base.short}; {reason}; judge from a commit that has the new file")
    reject_shadowing(base, candidate, [Path(os.path.splitext(path)[0]) for path in fixed])


def reject_shadowing(base: Commit, candidate: Commit, fixed: Sequence[Path]) -> None:
    """Raise Forged if a new file of the candidate would be imported in place of a module that scores.

    That is one of Python or of a package, or one that is `fixed`: Python takes a package score/ before score.py.
    """
    suffixes = tuple(importlib.machinery.all_suffixes())
    new_code = [Path(file) for file in changed_files(base, candidate, kind="A") if file.endswith(suffixes)]
    if not new_code:
        return
    known = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys()
    known |= {module.name for module in fixed}
    packages = {Path(file).parent for file in files_of(candidate) if Path(file).name == "__init__.py"}
    for path in new_code:
        module = path.with_name(path.name.split(".")[0])
        if module.name == "__init__":
            module = module.parent
        if module in fixed or (module.name in known and module.parent not in packages):
            reason = "also by code that scores; give it another name"
            raise Forged(f"{path} would be imported in place of the module {module.name}, {reason}")


def reject_absent(base: Commit, paths: Sequence[str]) -> None:
    """Raise WrongInput unless the base has a file or a folder at each of the paths."""
    files = files_of(base)
    for path in paths:
        if not any(is_below(file, [path]) for file in files):
            raise WrongInput(f"--fixed is {path}, which {base.short} lacks; name a file or a folder of it")


def is_below(file: str, paths: Sequence[str]) -> bool:
    """Return whether a file is one of the paths, or in one of these folders."""
    return any(Path(file).is_relative_to(path) for path in paths)


def own_folder() -> Path:
    """Return the folder in which judge keeps losses and worktrees; no command of Git or DVC touches it."""
    return Path(git("rev-parse", "--path-format=absolute", "--git-common-dir")) / "evidence"


@contextlib.contextmanager
def worktree(commit: Commit) -> Iterator[Path]:
    """Yield this folder with the files of a commit, which is gone at the end; a killed judge leaves it to the next."""
    folder = own_folder() / "worktree"
    files = folder / "files"  # a link of an input ../data lies beside it, and goes with it
    remove_worktree(folder)
    folder.mkdir(parents=True)
    git("worktree", "add", "--quiet", "--force", "--detach", str(files), commit.hash)
    try:
        yield files / prefix()
    finally:
        remove_worktree(folder)


def remove_worktree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    git("worktree", "prune")

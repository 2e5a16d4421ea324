"""Open the repository by DVC; what a person can mend is an error of one sentence."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dvc.exceptions import NotDvcRepoError
from dvc.scm import RevError, SCMError
from pygit2 import GitError

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.core.git import FETCH_ALL, git

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

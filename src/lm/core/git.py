"""Ask Git about the repository around the working folder."""

import os
import subprocess

from lm.core.errors import EnvironmentFailure

# Git sets these variables in a hook. They name the repository of the hook, which may not be that of the working folder.
OF_A_HOOK = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)

# Messages of Git for a repository or a file that does not exist. For a setting or a name, it prints nothing.
NOTHING = (
    "not a git repository",
    "does not exist in 'HEAD'",
    "exists on disk, but not in 'HEAD'",
    "is in the index, but not in 'HEAD'",
    "invalid object name 'HEAD'",
    "ambiguous argument 'HEAD'",
    "bad revision 'HEAD'",
    "could not access 'HEAD'",
    "No such remote",
)

FETCH_ALL = (
    "the clone lacks files of its history (git clone --filter): "
    "run `git fetch --refetch --no-filter` while the remote can be reached"
)


def git(*words: str) -> str | None:
    """Return the output of a Git command, or None if it asks for a repository or file that does not exist.

    Raise EnvironmentFailure if Git is not installed, or fails for another reason.
    """
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    environment["LC_ALL"] = "C"  # messages in English
    command = " ".join(["git", *words])
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, encoding="utf-8", errors="surrogateescape", env=environment
        )
    except FileNotFoundError:
        raise EnvironmentFailure(f"git is not installed, and {command!r} needs it; install it") from None
    if done.returncode == 0:
        return done.stdout.strip()
    said = " ".join(done.stderr.split())
    if not said or any(nothing.lower() in said.lower() for nothing in NOTHING):
        return None
    raise EnvironmentFailure(f"{command!r} failed: {said}{remedy(said)}")


def remedy(said: str) -> str:
    """Return the remedy for a message of Git, as the end of a sentence; "" if the message names it, or is unknown."""
    if "promisor" in said:
        return f"; {FETCH_ALL}"
    if any(word in said for word in ("bad object", "unable to read", "missing", "corrupt")):
        return "; the repository lacks objects, which `git fsck` lists: clone it again"
    return ""


def reject_split_index() -> None:
    """Raise EnvironmentFailure if Git's index is split: DVC would fail or hang without naming the cause."""
    if git("rev-parse", "--shared-index-path"):
        remedy = "run `git config core.splitIndex false && git update-index --no-split-index`"
        raise EnvironmentFailure(f"the index of Git is split, which DVC cannot read; {remedy}")

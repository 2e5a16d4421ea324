"""Run a commit with a seed, in a copy of the repository that shares its cache and run folders, or find its run.

Each run is an experiment of DVC, so that `dvc exp show`, `compare` and `noise` see it. A copy below .dvc/tmp stays for
the next call.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.core.git import git
from lm.core.messages import say
from tools.common.commands import environment_of_commands, run
from tools.common.lock import stages_of, stages_of_former_runs
from tools.common.runs import Revision
from tools.judge.commits import WRITTEN, Commit

COPY = Path(".dvc/tmp/judge")
STANDARD_ERROR = 2  # its descriptor


def name_of(commit: Commit, seed: int) -> str:
    """Return the name of the experiment that runs the files of a commit with a seed."""
    return f"judge-{commit.tree[:10]}-{seed}"


def reference_of(commit: Commit, seed: int) -> str | None:
    """Return the Git reference of this experiment, whichever commit with these files it began from; None if none."""
    pattern = f"refs/exps/*/*/{name_of(commit, seed)}"
    found = git("for-each-ref", "--format=%(refname)", pattern) or ""
    return found.splitlines()[0] if found else None


def make_run(commit: Commit, seed: int) -> None:
    """Run a commit with a seed. What ran before comes from the cache, what was interrupted goes on.

    Raise EnvironmentFailure if a stage fails.
    """
    prepare_copy(commit)
    say(f"running {name_of(commit, seed)}: {commit.subject}", file=sys.stderr)
    command = [sys.executable, "-m", "dvc", "exp", "run", "--name", name_of(commit, seed), "-S", f"train.seed={seed}"]
    status = wait_for(command, environment_of_commands(DVC_ROOT=os.getcwd()))
    if status:
        what = f"{commit.short} ({commit.subject}) with train.seed {seed}"
        raise EnvironmentFailure(f"the run of {what} failed, as said above; mend it, and run the same command again")
    reference = f"refs/exps/{commit.hash[:2]}/{commit.hash[2:]}/{name_of(commit, seed)}"
    run("git", "fetch", "--quiet", COPY, f"{reference}:{reference}", folder=".")


def wait_for(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in the copy, and return its exit status; what it prints goes to standard error.

    Ctrl-C reaches the stage too. Wait until it has saved its work.
    """
    with subprocess.Popen(command, cwd=COPY, env=environment, stdout=STANDARD_ERROR) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def prepare_copy(commit: Commit) -> None:
    """Check a commit out in the copy, with the text in data/local that Git does not have."""
    if not (COPY / ".git").exists():
        shutil.rmtree(COPY, ignore_errors=True)
        run("git", "clone", "--quiet", "--shared", "--no-checkout", ".", COPY, folder=".")
        for name, value in (("user.name", "judge"), ("user.email", "judge@localhost")):
            run("git", "config", name, value, folder=COPY)
    run("git", "checkout", "--quiet", "--force", "--detach", commit.hash, folder=COPY)
    run("git", "clean", "--quiet", "--force", "-d", folder=COPY)
    copy_settings()
    link_local_text()


def copy_settings() -> None:
    """Give the copy the settings of this clone, such as access to a remote, and its cache."""
    own = Path(".dvc/config.local")
    copied = COPY / own
    copied.unlink(missing_ok=True)
    if own.exists():
        shutil.copy2(own, copied)
    cache = run(sys.executable, "-m", "dvc", "cache", "dir", folder=".").strip()
    run(sys.executable, "-m", "dvc", "config", "--local", "cache.dir", cache, folder=COPY)


def link_local_text() -> None:
    """Link the files in data/local that Git ignores into the copy, and remove those that are gone."""
    folder = Path("data/local")
    ignored = git("ls-files", "--others", "-z", "--", folder.as_posix()) or ""
    run("git", "clean", "--quiet", "--force", "-dx", "--", folder, folder=COPY)
    for name in ignored.split("\0"):
        if name:
            linked = COPY / name
            linked.parent.mkdir(parents=True, exist_ok=True)
            link(Path(name), linked)


def link(file: Path, to: Path) -> None:
    """Link a file, or copy it onto another disk."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copy2(file, to)


def read_experiment(commit: Commit, seed: int) -> Revision:
    """Return the experiment of a commit and a seed; IntegrityError if its files are not those of a run of this commit.

    Reading a file checks that it has the hash that dvc.lock records.
    """
    name = name_of(commit, seed)
    reference = str(reference_of(commit, seed))
    remedy = f"`dvc exp remove {name}` removes it, and the same command runs it again"

    # The files are those of the commit, except what a run writes, and the seed in params.yaml.
    left_out = [f":(exclude){path}" for path in (*WRITTEN, "params.yaml", ".dvc/tmp")]
    changed = git("diff", "--name-only", commit.hash, reference, "--", ".", *left_out)
    if changed:
        raise IntegrityError(f"{name}: {changed.splitlines()[0]} is not the file of {commit.short}; {remedy}")

    # dvc.lock records the parameters of the commit, with this seed.
    revision = Revision(name)
    expected = {**commit.params, "train.seed": seed}
    recorded = revision.params()
    others = [each for each, value in expected.items() if each in recorded and recorded[each] != value]
    if others:
        found = f"{others[0]} is {recorded[others[0]]}, and in {commit.short} {expected[others[0]]}"
        raise IntegrityError(f"{name}: {found}; {remedy}")

    # Each stage ran on what the stages before it wrote.
    former = stages_of_former_runs(stages_of({"stages": revision.stages}))
    if former:
        raise IntegrityError(f"{name}: {former[0]} did not run on the outputs of the stages before it; {remedy}")
    return revision

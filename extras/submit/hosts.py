"""Start workers on other machines: through ssh, or as jobs of Slurm."""

import shlex
from typing import NamedTuple

from extras.submit.board import run
from lm.core.errors import ParamsError

SLURM = "slurm"
# Slurm sends SIGTERM to the worker two minutes before the time is up, so that it saves and releases its experiment.
SLURM_OPTIONS = {"job-name": "submit", "signal": "B:TERM@120", "output": ".submit/slurm-%j.log"}


class Target(NamedTuple):
    """A host of ssh, or `slurm`, and the repository's folder there."""

    host: str
    folder: str


def read_target(text: str) -> Target:
    """Return HOST:FOLDER as a target; raise ParamsError if a part is missing."""
    host, _, folder = text.partition(":")
    if not host or not folder or host.startswith("-"):
        raise ParamsError(f"the target is {text!r}, needed: HOST:FOLDER, or slurm:FOLDER")
    return Target(host, folder)


def start_worker(target: Target, work: list[str], options: dict[str, str]) -> str:
    """Start a worker with the command `work` and return its process or job; raise EnvironmentFailure if it fails."""
    command, folder = shlex.join(work), shlex.quote(target.folder)
    if target.host == SLURM:
        flags = [f"--{name}={value}" for name, value in (SLURM_OPTIONS | options).items()]
        run("mkdir", "-p", f"{target.folder}/.submit")
        chdir = f"--chdir={target.folder}"
        return "job " + run("sbatch", "--parsable", chdir, *flags, f"--wrap=exec {command}").strip()
    # The worker gets a session of its own and no terminal, so that it survives the connection.
    started = f"setsid nohup {command} >> .submit/workers.log 2>&1 < /dev/null & echo $!"
    shell = f"cd {folder} && mkdir -p .submit && {{ {started}; }}"
    return "process " + run("ssh", target.host, shell).strip()

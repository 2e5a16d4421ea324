"""Run the commands of Git and DVC."""

import os
import subprocess
import sys
from pathlib import Path

from lm.core.errors import EnvironmentFailure
from lm.core.git import OF_A_HOOK


def environment_of_commands(**more: str) -> dict[str, str]:
    """Return the variables for a command: those of this process with its own `python` and `dvc` first, and `more`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = ("DVC_ROOT", *OF_A_HOOK)
    return {**{name: value for name, value in os.environ.items() if name not in left_out}, "PATH": path, **more}


def run(*arguments: str | Path, folder: Path | str, **variables: str) -> str:
    """Run a command in a folder and return its output. Raise EnvironmentFailure with its last lines if it fails."""
    done = subprocess.run(
        arguments, cwd=folder, env=environment_of_commands(**variables), capture_output=True, text=True
    )
    if done.returncode:
        last = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise EnvironmentFailure(f"{' '.join(map(str, arguments))} ended with {done.returncode}: {last}")
    return done.stdout

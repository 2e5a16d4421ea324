"""The environment for commands of DVC and this repository."""

import os
import sys
from pathlib import Path

from lm.core.git import OF_A_HOOK


def environment_of_commands() -> dict[str, str]:
    """Return the variables for a command: those of this process, with its own `python` and `dvc` first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = ("DVC_ROOT", *OF_A_HOOK)
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": path}

"""Run an experiment of README.md in a clone of the last commit, and record what README's commands print there.

    PYTHONPATH=src:benchmarks python benchmarks/quality/experiment.py first_experiment train.max_tokens=921600

The clone shares the files of DVC's cache, but not its records of runs: only the stages that the parameters change run,
and they do run. The workspace does not change.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, hardware
from lm.core.files import write_json

DECIDING = ("src", "params.yaml", "presets.yaml", "sources.yaml", "dvc.yaml", "dvc.lock", "metrics", "requirements")
READ_BY = ("dvc metrics diff", "python src compare main workspace")


def run(folder: Path, command: str) -> str:
    """Run a command with the programs of this environment first; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DVC_ROOT", "PYTHONPATH")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(command.split(), cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout


def main() -> None:
    """Record the experiment that the command line names: NAME PARAMETER=VALUE …"""
    name, *values = sys.argv[1:]
    if changed := run(ROOT, f"git status --porcelain {' '.join(DECIDING)}"):
        sys.exit(f"error: the clone would lack uncommitted changes; commit them first:\n{changed}")
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as temporary:
        clone = Path(temporary) / "clone"
        run(ROOT, f"git clone --quiet . {clone}")
        run(clone, "git switch --quiet -C main")
        (clone / ".dvc" / "cache").mkdir()
        (clone / ".dvc" / "cache" / "files").symlink_to(Path(run(ROOT, "dvc cache dir").strip()) / "files")
        run(clone, "dvc checkout --quiet")
        start = time.perf_counter()
        run(clone, f"dvc exp run {' '.join(f'-S {value}' for value in values)}")
        seconds = round(time.perf_counter() - start)
        printed = {command: run(clone, command) for command in READ_BY}
    write_json(RESULTS / f"{name}.json", {"seconds": seconds, "hardware": hardware(), "printed": printed})


if __name__ == "__main__":
    main()

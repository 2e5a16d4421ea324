"""Run an experiment of README.md in a clone of the last commit, and record what README's commands print there.

    PYTHONPATH=src:benchmarks python benchmarks/quality/experiment.py first_experiment train.seq_len=512

The clone shares the files of DVC's cache, but not its records of runs: only the stages that the parameters change run,
and they do run. The workspace does not change.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, hardware
from lm.core.files import write_json

DECIDING = ("src", "params.yaml", "presets.yaml", "dvc.yaml", "dvc.lock", "metrics", "requirements")


def run(folder: Path, *command: str) -> str:
    """Run a command with the programs of this environment first; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DVC_ROOT", "PYTHONPATH")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(command, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Record the experiment that the command line names."""
    parser = argparse.ArgumentParser(description="Record an experiment of README.md.")
    parser.add_argument("name", help="of the file of results")
    parser.add_argument("values", nargs="+", metavar="NAME=VALUE", help="parameters to change")
    args = parser.parse_args()
    if changed := run(ROOT, "git", "status", "--porcelain", *DECIDING):
        sys.exit(f"error: the clone would lack uncommitted changes; commit them first:\n{changed}")
    options = [word for value in args.values for word in ("-S", value)]
    with tempfile.TemporaryDirectory(prefix=f"{args.name}-") as temporary:
        clone = Path(temporary) / "clone"
        run(ROOT, "git", "clone", "--quiet", str(ROOT), str(clone))
        run(clone, "git", "switch", "--quiet", "-C", "main")
        (clone / ".dvc" / "cache").mkdir()
        (clone / ".dvc" / "cache" / "files").symlink_to(Path(run(ROOT, "dvc", "cache", "dir").strip()) / "files")
        run(clone, "dvc", "checkout", "--quiet")
        start = time.perf_counter()
        run(clone, "dvc", "exp", "run", *options)
        seconds = round(time.perf_counter() - start)
        printed = {
            "dvc metrics diff": run(clone, "dvc", "metrics", "diff"),
            "python src compare main workspace": run(clone, "python", "src", "compare", "main", "workspace"),
        }
    command = " ".join(["dvc exp run", *options])
    found = {"command": command, "seconds": seconds, "hardware": hardware(), "printed": printed}
    write_json(RESULTS / f"{args.name}.json", found)


if __name__ == "__main__":
    main()

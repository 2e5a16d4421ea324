"""Run the commands of docs/tutorial.md in a clone of the last commit, and record what they print there.

    PYTHONPATH=src:benchmarks python benchmarks/quality/tutorial.py

The workspace does not change.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import DECIDING, RESULTS, ROOT, hardware, run
from lm.core.files import write_json

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(bash|python) run\n(.*?)^```", re.M | re.S)


def commands() -> list[list[str]]:
    """Return the command of each line of the page's shell blocks, and of each block of Python."""
    found = []
    for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            found.append([sys.executable, "-c", code])
        else:
            lines = code.replace("\\\n", "").splitlines()
            lines = [re.sub(r" {2,}", " ", line.split("  #")[0]).strip() for line in lines]
            found += [["bash", "-euo", "pipefail", "-c", line] for line in lines]
    return found


def printed(folder: Path, command: list[str]) -> str:
    """Run a command with the programs of this environment first; return what it prints, errors too."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DVC_ROOT", "PYTHONPATH")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"error: {command[-1]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Record the text and the seconds of each command."""
    if changed := run(ROOT, f"git status --porcelain {' '.join(DECIDING)}"):
        sys.exit(f"error: the clone would lack uncommitted changes; commit them first:\n{changed}")
    seconds = {}
    texts = {}
    with tempfile.TemporaryDirectory(prefix="tutorial-") as temporary:
        clone = Path(temporary) / "clone"
        run(ROOT, f"git clone --quiet . {clone}")
        for command in ("git switch -c tutorial", "git config user.name Ada", "git config user.email ada@example.org"):
            run(clone, command)
        for command in commands():
            start = time.perf_counter()
            texts[command[-1]] = printed(clone, command)
            seconds[command[-1]] = round(time.perf_counter() - start)
    machine = {"hardware": hardware(), "python": platform.python_version()}
    write_json(RESULTS / "tutorial.json", machine | {"seconds": seconds, "printed": texts})


if __name__ == "__main__":
    main()

"""Run the commands of a page in a clone of the last commit, and record their seconds and what they print.

    PYTHONPATH=src:benchmarks python benchmarks/quality/page.py first_hour   # README.md, down to `make back`
    PYTHONPATH=src:benchmarks python benchmarks/quality/page.py tutorial     # docs/tutorial.md

README.md begins with Python and the clone alone: its commands install everything else. The tutorial begins in this
environment. Seconds are worth quoting only on a machine that does nothing else. The workspace does not change.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, hardware
from lm.core.files import write_json

CLONE = "git clone URL reprolm && cd reprolm"  # README's first command
LAST = "make back"  # of its commands that are recorded
PROGRAMS = Path(sys.executable).parent


def commands_of(page: str, tags: str) -> list[list[str]]:
    """Return the command of each line of the page's shell blocks with one of the tags, and of each block of Python."""
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, code in re.findall(rf"^```(bash|python) (?:{tags})\n(.*?)^```", text, re.M | re.S):
        if language == "python":
            found.append(["python", "-c", code])
        else:
            lines = code.replace("\\\n", "").splitlines()
            lines = [re.sub(r" {2,}", " ", line.split("  #")[0]).strip() for line in lines]
            found += [["bash", "-euo", "pipefail", "-c", line] for line in lines]
    return found


def commands_of_first_hour() -> list[list[str]]:
    """Return the commands of README.md after the clone, down to `make back`."""
    commands = commands_of("README.md", "network|slow|run")
    lines = [command[-1] for command in commands]
    return commands[lines.index(CLONE) + 1 : lines.index(LAST) + 1]


def printed(folder: Path, command: list[str], path: str) -> str:
    """Run a command as in a new shell, with the programs of `path`; return what it prints, errors too."""
    inherited = ("DVC_ROOT", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in inherited} | {"PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"error: {command[-1]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Record the page of the result that the command line names."""
    (name,) = sys.argv[1:]
    seconds = {}
    texts = {}
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as temporary:
        clone = Path(temporary) / "reprolm"
        path = os.environ["PATH"]
        if name == "first_hour":
            commands = commands_of_first_hour()
            branch = "main"
            path = f"{clone / '.venv' / 'bin'}{os.pathsep}{path.replace(str(PROGRAMS), '')}"
        else:
            commands = commands_of("docs/tutorial.md", "run")
            branch = "tutorial"
            path = f"{PROGRAMS}{os.pathsep}{path}"

        start = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        seconds[CLONE] = round(time.perf_counter() - start, 1)
        for setting in (
            ["switch", "--quiet", "-C", branch],
            ["config", "user.name", "Ada"],
            ["config", "user.email", "ada@example.org"],
        ):
            subprocess.run(["git", *setting], cwd=clone, check=True)

        for command in commands:
            start = time.perf_counter()
            texts[command[-1]] = printed(clone, command, path)
            seconds[command[-1]] = round(time.perf_counter() - start, 1)
            print(f"{seconds[command[-1]]:6.1f} s  {command[-1]}", flush=True)
        changed = subprocess.check_output(["git", "status", "--porcelain"], cwd=clone, text=True)

    if changed and name == "first_hour":
        sys.exit(f"error: `make back` left changes:\n{changed}")
    machine = {"hardware": hardware(), "python": platform.python_version()}
    write_json(RESULTS / f"{name}.json", machine | {"seconds": seconds, "printed": texts})


if __name__ == "__main__":
    main()

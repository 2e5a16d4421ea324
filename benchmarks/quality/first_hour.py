"""Run the commands of README.md in a fresh clone of the last commit, down to `make back`, and record their seconds.

    python benchmarks/quality/first_hour.py

Only Python and the clone are there at the beginning: README's lines install everything else. Seconds are worth quoting
only on a machine that does nothing else.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, hardware
from lm.core.files import write_json

BLOCK = re.compile(r"^```bash (?:parse|slow|run)\n(.*?)^```", re.M | re.S)
CLONE = "git clone URL reprolm && cd reprolm"  # README's first command
LAST = "make back"


def commands() -> list[str]:
    """Return the lines of README's shell blocks after `CLONE`, down to `LAST`."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.split("  #")[0].strip() for block in BLOCK.findall(page) for line in block.splitlines()]
    return lines[lines.index(CLONE) + 1 : lines.index(LAST) + 1]


def timed(command: str, folder: Path) -> float:
    """Run a command as in a new shell with the environment of the clone active; return its seconds."""
    inherited = ("DVC_ROOT", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    other_programs = environment["PATH"].replace(str(Path(sys.executable).parent), "")
    environment["PATH"] = f"{folder / '.venv' / 'bin'}{os.pathsep}{other_programs}"
    start = time.perf_counter()
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, check=True)
    return round(time.perf_counter() - start, 1)


def main() -> None:
    """Record each command with its seconds."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    with tempfile.TemporaryDirectory(prefix="first_hour-") as temporary:
        clone = Path(temporary, "reprolm")
        seconds = {CLONE: timed(f"git clone {ROOT} reprolm && git -C reprolm switch -q -C main", Path(temporary))}
        for command in commands():
            seconds[command] = timed(command, clone)
            print(f"{seconds[command]:6.1f} s  {command}", flush=True)
        changed = subprocess.check_output(["git", "status", "--porcelain"], cwd=clone, text=True)
    if changed:
        sys.exit(f"error: `make back` left changes:\n{changed}")
    write_json(RESULTS / "first_hour.json", {"hardware": hardware(), "commit": commit, "seconds": seconds})


if __name__ == "__main__":
    main()

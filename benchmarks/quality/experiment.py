"""Run an experiment of README.md in a clone of the last commit, and record what README's commands print there.

    PYTHONPATH=src:benchmarks python benchmarks/quality/experiment.py first_experiment train.max_tokens=921600

The clone shares the files of DVC's cache, but not its records of runs: only the stages that the parameters change run,
and they do run. The workspace does not change.
"""

import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, clone_of_last_commit, hardware, run
from lm.core.files import write_json

READ_BY = ("dvc metrics diff", "python src compare main workspace")


def main() -> None:
    """Record the experiment that the command line names: NAME PARAMETER=VALUE …"""
    name, *values = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as temporary:
        clone = clone_of_last_commit(Path(temporary))
        start = time.perf_counter()
        run(clone, f"dvc exp run {' '.join(f'-S {value}' for value in values)}")
        seconds = round(time.perf_counter() - start)
        printed = {command: run(clone, command) for command in READ_BY}
    write_json(RESULTS / f"{name}.json", {"seconds": seconds, "hardware": hardware(), "printed": printed})


if __name__ == "__main__":
    main()

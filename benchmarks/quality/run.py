"""Record a run of the pipeline in results/NAME.json: its metrics, and the details that the documentation quotes.

    PYTHONPATH=src:benchmarks python benchmarks/quality/run.py default              # of the workspace
    PYTHONPATH=src:benchmarks python benchmarks/quality/run.py seed_2 train.seed=2  # an experiment

An experiment runs in a clone of the last commit, which shares the files of DVC's cache but not its records of runs:
only the stages that the parameters change run, and they do run. What README's commands print there is recorded too.
The workspace does not change.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, clone_of_last_commit, hardware, run
from lm.core.files import read_json, write_json

READ_BY = ("dvc metrics diff", "python src compare main workspace")
PROMPT = "#include <"


def describe(folder: Path) -> dict:
    """Return the metrics, the training record and the details of the finished run of a folder."""
    model = read_json(folder / "data" / "models" / "model.json")
    timing = read_json(folder / ".runs" / model["fingerprint"] / "timing.json")
    names = ("data", "train", "eval")
    metrics = {key: value for name in names for key, value in read_json(folder / "metrics" / f"{name}.json").items()}
    return {
        "metrics": metrics | {"train_seconds": timing["train_seconds"]},
        "computed_on": timing["computed_on"],
        "training": model["training"],
        "segments": model["segments"],
        "audit": read_json(folder / "data" / "audit" / "details.json"),
        "evaluation": read_json(folder / "data" / "evaluation" / "details.json"),
    }


def experiment(name: str, values: list[str]) -> dict:
    """Run the experiment in a clone; return the run, its seconds, and what README's commands print."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as temporary:
        clone = clone_of_last_commit(Path(temporary))
        start = time.perf_counter()
        run(clone, f"dvc exp run {' '.join(f'-S {value}' for value in values)}")
        seconds = round(time.perf_counter() - start)
        printed = {command: run(clone, command) for command in READ_BY}
        return describe(clone) | {"seconds": seconds, "hardware": hardware(), "printed": printed}


def printed(*tool: str) -> str:
    """Return what a tool prints in a shell whose environment is not active."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    command = [sys.executable, "src", *tool]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Record the run that the command line names: NAME PARAMETER=VALUE …"""
    name, *values = sys.argv[1:]
    if values:
        found = experiment(name, values)
    else:
        text = printed("generate", PROMPT, "--max_new_tokens", "30")
        found = describe(ROOT) | {"generated": {"prompt": PROMPT, "text": text}, "verdict": printed("verdict")}
    write_json(RESULTS / f"{name}.json", found)


if __name__ == "__main__":
    main()

"""Stages of the pipeline, run by themselves in a folder of their own, for the benchmarks that time them.

    folder = stage_folder(Path(name))
    change_params(folder, {"train.seq_len": 64})
    run_stage(folder, "fetch")

The folder holds links to the code and copies of params.yaml and runtime.yaml; nothing of the repository changes.
"""

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("src", "dvc.yaml", "requirements.txt")
COPIED = ("params.yaml", "runtime.yaml")
EMPTY = ("data/init", "data/local", "data/processed_datasets")


def stage_folder(folder: Path) -> Path:
    """Make `folder` what a stage takes for the repository: the same code, parameters of its own, no data."""
    for name in EMPTY:
        (folder / name).mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for name in COPIED:
        (folder / name).write_text((ROOT / name).read_text())
    return folder


def change_params(folder: Path, values: dict, name: str = "params.yaml") -> None:
    """Set parameters by dotted name; a name without parents of its own makes them."""
    path = folder / name
    params = yaml.safe_load(path.read_text())
    for key, value in values.items():
        *parents, last = key.split(".")
        section = params
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def run_stage(folder: Path, stage: str) -> dict[str, float]:
    """Run the stage's command of dvc.yaml in `folder`: its seconds and its peak of resident memory.

    Raises RuntimeError with the last lines of what it printed if it fails.
    """
    command = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["cmd"]
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"}
    log, start = folder / f"{stage}.log", time.perf_counter()
    with open(log, "w") as file:
        arguments = [sys.executable, *shlex.split(command)[1:]]
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"stage {stage} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return {"seconds": round(seconds, 2), "peak_rss_gib": peak_gib(usage)}


def peak_gib(usage: resource.struct_rusage) -> float:
    """The most memory that a process had resident, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(usage.ru_maxrss * unit / 2**30, 3)

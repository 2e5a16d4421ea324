"""Stages of the pipeline, run by themselves in a folder of their own, for the benchmarks that time them.

    folder = stage_folder(Path(name))
    change_params(folder, {"train.seq_len": 64})
    run_stage(folder, "resolve")

The folder holds links to the code and copies of the parameter files; nothing of the repository changes.
"""

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import yaml

from harness import run_measured

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("src", "dvc.yaml", "requirements.txt")
COPIED = ("params.yaml", "presets.yaml", "runtime.yaml")
PRESETS = ("sources", "selections", "tokenizers", "models")  # sections of presets.yaml
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


def change_params(folder: Path, values: dict, name: str | None = None) -> None:
    """Set parameters by dotted name in the file `name`, or else in presets.yaml or params.yaml, whichever holds them.

    A missing section is created.
    """
    for key, value in values.items():
        *parents, last = key.split(".")
        path = folder / name if name else params_file(folder, key)
        params = yaml.safe_load(path.read_text())
        section = params
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
        path.write_text(yaml.safe_dump(params, sort_keys=False))


def params_file(folder: Path, key: str) -> Path:
    """Return the file that holds a dotted name."""
    return folder / ("presets.yaml" if key.split(".")[0] in PRESETS else "params.yaml")


def run_stage(folder: Path, stage: str) -> dict[str, float]:
    """Run the stage's command of dvc.yaml in `folder`; return its seconds and its peak of resident memory.

    Raises RuntimeError with the last lines of what it printed if it fails.
    """
    command = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["cmd"]
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"}
    start = time.perf_counter()
    arguments = [sys.executable, *shlex.split(command)[1:]]
    peak_mb = run_measured(arguments, folder / f"{stage}.log", cwd=folder, env=environment, stderr=subprocess.STDOUT)
    return {"seconds": round(time.perf_counter() - start, 2), "peak_rss_gib": round(peak_mb * 1e6 / 2**30, 3)}


def peak_gib(usage: resource.struct_rusage) -> float:
    """The most memory that a process had resident, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(usage.ru_maxrss * unit / 2**30, 3)

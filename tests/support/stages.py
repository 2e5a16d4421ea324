"""A folder that a stage takes for the repository: links to the code, copies of the parameter files, no data.

folder = stage_folder(Path(name))
change_params(folder, {"train.seq_len": 64})
"""

from pathlib import Path

import yaml

from support import ROOT

LINKED = ("src", "dvc.yaml", "requirements", "requirements.txt")
COPIED = ("params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml")
FILES = {"sources": "sources.yaml"} | dict.fromkeys(("selections", "tokenizers", "models"), "presets.yaml")
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


def command_of(stage: dict) -> str:
    """Return the command of a stage of dvc.yaml, without the check of the parameters before it."""
    return stage["cmd"] if isinstance(stage["cmd"], str) else stage["cmd"][-1]


def change_params(folder: Path, values: dict, name: str | None = None) -> None:
    """Set parameters by dotted name in the file `name`, or else in the one that holds them.

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
    return folder / FILES.get(key.split(".")[0], "params.yaml")

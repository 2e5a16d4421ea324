"""Changes of the dvc.lock in the working directory: what other runs would have left. A change is of its stages."""

from pathlib import Path

import yaml

from lm.core.files import write_text
from lm.core.params import read_yaml
from tools.record.lock import md5_of


def change_lock(*changes) -> None:
    """Change the stages of dvc.lock."""
    lock = read_yaml("dvc.lock")
    for change in changes:
        change(lock["stages"])
    write_text("dvc.lock", yaml.safe_dump(lock))


def other_code(stages: dict) -> None:
    """Give the code of train another hash."""
    (code,) = [entry for entry in stages["train"]["deps"] if entry["path"] == "src/train.py"]
    code["md5"] = "0" * 32


def train_with(**values):
    """Return the change that trains with other parameters."""

    def change(stages: dict) -> None:
        stages["train"]["params"]["params.yaml"]["train"] |= values

    return change


def remake(*names: str) -> None:
    """Give the outputs of stages another content, as another run has."""
    for path in outputs_of(read_yaml("dvc.lock")["stages"], *names):
        if path.is_dir():
            (path / "another").touch()
        else:
            content = path.read_bytes()
            path.unlink()  # it may be a link into the cache
            path.write_bytes(content + b"\n")


def record_outputs(stages: dict) -> None:
    """Record the hashes that outputs have now, also where they are inputs of later stages."""
    paths = outputs_of(stages, *stages)
    for entry in entries_of(stages):
        if Path(entry["path"]) in paths:
            entry["md5"] = md5_of(Path(entry["path"]))


def outputs_of(stages: dict, *names: str) -> list[Path]:
    """Return the paths of the outputs of some stages."""
    return [Path(out["path"]) for name in names for out in stages[name]["outs"]]


def entries_of(stages: dict) -> list[dict]:
    """Return the inputs and outputs of all stages."""
    return [entry for stage in stages.values() for entry in [*stage["deps"], *stage["outs"]]]

"""Changes of the dvc.lock in the working directory: what other runs would have left. A change is of its stages."""

import yaml

from lm.core.files import write_text
from lm.core.params import read_yaml

OTHER_MD5 = "0" * 32


def change_lock(*changes) -> None:
    """Change the stages of dvc.lock."""
    lock = read_yaml("dvc.lock")
    for change in changes:
        change(lock["stages"])
    write_text("dvc.lock", yaml.safe_dump(lock))


def entry_of(entries: list[dict], path: str) -> dict:
    """Return the entry of a path in the inputs or outputs of a stage."""
    (entry,) = [each for each in entries if each["path"] == path]
    return entry


def other_code(stages: dict) -> None:
    """Give the code of train another hash."""
    entry_of(stages["train"]["deps"], "src/train.py")["md5"] = OTHER_MD5


def other_weights(stages: dict) -> None:
    """Give the weights that train wrote another hash, but not those that eval read."""
    entry_of(stages["train"]["outs"], "data/models")["md5"] = OTHER_MD5


def train_with(**values):
    """Return the change that trains with other parameters."""

    def change(stages: dict) -> None:
        stages["train"]["params"]["params.yaml"]["train"] |= values

    return change


def entries_of(stages: dict) -> list[dict]:
    """Return the inputs and outputs of all stages."""
    return [entry for stage in stages.values() for entry in [*stage["deps"], *stage["outs"]]]

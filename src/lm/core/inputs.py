"""The inputs of a stage, recorded when it begins and compared before it publishes.

DVC reads parameters, code and data after the command of a stage has ended. So it would record an edit made meanwhile
with a result that does not contain it, and its run cache would serve this result to others.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import sha256_file
from lm.core.git import git, reject_split_index
from lm.core.params import parse_yaml, read_yaml
from lm.core.paths import PARAMS, PIPELINE

BEGIN = "refs/exps/exec/EXEC_MERGE"  # in Git: the commit of the files with which `dvc exp run` began

REMEDY = (
    "nothing was published; undo the change and run the same command again, which publishes a finished training in "
    "seconds, or run it again with the change"
)


class StageInputs:
    """The inputs that dvc.yaml in the working folder lists for a stage, as they were when this object was made.

    Parameters are compared by value. Code is compared by content, comments included, as DVC does. Data is compared by
    size and time: it may be large, and stages verify it when they begin. Without a dvc.yaml nothing is listed.
    """

    def __init__(self, stage: str):
        reject_split_index()
        self.stages = read_yaml(PIPELINE)["stages"] if PIPELINE.exists() else {}
        self.stage = stage
        self.listed = self.stages.get(stage, {})
        self.earlier = _stages_before(stage, self.stages)
        self.begun = self._read()
        self._check_experiment()

    def check_unchanged(self) -> None:
        """Raise IntegrityError if anything differs from what it was when the stage began."""
        now = self._read()
        changed = [name for name in self.begun | now if self.begun.get(name) != now.get(name)]
        if changed:
            first = changed[0]
            values = f"was {self.begun.get(first, 'missing')} and is {now.get(first, 'missing')}"
            others = f" (and {len(changed) - 1} more)" if changed[1:] else ""
            raise IntegrityError(f"{first} {values}{others}: changed while the stage {self.stage} ran; {REMEDY}")
        self._check_experiment()

    def _check_experiment(self) -> None:
        """Raise IntegrityError if a parameter of this or an earlier stage has changed since the experiment began.

        `dvc exp run` saves the parameter files as they are at its end, for all its stages.
        """
        commit = git("rev-parse", "--verify", "--quiet", BEGIN) if "DVC_EXP_NAME" in os.environ else None
        if commit is None:
            return
        for stage in (*self.earlier, self.stage):
            for file, name in _parameters(self.stages.get(stage, {})):
                content = parse_yaml(git("show", f"{commit}:./{file}") or "{}", file)
                before = _flatten(f"{file}: {name}", _descend(content, name))
                now = _flatten(f"{file}: {name}", _value_of(file, name))
                for each in before | now:
                    then = before.get(each, "missing")
                    found = now.get(each, "missing")
                    if then != found:
                        problem = f"{each} was {then} when this experiment began and is {found}"
                        raise IntegrityError(f"{problem}: changed while it ran; {REMEDY}")

    def _read(self) -> dict[str, str]:
        """Return a text that identifies each parameter and each file that exists now."""
        found: dict[str, str] = {}
        for file, name in _parameters(self.listed):
            found |= _flatten(f"{file}: {name}", _value_of(file, name))
        for dependency in self.listed.get("deps", []):
            is_code = dependency.startswith("src/") or dependency.endswith((".txt", ".yaml"))
            path = Path(_fill_in(dependency))
            files = path.rglob("*.py" if is_code else "*") if path.is_dir() else [path]
            for file in filter(Path.is_file, files):
                with contextlib.suppress(FileNotFoundError):  # an editor may remove it just now
                    found[str(file)] = f"SHA-256 {sha256_file(file)[:16]}" if is_code else _size_and_time(file)
        return found


def _parameters(stage: dict) -> Iterator[tuple[str, str]]:
    """Yield the file and the dotted name of each parameter that a stage of dvc.yaml lists."""
    for each in stage.get("params", []):
        names_of_file = {str(PARAMS): [each]} if isinstance(each, str) else each
        for file, names in names_of_file.items():
            for name in names:
                yield file, _fill_in(name)


def _stages_before(stage: str, stages: dict) -> list[str]:
    """Return the stages of dvc.yaml whose outputs a stage reads, and those before them."""
    read = set(stages.get(stage, {}).get("deps", []))
    before: list[str] = []
    for name, entry in stages.items():
        outputs = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
        written = {path if isinstance(path, str) else next(iter(path)) for path in outputs}
        if read & written:
            before += [*_stages_before(name, stages), name]
    return list(dict.fromkeys(before))


def _size_and_time(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size} bytes at {status.st_mtime_ns} ns"


def _fill_in(text: str) -> str:
    """Replace each ${name} by the value of this parameter, as DVC does."""
    return re.sub(r"\$\{(.+?)\}", lambda match: str(_value_of(str(PARAMS), match[1])), text)


def _value_of(file: str, name: str) -> object:
    """Return the value of a dotted name, {} if it cannot be read; the code that uses it reports the error."""
    try:
        return _descend(read_yaml(file), name)
    except ParamsError:
        return {}


def _descend(value: object, name: str) -> object:
    """Return the value of a dotted name in a mapping, {} if there is none."""
    for key in name.split("."):
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value


def _flatten(name: str, value: object) -> dict[str, str]:
    """Return the values below a name by their own names."""
    if not isinstance(value, dict):
        return {name: repr(value)}
    flat: dict[str, str] = {}
    for key, each in value.items():
        separator = "" if name.endswith(" ") else "."
        flat |= _flatten(f"{name}{separator}{key}", each)
    return flat

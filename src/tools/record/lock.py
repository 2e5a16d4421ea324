"""Read dvc.lock: the record of a run, and whether its stages and the present code belong to one run.

Nothing here imports DVC, which takes a second.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import yaml
from ruamel.yaml.resolver import implicit_resolvers

from lm.core.errors import IntegrityError
from lm.core.files import read_json, reject_special_file
from lm.core.git import git
from lm.core.paths import RUNS, repository_root
from tools.record.parameters import flatten
from tools.record.paths import LOCK, MODELS, PIPELINE

MODEL_CODE = ("src/lm/model", "src/lm/tokenizer")  # code that runs when a model is used
EVALUATION = "eval"  # the stage that ends a run
# Inputs that cannot explain a difference: those of stages before and after the model, and files made from the others.
STAGES_LEFT_OUT = ("fetch", "audit", "plot")
INPUTS_LEFT_OUT = ("data/models", "data/audit")

CONFLICT = "<<<<<<< "
KEEP_OUR_SIDE = "run `git checkout --ours dvc.lock metrics plots && dvc repro`, then commit the merge"


@dataclasses.dataclass(frozen=True)
class Lock:
    """The stages of a dvc.lock by name, in the order of dvc.yaml, without those that dvc.yaml no longer has."""

    stages: dict[str, dict]

    def hashes(self, kind: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
        """Return path → MD5 of the "deps" or "outs" of all stages except `leave_out`."""
        stages = [stage for name, stage in self.stages.items() if name not in leave_out]
        return {entry["path"]: entry["md5"] for stage in stages for entry in stage.get(kind, ())}

    @property
    def params(self) -> dict[str, object]:
        """Return the parameters that the stages ran with, by dotted name."""
        recorded = {}
        for stage in self.stages.values():
            for section in stage.get("params", {}).values():
                recorded |= flatten(section)
        return recorded

    @property
    def inputs(self) -> dict[str, str]:
        """Return path → MD5 of the code and data that can explain a difference between two models."""
        inputs = self.hashes("deps", STAGES_LEFT_OUT)
        return {path: md5 for path, md5 in inputs.items() if path not in INPUTS_LEFT_OUT}

    @property
    def stale_stages(self) -> list[str]:
        """Return the stages whose recorded inputs no longer match upstream outputs, and those after them."""
        outputs = self.hashes("outs")
        stale: list[str] = []
        outdated: set[str] = set()  # outputs of the stages in `stale`
        for name, stage in self.stages.items():
            inputs = {dep["path"]: dep["md5"] for dep in stage.get("deps", ())}
            reads_other = any(outputs.get(path, md5) != md5 for path, md5 in inputs.items())
            if reads_other or outdated & inputs.keys():
                stale.append(name)
                outdated |= {out["path"] for out in stage.get("outs", ())}
        return stale

    @property
    def is_finished(self) -> bool:
        """Return whether the evaluation is of the model and the text that the other stages made."""
        return EVALUATION in self.stages and EVALUATION not in self.stale_stages


def read_lock(folder: Path = Path()) -> Lock:
    """Return dvc.lock of a folder. Raise IntegrityError if it is missing, broken, or has conflicts of a merge."""
    path = folder / LOCK
    if not path.exists():
        raise IntegrityError(f"{path}: missing; run `dvc repro` first")
    pipeline = folder / PIPELINE
    if not pipeline.exists():  # a copy of a run may be without it
        pipeline = path
    return parse_lock(path.read_text(encoding="utf-8"), pipeline.read_text(encoding="utf-8"), str(path))


def read_committed_lock() -> Lock | None:
    """Return dvc.lock of the last commit, None if it has none."""
    lock = git("show", f"HEAD:./{LOCK}")
    pipeline = git("show", f"HEAD:./{PIPELINE}")
    if lock is None or pipeline is None:
        return None
    return parse_lock(lock, pipeline, f"{LOCK} of the last commit")


class Loader(yaml.CSafeLoader):  # pyright: ignore[reportGeneralTypeIssues]
    """Read DVC's files by its rules, those of YAML 1.2. A dvc.lock takes 5 ms; ruamel.yaml would take 60."""

    yaml_implicit_resolvers: ClassVar[dict] = {}  # those of YAML 1.1 read 1e-05 as a text, and "on" as true


for versions, tag, pattern, first_letters in implicit_resolvers:
    if (1, 2) in versions:
        Loader.add_implicit_resolver(tag, pattern, first_letters)


def parse_stages(text: str) -> dict[str, dict]:
    """Return the stages in a dvc.lock or a dvc.yaml by name. Raise ValueError if there are none."""
    try:
        return dict(yaml.load(text, Loader)["stages"])  # noqa: S506 - it is a CSafeLoader
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def parse_lock(lock: str, pipeline: str, where: str) -> Lock:
    """Return the content of a dvc.lock, given the dvc.yaml beside it. Raise IntegrityError, which `where` begins."""
    if any(line.startswith(CONFLICT) for line in lock.splitlines()):
        raise IntegrityError(f"{where}: a merge left conflicts in it; {KEEP_OUR_SIDE}")
    try:
        recorded = parse_stages(lock)
        order = stage_names(pipeline)
    except ValueError as error:
        raise IntegrityError(f"{where}: not a list of stages ({error}); run `git restore {LOCK}`") from None
    return Lock({name: recorded[name] for name in order if name in recorded})


@functools.cache
def stage_names(pipeline: str) -> list[str]:
    """Return the names of the stages of a dvc.yaml; cached, because hundreds of runs share one."""
    return list(parse_stages(pipeline))


def paths_of(stage: dict, kind: str) -> list[Path]:
    """Return the paths of a list of a stage of dvc.yaml, such as its metrics."""
    entries = stage.get(kind, [])
    return [Path(path) for entry in entries for path in (entry if isinstance(entry, dict) else [entry])]


def read_timing(record: dict) -> dict:
    """Return timing.json of the run of a model.json, {} if the run was computed elsewhere or its folder is deleted.

    Times depend on the machine, so no output has them.
    """
    path = repository_root() / RUNS / record.get("fingerprint", "unknown") / "timing.json"
    return read_json(path) if path.exists() else {}


# The files that are here.


def changed_files(recorded: Mapping[str, str]) -> list[str]:
    """Return the files and folders, of path → recorded MD5, that have another content here; comments count, too."""
    return [path for path, md5 in recorded.items() if md5_of(Path(path)) != md5]


def wrong_outputs(lock: Lock) -> dict[str, str]:
    """Return the outputs with a byte that is not the recorded one, path → recorded hash; every file is read."""
    outputs = lock.hashes("outs")
    return {path: outputs[path] for path in changed_files(outputs)}


def warn_of_changed_code(models: Path) -> None:
    """Print a warning if the code of the model has changed since the weights in `models` were trained.

    Only dvc.lock records the code, so folders other than that of the stage train are not checked.
    """
    if not (models.is_relative_to(MODELS) and LOCK.exists()):
        return
    training = {name: stage for name, stage in read_lock().stages.items() if name == "train"}
    inputs = Lock(training).hashes("deps")
    changed = changed_files({path: md5 for path, md5 in inputs.items() if path in MODEL_CODE})
    if changed:
        remedy = "`dvc repro` trains it again, `git restore src` undoes the change"
        print(
            f"warning: {', '.join(changed)} changed since {models} was trained; {remedy}", file=sys.stderr, flush=True
        )


def md5_of(path: Path) -> str:
    """Return DVC's hash of a file or a folder, "" if it does not exist."""
    if path.is_dir():
        return hash_of_folder(md5_by_name(path))
    return md5_of_file(path) if path.exists() else ""


def md5_of_file(path: Path) -> str:
    """Return the MD5 of a file in hex. Raise IntegrityError for a pipe or a device."""
    with open(reject_special_file(path), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def md5_by_name(folder: Path) -> dict[str, str]:
    """Return the MD5 of each file below a folder by its relative path, without those that .dvcignore names."""
    ignored = Path(".dvcignore")
    lines = ignored.read_text(encoding="utf-8").splitlines() if ignored.exists() else []
    patterns = [line for line in lines if line and not line.startswith("#")]  # of names of files and folders
    files = {}
    for file in folder.rglob("*"):
        relative = file.relative_to(folder)
        is_ignored = any(fnmatch.fnmatch(part, pattern) for part in relative.parts for pattern in patterns)
        if file.is_file() and not is_ignored:
            files[relative.as_posix()] = md5_of_file(file)
    return files


def hash_of_folder(files: dict[str, str]) -> str:
    """Return DVC's hash of a folder whose files have these names and MD5s: the MD5 of their list."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return md5_of_content(json.dumps(entries).encode()) + ".dir"


def md5_of_content(content: bytes) -> str:
    """Return the MD5 of some bytes in hex."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

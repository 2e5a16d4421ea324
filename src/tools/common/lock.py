"""dvc.lock: read it, and find what it records that is not of one run, or not of the code that is here now."""

import fnmatch
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ruamel.yaml import YAML

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.core.git import git
from lm.core.params import read_yaml
from tools.common.paths import LOCK, MODELS, PIPELINE

CODE = ("src/", "requirements")  # beginnings of the paths of code and of the pinned packages
MODEL_CODE = ("src/lm/model", "src/lm/tokenizer")  # through which text and weights go when a model is used
CONFLICT = "<<<<<<< "
KEEP_OUR_SIDE = "run `git checkout --ours dvc.lock metrics plots && dvc repro`, then commit the merge"


def parse_lock(text: str, where: str) -> dict:
    """Return the content of a dvc.lock; `where` begins an error message. Raise IntegrityError if it is broken."""
    if any(line.startswith(CONFLICT) for line in text.splitlines()):
        raise IntegrityError(f"{where}: a merge left conflicts in it; {KEEP_OUR_SIDE}")
    try:
        stages = dict(YAML(typ="safe").load(text)["stages"])
    except Exception as error:  # ruamel.yaml raises many types
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{where}: not a list of stages ({reason}); run `git restore {LOCK}`") from None
    return {"stages": stages}


def read_lock() -> dict:
    """Return the content of dvc.lock. Raise IntegrityError if it is missing, broken, or has conflicts of a merge."""
    if not LOCK.exists():
        raise IntegrityError(f"{LOCK}: missing; run `dvc repro` first")
    return parse_lock(LOCK.read_text(encoding="utf-8"), str(LOCK))


def stages_of(lock: dict) -> dict:
    """Return the content of a dvc.lock in the order of dvc.yaml, without stages that it no longer has.

    DVC leaves these in dvc.lock.
    """
    order = read_yaml(PIPELINE)["stages"]
    return {"stages": {name: lock["stages"][name] for name in order if name in lock["stages"]}}


def hashes(lock: dict, kind: str) -> dict[str, str]:
    """Return path → MD5 of the "deps" or "outs" of all stages."""
    md5_of_path = {}
    for stage in lock["stages"].values():
        for entry in stage.get(kind, ()):
            md5_of_path[entry["path"]] = entry["md5"]
    return md5_of_path


def stages_of_former_runs(lock: dict) -> list[str]:
    """Return the stages that read other files than earlier stages have written since, and the stages after these.

    lock: in the order of dvc.yaml.
    """
    outputs = hashes(lock, "outs")
    former: list[str] = []
    outdated: set[str] = set()  # outputs of the stages in `former`
    for name, stage in lock["stages"].items():
        inputs = {dep["path"]: dep["md5"] for dep in stage.get("deps", ())}
        reads_former = any(outputs.get(path, md5) != md5 for path, md5 in inputs.items())
        if reads_former or outdated & inputs.keys():
            former.append(name)
            outdated |= {out["path"] for out in stage.get("outs", ())}
    return former


def changed_code(lock: dict, below: tuple[str, ...] = CODE) -> list[str]:
    """Return the files of code, or the folders, that are not those with which the stages of a dvc.lock ran.

    below: beginnings of the paths that count. Comments count, as for DVC.
    """
    recorded = {path: md5 for path, md5 in hashes(lock, "deps").items() if path.startswith(below)}
    changed = [path for path, md5 in recorded.items() if md5_of(Path(path)) != md5]
    return files_that_git_names(changed)


def warn_of_changed_code(models: Path) -> None:
    """Print a warning if the weights in `models` would run through other code than that with which they were trained.

    Only dvc.lock knows the code, so other folders than that of the stage train are not checked.
    """
    if not (models.is_relative_to(MODELS) and LOCK.exists()):
        return
    training = read_lock()["stages"].get("train", {})
    changed = changed_code({"stages": {"train": training}}, below=MODEL_CODE)
    if changed:
        files = ", ".join(changed)
        remedy = "`dvc repro` trains it again, `git restore src` undoes the change"
        print(f"warning: {files} changed since {models} was trained; {remedy}", file=sys.stderr, flush=True)


def files_that_git_names(paths: Iterable[str]) -> list[str]:
    """Return the files below each path that differ from the last commit, or the path itself if Git names none."""
    named = []
    for path in paths:
        try:
            status = git("status", "--porcelain", "--untracked-files=all", "--no-renames", "--", path) or ""
        except EnvironmentFailure:
            status = ""
        files = [line.split(maxsplit=1)[1] for line in status.splitlines()]
        named += files or [path]
    return list(dict.fromkeys(named))


def md5_of(path: Path, replaced: Mapping[str, bytes] | None = None) -> str:
    """Return DVC's hash of a file or a folder, "" if it does not exist; `replaced`: other contents of files in it."""
    replaced = replaced or {}
    if path.is_file():
        return md5_of_content(path.read_bytes())
    if not path.is_dir():
        return ""
    ignored = ignored_names()
    files = {}
    for file in path.rglob("*"):
        relative = file.relative_to(path)
        is_ignored = any(fnmatch.fnmatch(part, name) for part in relative.parts for name in ignored)
        if file.is_file() and not is_ignored:
            name = relative.as_posix()
            files[name] = md5_of_content(replaced[name] if name in replaced else file.read_bytes())
    return hash_of_folder(files)


def hash_of_folder(files: dict[str, str]) -> str:
    """Return DVC's hash of a folder whose files have these names and MD5s: the MD5 of their list."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return md5_of_content(json.dumps(entries).encode()) + ".dir"


def ignored_names() -> list[str]:
    """Return the patterns of .dvcignore, each of which is the name of a file or folder."""
    path = Path(".dvcignore")
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def md5_of_content(content: bytes) -> str:
    """Return the MD5 of some bytes in hex."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

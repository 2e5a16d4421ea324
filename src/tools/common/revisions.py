"""Files of an experiment, a git revision or the workspace, read through DVC and checked against dvc.lock."""

import fnmatch
import hashlib
import json
from pathlib import Path
from typing import cast

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.scm import RevError, SCMError
from dvc_data.index import DataIndexDirError

from lm.core.errors import IntegrityError, ParamsError
from tools.common.dvc_repository import explain_failures, is_shallow, reject_unreadable
from tools.common.lock import hash_of_folder, md5_of_content, parse_lock, read_lock
from tools.common.parameters import recorded_params
from tools.common.paths import EVALUATION_DETAILS, LOCK, MODEL, VALIDATION_SIDECAR

WORKSPACE = "workspace"


class Revision:
    """Files of one recorded state. Parameters and hashes come from dvc.lock: params.yaml may have been edited since."""

    def __init__(self, name: str):
        """Open revision `name` of the repository around the working folder; ParamsError if it does not exist."""
        self.name = name
        if name != WORKSPACE:
            reject_unreadable(name)
        elif LOCK.exists():
            read_lock()  # names conflicts of a merge
        try:
            with explain_failures():
                self._files = DVCFileSystem(rev=None if name == WORKSPACE else name)
                lock = self._content(LOCK)[0].decode("utf-8")
        except RevError:
            if experiment_names().count(name) > 1:
                problem = "is the name of several experiments; name one by its hash, which `dvc exp list -A` shows"
            else:
                problem = (
                    "is neither an experiment nor a git revision; `dvc exp list -A` lists the experiments, "
                    f"and {WORKSPACE} means the files in this folder"
                )
            if is_shallow():
                problem += "; the clone has only a part of its history, which `git fetch --unshallow` completes"
            raise ParamsError(f"{name} {problem}") from None
        self.stages: dict[str, dict] = parse_lock(lock, f"{name}: {LOCK}")["stages"]

    def _content(self, path: Path | str) -> tuple[bytes, str | None]:
        """Return a file's bytes (from git, the workspace, DVC's cache or its remote) and its md5 in DVC's index."""
        try:
            known = self._files.info(str(path)).get("dvc_info") or {}
            return cast(bytes, self._files.read_bytes(str(path))), known.get("md5")
        except SCMError:
            raise
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(
                f"{self.name}: {path} is neither in git nor in DVC's cache ({error}); run `dvc repro` there, or "
                "`dvc pull` it"
            ) from None

    def read(self, path: Path | str) -> bytes:
        """Return the bytes of an output. IntegrityError if they are not those that dvc.lock records."""
        content, recorded = self._content(path)
        recorded = self.hashes("outs").get(str(path), recorded)
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if recorded not in (None, found):
            raise IntegrityError(
                f"{self.name}: {path} has the md5 {found}, {LOCK} says {recorded}; run `dvc repro` "
                "(or, if the cache is damaged, `dvc repro -f` with the stage that writes it)"
            )
        return content

    def read_if_there(self, path: Path) -> bytes | None:
        """Return the bytes of a file that is in Git or in the workspace, None if it is not there."""
        return cast(bytes, self._files.read_bytes(str(path))) if self._files.exists(str(path)) else None

    def read_json(self, path: Path | str) -> dict:
        """Return the content of a JSON output."""
        return json.loads(self.read(path))

    def copy(self, path: Path | str, to: str) -> None:
        """Copy a file or a folder to the local path `to`."""
        try:
            self._files.get(str(path), to, recursive=True)
        except (OSError, DvcException, DataIndexDirError) as error:
            raise IntegrityError(f"{self.name}: {path} cannot be read ({error}); `dvc pull` it") from None

    def hashes(self, kind: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
        """Return path → md5 of the "deps" or "outs" of all stages except `leave_out`."""
        stages = (stage for name, stage in self.stages.items() if name not in leave_out)
        return {entry["path"]: entry["md5"] for stage in stages for entry in stage.get(kind, ())}

    def files_of(self, folder: str) -> dict[str, str]:
        """Return name → md5 of the files in a folder of code, or {} if they are not those with which the stages ran."""
        files = {}
        for path in self._files.find(folder):
            name = str(path).removeprefix("/").removeprefix(f"{folder}/")
            files[name] = md5_of_content(cast(bytes, self._files.read_bytes(path)))
        return files if hash_of_folder(files) == self.hashes("deps").get(folder) else {}

    def params(self) -> dict[str, object]:
        """Return the parameters that the stages ran with, by dotted name; a list is one value."""
        return recorded_params({"stages": self.stages})

    def results(self) -> dict[str, dict]:
        """Return model.json and, as `evaluation`, the details of eval."""
        return {**self.read_json(MODEL), "evaluation": self.read_json(EVALUATION_DETAILS)}


def experiment_names() -> list[str]:
    """Return the name of each finished experiment; those that started from different commits may share one."""
    with explain_failures(), Repo() as repo:
        by_commit = repo.experiments.ls(all_commits=True)
    return [name for entries in by_commit.values() for name, _ in entries]


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern of names."""
    return any(letter in name for letter in "*?[")


def matching(patterns: list[str]) -> list[str]:
    """Return the names that the patterns match, each once; ParamsError if a pattern matches none."""
    names: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(sorted(experiment_names()), pattern) if is_pattern(pattern) else [pattern]
        if not matched:
            raise ParamsError(
                f"{pattern}: no finished experiment has such a name; `dvc exp list -A` lists them, and "
                "`dvc queue status` those that are not finished"
            )
        names += matched
    return list(dict.fromkeys(names))


def unfinished(patterns: list[str]) -> dict[str, str]:
    """Return name → state of the experiments in the queue, or running elsewhere, that match a pattern."""
    with explain_failures(), Repo() as repo:
        queued = {entry["name"]: entry["status"] for entry in repo.experiments.celery_queue.status()}
        running = {entry.name: "Running" for entry in repo.experiments.tempdir_queue.iter_active()}
    states = {name: state for name, state in (queued | running).items() if name and state != "Success"}
    finished = set(experiment_names())
    return {
        name: state
        for name, state in sorted(states.items())
        if name not in finished and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }


def reject_other_text(first: Revision, other: Revision) -> None:
    """Raise IntegrityError unless both validation files hold the same documents, whatever the tokenizer."""
    # The same range of characters of the same file.
    sidecars = [revision.read_json(VALIDATION_SIDECAR) for revision in (first, other)]
    texts = [(meta["source"].get("text_sha256"), meta["slice"]) for meta in sidecars]
    if None in texts[0] or texts[0] != texts[1]:
        described = " and ".join(
            f"{meta['source']['name']} {meta['slice']} ({meta['documents']} documents, {meta['utf8_bytes']} bytes)"
            for meta in sidecars
        )
        raise IntegrityError(
            f"{first.name} and {other.name} were evaluated on different documents: {described}; "
            "compare runs with the same data.source, validation range and selection"
        )

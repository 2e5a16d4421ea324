"""Files of an experiment, a git revision or the workspace, read through DVC and checked against dvc.lock."""

import fnmatch
import hashlib
import json
from pathlib import Path
from typing import cast

import yaml
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.scm import RevError, SCMError
from dvc_data.index import DataIndexDirError

from lm.core.errors import IntegrityError, ParamsError
from tools.common.parameters import recorded_params
from tools.common.paths import EVALUATION_DETAILS, LOCK, MANIFEST, MODEL, VALIDATION_SIDECAR

WORKSPACE = "workspace"
NO_REPOSITORY = "this folder is not in a DVC repository; run the command in the project's folder"


class Revision:
    """Files of one recorded state. Parameters and hashes come from dvc.lock: params.yaml may have been edited since."""

    def __init__(self, name: str):
        """Open revision `name` of the repository around the working folder; ParamsError if it does not exist."""
        self.name = name
        try:
            self._files = DVCFileSystem(rev=None if name == WORKSPACE else name)
            self.stages: dict[str, dict] = yaml.safe_load(self._content(LOCK)[0])["stages"]
        except RevError:
            if experiment_names().count(name) > 1:
                problem = "is the name of several experiments; name one by its hash, which `dvc exp list -A` shows"
            else:
                problem = (
                    "is neither an experiment nor a git revision; `dvc exp list -A` lists the experiments, "
                    f"and {WORKSPACE} means the files in this folder"
                )
            raise ParamsError(f"{name} {problem}") from None
        except (NotDvcRepoError, SCMError):
            raise ParamsError(NO_REPOSITORY) from None

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

    def params(self) -> dict[str, object]:
        """Return the parameters that the stages ran with, by dotted name; a list is one value."""
        return recorded_params({"stages": self.stages})

    def results(self) -> dict[str, dict]:
        """Return model.json and, as `evaluation`, the details of eval."""
        return {**self.read_json(MODEL), "evaluation": self.read_json(EVALUATION_DETAILS)}


def experiment_names() -> list[str]:
    """Return the name of each finished experiment; those that started from different commits may share one."""
    try:
        with Repo() as repo:
            by_commit = repo.experiments.ls(all_commits=True)
    except (NotDvcRepoError, SCMError):
        raise ParamsError(NO_REPOSITORY) from None
    return [name for entries in by_commit.values() for name, _ in entries]


def matching(patterns: list[str]) -> list[str]:
    """Return the names that the patterns match, each once; ParamsError if a pattern matches none."""
    names: list[str] = []
    for pattern in patterns:
        is_pattern = any(letter in pattern for letter in "*?[")
        matched = fnmatch.filter(sorted(experiment_names()), pattern) if is_pattern else [pattern]
        if not matched:
            raise ParamsError(f"{pattern}: no finished experiment has such a name; `dvc exp list -A` lists them")
        names += matched
    return list(dict.fromkeys(names))


def refuse_other_text(first: Revision, other: Revision, of_selections: bool = True) -> None:
    """Raise IntegrityError unless both validation files hold the same documents, whatever the tokenizer.

    `of_selections` False: those that a selection left out of the same text may differ.
    """
    # The same range of characters of the same files, even if data/raw differs otherwise (more training text).
    sidecars = [revision.read_json(VALIDATION_SIDECAR) for revision in (first, other)]
    raw = [(meta["source"]["manifest_sha256"], meta["slice"]) for meta in sidecars]
    is_same = raw[0] == raw[1] or _validation_text(first, sidecars[0]) == _validation_text(other, sidecars[1])
    if not is_same or (of_selections and left_out(first) != left_out(other)):
        described = " and ".join(
            f"{meta['source']['name']} {meta['slice']} ({meta['documents']} documents, {meta['utf8_bytes']} bytes)"
            for meta in sidecars
        )
        raise IntegrityError(
            f"{first.name} and {other.name} were evaluated on different documents: {described}; "
            "compare runs with the same data.source, validation range and selection of validation documents"
        )


def _validation_text(revision: Revision, sidecar: dict) -> tuple:
    """Return what decides the validation documents: of each source, its files, text column and range of characters."""
    content = revision.read(MANIFEST)
    sha256, recorded = hashlib.sha256(content).hexdigest(), sidecar["source"]["manifest_sha256"]
    if sha256 != recorded:
        problem = f"{MANIFEST} has the sha256 {sha256}, {VALIDATION_SIDECAR} says {recorded}; run `dvc repro`"
        raise IntegrityError(f"{revision.name}: {problem}")
    manifest, whole = json.loads(content), sidecar["slice"]
    # A mixture's validation text is that of its sources in their order; their names do not matter.
    sources = manifest["sources"].values() if "sources" in manifest else [manifest | {"validation": whole}]
    text = []
    for source in sources:
        taken = source["validation"]
        files = [entry["sha256"] for entry in source["splits"][taken["split"]]["files"]]
        text.append((files, source["column"], taken["start_char"], taken["num_chars"]))
    return text, whole["start_char"], whole["num_chars"]


def left_out(revision: Revision) -> str:
    """Return the hash of the documents that a selection left out of the validation text."""
    return revision.read_json(VALIDATION_SIDECAR)["source"]["selection"]["validation_dropped_sha256"]

"""What an experiment, a git revision or the workspace holds, read through DVC and checked against its dvc.lock."""

import hashlib
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.scm import RevError, SCMError

from lm.core.errors import IntegrityError, ParamsError

WORKSPACE = "workspace"
LOCK = "dvc.lock"
SIDECAR = "data/processed_datasets/validation.json"
MANIFEST = "data/raw/manifest.json"
SELECTORS = (("data.source", "sources"), ("tokenizer.name", "tokenizers"), ("model.name", "models"))
NO_REPOSITORY = "this folder is in no DVC repository; run the command in the project's folder"


class Revision:
    """The files of one recorded state; `stages` is what its dvc.lock says of each stage.

    Parameters and hashes come from dvc.lock, because params.yaml may have been edited since.
    """

    def __init__(self, name: str):
        """Open `name` in the repository that holds the working folder; ParamsError if there is none."""
        self.name = name
        try:
            self._files = DVCFileSystem(rev=None if name == WORKSPACE else name)
            self.stages: dict[str, dict] = yaml.safe_load(self._content(LOCK))["stages"]
        except RevError:
            raise ParamsError(
                f"{name} is no experiment and no git revision; `dvc exp list -A` names the experiments, "
                f"and {WORKSPACE} is what lies here"
            ) from None
        except (NotDvcRepoError, SCMError):
            raise ParamsError(NO_REPOSITORY) from None

    def _content(self, path: str) -> bytes:
        """The bytes of a file, from git, the workspace, DVC's cache or its remote."""
        try:
            return self._files.read_bytes(path)
        except SCMError:
            raise
        except (OSError, DvcException) as error:
            raise IntegrityError(
                f"{self.name}: {path} is neither in git nor in DVC's cache ({error}); "
                "run `dvc repro` there, or `dvc pull` it"
            ) from None

    def read(self, path: str) -> bytes:
        """The bytes of an output. IntegrityError if they are not those that dvc.lock records."""
        content = self._content(path)
        recorded = self._hashes("outs").get(path)
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if recorded not in (None, found):  # None: inside a folder, whose hash is of all of it
            raise IntegrityError(
                f"{self.name}: {path} has the md5 {found}, {LOCK} says {recorded}; run `dvc repro` "
                "(or, where the cache is damaged, `dvc repro -f` the stage that writes it)"
            )
        return content

    def read_json(self, path: str) -> dict:
        """A JSON output."""
        return json.loads(self.read(path))

    def read_parquet(self, path: str) -> pa.Table:
        """A Parquet output."""
        return pq.read_table(io.BytesIO(self.read(path)))

    def copy(self, path: str, to: str) -> None:
        """Copy a file or a folder to the local path `to`."""
        try:
            self._files.get(path, to, recursive=True)
        except (OSError, DvcException) as error:
            raise IntegrityError(f"{self.name}: {path} cannot be read ({error}); `dvc pull` it") from None

    def _hashes(self, kind: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
        """Path → md5 of the "deps" or "outs" of all stages but some."""
        stages = (stage for name, stage in self.stages.items() if name not in leave_out)
        return {entry["path"]: entry["md5"] for stage in stages for entry in stage.get(kind, ())}

    def inputs(self, leave_out: tuple[str, ...]) -> dict[str, str]:
        """Path → md5 of everything that the stages, without those of `leave_out`, depend on."""
        return self._hashes("deps", leave_out)

    def params(self) -> dict[str, object]:
        """Parameters by dotted name, as the stages ran with them; a list is one value."""
        found = {}
        for stage in self.stages.values():
            for section in stage.get("params", {}).values():
                found.update(flatten(section))
        return found


def flatten(section: dict, prefix: str = "") -> dict[str, object]:
    """Leaves of nested mappings by dotted name."""
    found = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        found.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value})
    return found


def preset_names_left_out(params: dict) -> dict:
    """models.tiny.n_layer → models.*.n_layer, so that two presets are compared field by field."""
    for selector, book in SELECTORS:
        chosen = f"{book}.{params.get(selector)}."
        params = {
            f"{book}.*.{name.removeprefix(chosen)}" if name.startswith(chosen) else name: value
            for name, value in params.items()
        }
    return params


def experiments() -> list[str]:
    """The names of the repository's finished experiments, whichever commit they began at."""
    try:
        with Repo() as repo:
            found = repo.experiments.ls(all_commits=True)
    except (NotDvcRepoError, SCMError):
        raise ParamsError(NO_REPOSITORY) from None
    return sorted({name for entries in found.values() for name, _ in entries})


def refuse_other_text(first: Revision, other: Revision) -> None:
    """Raise IntegrityError unless both validation files hold the same documents, whatever the tokenizer.

    They do if the same range of characters was cut out of the same files: out of an equal data/raw, or,
    where that differs (more training text), out of files whose hashes its manifest records as equal.
    """
    sidecars = [revision.read_json(SIDECAR) for revision in (first, other)]
    raw = [(meta["source"]["manifest_sha256"], meta["slice"]) for meta in sidecars]
    if raw[0] != raw[1] and validation_text(first, sidecars[0]) != validation_text(other, sidecars[1]):
        described = [
            f"{meta['source']['name']} {meta['slice']} ({meta['documents']} documents, {meta['utf8_bytes']} bytes)"
            for meta in sidecars
        ]
        raise IntegrityError(
            f"{first.name} and {other.name} were evaluated on different documents: {described[0]} and {described[1]}; "
            "compare runs with the same data.source and validation range"
        )


def validation_text(revision: Revision, sidecar: dict) -> tuple:
    """What decides the validation documents: the files' hashes, the text column, the range of characters."""
    content = revision.read(MANIFEST)
    found, recorded = hashlib.sha256(content).hexdigest(), sidecar["source"]["manifest_sha256"]
    if found != recorded:
        raise IntegrityError(
            f"{revision.name}: {MANIFEST} has the sha256 {found}, {SIDECAR} says {recorded}; run `dvc repro`"
        )
    manifest, part = json.loads(content), sidecar["slice"]
    files = [entry["sha256"] for entry in manifest["splits"][part["split"]]["files"]]
    return files, manifest["column"], part["start_char"], part["num_chars"]

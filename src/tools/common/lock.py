"""dvc.lock: what it records of a run, whether it is of one run and of the present code, how it differs from HEAD's.

Nothing here imports DVC, which takes a second.
"""

import dataclasses
import fnmatch
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from lm.core.params import read_yaml
from lm.core.paths import RUNS, repository_root
from tools.common.parameters import flatten, preset_names_left_out, recorded_params
from tools.common.paths import DATA_METRICS, EVAL_METRICS, LOCK, MODEL, MODELS, PIPELINE, TRAIN_METRICS

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


def paths_of(stage: dict, kind: str) -> list[Path]:
    """Return the paths of a list of a stage of dvc.yaml, such as its metrics."""
    entries = stage.get(kind, [])
    return [Path(path) for entry in entries for path in (entry if isinstance(entry, dict) else [entry])]


def read_timing(record: dict) -> dict:
    """Return timing.json of the run of a model.json: {} if it was computed on another machine or is deleted."""
    path = repository_root() / RUNS / record.get("fingerprint", "unknown") / "timing.json"
    return read_json(path) if path.exists() else {}


# The run in the workspace and the committed one.

PAGE = "docs/reproducibility.md"
MISSING = "(none)"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A name with its value in the committed run and its value now; MISSING where one of them lacks it."""

    name: str
    committed: Any
    now: Any


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the run in the workspace differs from the committed one; equal bits differ in no output."""

    parameters: list[Difference]
    inputs: list[str]  # paths of code, packages and text of the user's own
    outputs: list[str]  # paths
    gpus: list[str]  # that model.json names, if nothing else differs in data/models
    num_outputs: int
    metrics: list[Difference]
    former_stages: list[str]  # whose outputs are of a former run, because their inputs were made again since
    changed_code: list[str]  # paths of code that is not the code of the run
    numerics: Any  # train.numerics of the run in the workspace

    @property
    def is_identical(self) -> bool:
        """Return whether every output has the bytes of the committed one."""
        return not self.outputs

    @property
    def headline(self) -> str:
        """Return the sentence that says whether the two are bitwise identical."""
        causes = []
        if self.parameters:
            causes.append(f"{len(self.parameters)} of its parameters")
        if self.inputs:
            causes.append(f"{len(self.inputs)} of its inputs (code, packages or text)")
        changed = " and ".join(causes)

        if self.is_identical:
            although = f", although {changed} changed" if causes else ""
            machine = f", computed on {' and '.join(self.gpus)}" if self.gpus else ""
            return f"Bitwise identical to the committed run (all {self.num_outputs} outputs){machine}{although}."
        differ = f"{len(self.outputs)} of {self.num_outputs} outputs differ"
        if causes:
            return f"Another run than the committed one: {changed} changed; {differ}."
        return f"Not bitwise identical to the committed run: {differ}, although code and parameters are the same."

    @property
    def explanation(self) -> str:
        """Return why the bits differ although nothing else does, and where that is explained; "" in other cases."""
        if self.is_identical or self.parameters or self.inputs:
            return ""
        if self.numerics == "fast":
            return f"Fast numerics promise equal bits on one machine only ({PAGE})."
        return f"This processor or its versions of the packages give other bits ({PAGE})."


def differences(committed: dict, now: dict) -> list[Difference]:
    """Return the names whose values differ, in the order of `committed`, then of `now`."""
    names = dict.fromkeys([*committed, *now])
    found = (Difference(name, committed.get(name, MISSING), now.get(name, MISSING)) for name in names)
    return [each for each in found if each.committed != each.now]


def compare_with_committed() -> Comparison | None:
    """Compare the two runs; return None if no dvc.lock is committed.

    Raise IntegrityError if dvc.lock or an output that it records is missing here.
    """
    now = stages_of(read_lock())
    outputs_now = hashes(now, "outs")
    if missing := [path for path in outputs_now if not os.path.exists(path)]:
        problem = (
            f"{', '.join(missing)}: missing, as before the end of a run, or in an experiment that was not pushed whole"
        )
        remedy = (
            "`dvc pull` fetches what a remote has; else run `dvc repro` first, or `make back` for the committed run"
        )
        raise IntegrityError(f"{problem}; {remedy}")
    committed_text = git("show", f"HEAD:./{LOCK}")
    if committed_text is None:
        return None
    committed = stages_of(parse_lock(committed_text, f"{LOCK} of the last commit"))

    # Inputs are what no stage has made.
    outputs_then = hashes(committed, "outs")
    deps_now = hashes(now, "deps")
    deps_then = hashes(committed, "deps")
    inputs = [each.name for each in differences(deps_then, deps_now) if each.name not in outputs_now]

    # A run on a GPU has the same bits, and its model.json names the GPU.
    outputs = [each.name for each in differences(outputs_then, outputs_now)]
    gpus = gpus_of(read_json(MODEL)["segments"]) if str(MODELS) in outputs else []
    if gpus and hash_without_gpus() == outputs_then.get(str(MODELS)):
        outputs.remove(str(MODELS))

    # Parameters that presets of other names hold are compared field by field.
    params_now = recorded_params(now)
    params_then = recorded_params(committed)
    parameters = differences(preset_names_left_out(params_then), preset_names_left_out(params_now))

    return Comparison(
        parameters=parameters,
        inputs=inputs,
        outputs=outputs,
        gpus=gpus,
        num_outputs=len(outputs_now | outputs_then),
        metrics=metric_differences(),
        former_stages=stages_of_former_runs(now),
        changed_code=changed_code(now),
        numerics=params_now.get("train.numerics"),
    )


def gpus_of(segments: list[dict]) -> list[str]:
    """Return the names of the GPUs that the parts of a run were computed on, each once."""
    return list(dict.fromkeys(segment["gpu"] for segment in segments if "gpu" in segment))


def without_gpus(segments: list[dict]) -> list[dict]:
    """Return the segments that the same run has on a CPU: without a GPU's name, neighbours that are alike as one."""
    joined: list[dict] = []
    for segment in segments:
        on_cpu = {name: value for name, value in segment.items() if name != "gpu"}
        is_alike = bool(joined) and on_cpu | {"from_step": joined[-1]["from_step"]} == joined[-1]
        if not is_alike:
            joined.append(on_cpu)
    return joined


def hash_without_gpus() -> str:
    """Return DVC's hash that data/models has if the same run is computed on a CPU."""
    record = read_json(MODEL)
    on_cpu = record | {"segments": without_gpus(record["segments"])}
    content = json.dumps(on_cpu, indent=2, ensure_ascii=False, allow_nan=False) + "\n"  # as `write_json` writes it
    return md5_of(MODELS, {MODEL.name: content.encode()})


def metric_differences() -> list[Difference]:
    """Return the metrics that differ from those of the last commit, named `bits_per_byte` and so on."""
    found = []
    for path in (EVAL_METRICS, TRAIN_METRICS, DATA_METRICS):
        text = git("show", f"HEAD:./{path}")
        committed = flatten(json.loads(text)) if text else {}
        now = flatten(read_json(path)) if path.exists() else {}
        found += differences(committed, now)
    return found

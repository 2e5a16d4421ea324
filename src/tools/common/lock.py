"""dvc.lock: what it records of a run, whether it is of one run and of the present code, how it differs from HEAD's.

Nothing here imports DVC, which takes a second.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ruamel.yaml.resolver import implicit_resolvers

from lm.core.errors import EnvironmentFailure, IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from lm.core.params import read_yaml
from lm.core.paths import RUNS, repository_root
from tools.common.parameters import MISSING, Difference, differences, flatten, preset_names_left_out
from tools.common.paths import (
    DATA_METRICS,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    LOCK,
    MODEL,
    MODELS,
    PARAMS,
    PIPELINE,
    PRESETS,
    SOURCES,
    TRAIN_METRICS,
)

CODE = ("src/", "requirements")  # beginnings of the paths of code and of the pinned packages
MODEL_CODE = ("src/lm/model", "src/lm/tokenizer")  # through which text and weights go when a model is used
EVALUATION = "eval"  # the stage that ends a run
# Inputs that cannot explain a difference: those of stages before and after the model, and what is made from the rest.
STAGES_LEFT_OUT = ("fetch", "audit", "plot")
INPUTS_LEFT_OUT = ("data/models", "data/audit")

RESULTS = {"train": str(MODELS), "eval": str(EVALUATION_DETAILS.parent)}  # with which a stage writes its metrics
CONFLICT = "<<<<<<< "
KEEP_OUR_SIDE = "run `git checkout --ours dvc.lock metrics plots && dvc repro`, then commit the merge"
PAGE = "docs/reproducibility.md"


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
    def former_stages(self) -> list[str]:
        """Return the stages that read other files than earlier stages have written since, and those after them."""
        outputs = self.hashes("outs")
        former: list[str] = []
        outdated: set[str] = set()  # outputs of the stages in `former`
        for name, stage in self.stages.items():
            inputs = {dep["path"]: dep["md5"] for dep in stage.get("deps", ())}
            reads_former = any(outputs.get(path, md5) != md5 for path, md5 in inputs.items())
            if reads_former or outdated & inputs.keys():
                former.append(name)
                outdated |= {out["path"] for out in stage.get("outs", ())}
        return former

    @property
    def is_finished(self) -> bool:
        """Return whether the evaluation is of the model and the text that the other stages made."""
        return EVALUATION in self.stages and EVALUATION not in self.former_stages


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
    """Read what DVC writes by its own rules, those of YAML 1.2: in 5 ms a dvc.lock, for which ruamel.yaml takes 60."""

    yaml_implicit_resolvers: ClassVar[dict] = {}  # those of YAML 1.1 take 1e-05 for a text, and "on" for true


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
    """Return the names of the stages of a dvc.yaml, which hundreds of runs have in common."""
    return list(parse_stages(pipeline))


def paths_of(stage: dict, kind: str) -> list[Path]:
    """Return the paths of a list of a stage of dvc.yaml, such as its metrics."""
    entries = stage.get(kind, [])
    return [Path(path) for entry in entries for path in (entry if isinstance(entry, dict) else [entry])]


def read_timing(record: dict) -> dict:
    """Return timing.json of the run of a model.json: {} if it was computed on another machine or is deleted.

    Times belong to the machine that computed the run, so no output has them.
    """
    path = repository_root() / RUNS / record.get("fingerprint", "unknown") / "timing.json"
    return read_json(path) if path.exists() else {}


# The files that are here.


def changed_code(recorded: Mapping[str, str], below: tuple[str, ...] = CODE) -> list[str]:
    """Return the files of code, or the folders, that are not those with which stages ran; comments count, as for DVC.

    recorded: path → MD5 of what the stages read. below: beginnings of the paths that count.
    """
    changed = [path for path, md5 in recorded.items() if path.startswith(below) and md5_of(Path(path)) != md5]
    return files_that_git_names(changed)


def warn_of_changed_code(models: Path) -> None:
    """Print a warning if the weights in `models` would run through other code than that with which they were trained.

    Only dvc.lock knows the code, so other folders than that of the stage train are not checked.
    """
    if not (models.is_relative_to(MODELS) and LOCK.exists()):
        return
    training = {name: stage for name, stage in read_lock().stages.items() if name == "train"}
    changed = changed_code(Lock(training).hashes("deps"), below=MODEL_CODE)
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


def md5_of(path: Path) -> str:
    """Return DVC's hash of a file or a folder, "" if it does not exist."""
    if path.is_dir():
        return hash_of_folder(md5_by_name(path))
    return md5_of_content(path.read_bytes()) if path.exists() else ""


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
            files[relative.as_posix()] = md5_of_content(file.read_bytes())
    return files


def hash_of_folder(files: dict[str, str]) -> str:
    """Return DVC's hash of a folder whose files have these names and MD5s: the MD5 of their list."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return md5_of_content(json.dumps(entries).encode()) + ".dir"


def md5_of_content(content: bytes) -> str:
    """Return the MD5 of some bytes in hex."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# The run in the workspace and the committed one.


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the run in the workspace differs from the committed one; equal bits differ in no output."""

    parameters: list[Difference]
    inputs: list[str]  # paths of code, packages and text of the user's own
    outputs: list[str]  # paths
    gpus: list[str]  # that model.json names, if nothing else differs in data/models
    num_outputs: int
    metrics: list[Difference]
    contradictions: list[str]  # paths of outputs of the last commit that were edited after its run
    former_stages: list[str]  # whose outputs are of a former run, because their inputs were made again since
    changed_parameters: list[Difference]  # of the files here, since the run
    are_changes_committed: bool  # whether the last commit has these parameters, and the dvc.lock of the run
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
        if self.contradictions:
            return f"The last commit contradicts itself: {', '.join(self.contradictions)} was edited after the run."
        if self.is_identical or self.parameters or self.inputs:
            return ""
        if self.numerics == "fast":
            return f"Fast numerics promise equal bits on one machine only ({PAGE})."
        return f"This processor or its versions of the packages give other bits ({PAGE})."


def compare_with_committed() -> Comparison | None:
    """Compare the two runs; return None if no dvc.lock is committed.

    Raise IntegrityError if dvc.lock or an output that it records is missing here, or has another content.
    """
    now = read_lock()
    outputs_now = now.hashes("outs")
    if missing := [path for path in outputs_now if not os.path.exists(path)]:
        problem = (
            f"{', '.join(missing)}: missing, as before the end of a run, or in an experiment that was not pushed whole"
        )
        remedy = (
            "`dvc pull` fetches what a remote has; else run `dvc repro` first, or `make back` for the committed run"
        )
        raise IntegrityError(f"{problem}; {remedy}")
    reject_edited_outputs(outputs_now)
    committed = read_committed_lock()
    if committed is None:
        return None

    # Inputs are what no stage has made.
    inputs = [each.name for each in differences(committed.hashes("deps"), now.hashes("deps"))]
    external = [path for path in inputs if path not in outputs_now]

    # A run on a GPU has the same bits, and its model.json names the GPU.
    outputs_then = committed.hashes("outs")
    outputs = [each.name for each in differences(outputs_then, outputs_now)]
    unlike_lock = [path for path in files_unlike_head(outputs_now) if path not in outputs]
    contradictions = unlike_lock + edited_beside_results(committed, now, outputs)
    outputs += unlike_lock
    gpus = gpus_of(read_json(MODEL)["segments"]) if str(MODELS) in outputs else []
    if gpus and hash_without_gpus() == outputs_then.get(str(MODELS)):
        outputs.remove(str(MODELS))

    return Comparison(
        # Parameters that presets of other names hold are compared field by field.
        parameters=differences(preset_names_left_out(committed.params), preset_names_left_out(now.params)),
        inputs=external,
        outputs=outputs,
        gpus=gpus,
        num_outputs=len(outputs_now | outputs_then),
        metrics=metric_differences(),
        contradictions=contradictions,
        former_stages=now.former_stages,
        changed_parameters=changed_parameters(now),
        are_changes_committed=not files_unlike_head([LOCK, PARAMS, PRESETS, SOURCES]),
        changed_code=changed_code(now.hashes("deps")),
        numerics=now.params.get("train.numerics"),
    )


def reject_edited_outputs(outputs: dict[str, str]) -> None:
    """Raise IntegrityError unless the files here are the outputs that dvc.lock records, path → MD5."""
    edited = [path for path, md5 in outputs.items() if md5_of(Path(path)) != md5]
    if edited:
        problem = f"{', '.join(edited)}: not what dvc.lock records, as after an edit"
        raise IntegrityError(f"{problem}; `python src verify` has a command to repair each")


def files_unlike_head(paths: Iterable[str | Path]) -> list[str]:
    """Return the files among `paths` that the last commit has with another content."""
    changed = git("diff", "--name-only", "--relative", "HEAD", "--", *map(str, paths)) or ""
    return changed.splitlines()


def edited_beside_results(committed: Lock, now: Lock, different: list[str]) -> list[str]:
    """Return the outputs among `different` of a stage whose inputs, and whose weights or losses, are the same.

    A stage writes its metrics and curves together with these, so an edit alone can make them differ.
    """
    edited = []
    for name, result in RESULTS.items():
        then = committed.stages.get(name, {})
        has_same_inputs = then.get("deps") == now.stages.get(name, {}).get("deps")
        if has_same_inputs and result not in different:
            edited += [out["path"] for out in then.get("outs", ()) if out["path"] in different]
    return edited


def changed_parameters(recorded: Lock) -> list[Difference]:
    """Return the parameters that have other values in the files here than the stages ran with."""
    found = {}
    for stage in recorded.stages.values():
        for file, section in stage.get("params", {}).items():
            before = flatten(section)
            here = flatten(read_yaml(Path(file)))
            now = {name: here.get(name, MISSING) for name in before}
            found |= {each.name: each for each in differences(before, now)}
    return list(found.values())


def gpus_of(segments: list[dict]) -> list[str]:
    """Return the names of the GPUs that the parts of a run were computed on, each once."""
    return list(dict.fromkeys(segment["gpu"] for segment in segments if "gpu" in segment))


def hash_without_gpus() -> str:
    """Return DVC's hash that data/models has if the same run is computed on a CPU."""
    # On a CPU, segments record no GPU, and a run starts no new segment if nothing else changes.
    record = read_json(MODEL)
    segments: list[dict] = []
    for segment in record["segments"]:
        on_cpu = {name: value for name, value in segment.items() if name != "gpu"}
        is_alike = bool(segments) and on_cpu | {"from_step": segments[-1]["from_step"]} == segments[-1]
        if not is_alike:
            segments.append(on_cpu)

    on_cpu = record | {"segments": segments}
    content = json.dumps(on_cpu, indent=2, ensure_ascii=False, allow_nan=False) + "\n"  # as `write_json` writes it
    return hash_of_folder(md5_by_name(MODELS) | {MODEL.name: md5_of_content(content.encode())})


def metric_differences() -> list[Difference]:
    """Return the metrics that differ from those of the last commit, named `bits_per_byte` and so on."""
    found = []
    for path in (EVAL_METRICS, TRAIN_METRICS, DATA_METRICS):
        text = git("show", f"HEAD:./{path}")
        committed = flatten(json.loads(text)) if text else {}
        now = flatten(read_json(path)) if path.exists() else {}
        found += differences(committed, now)
    return found

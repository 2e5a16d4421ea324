"""How the run in the workspace differs from the committed one, and whether one of the two was edited."""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from lm.core.params import read_yaml
from tools.common.lock import (
    Lock,
    changed_code,
    hash_of_folder,
    md5_by_name,
    md5_of,
    md5_of_content,
    read_committed_lock,
    read_lock,
)
from tools.common.parameters import MISSING, Difference, differences, flatten, preset_names_left_out
from tools.common.paths import (
    DATA_METRICS,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    LOCK,
    MODEL,
    MODELS,
    PARAMS,
    PRESETS,
    SOURCES,
    TRAIN_METRICS,
)

PAGE = "docs/reproducibility.md"
RESULTS = {"train": str(MODELS), "eval": str(EVALUATION_DETAILS.parent)}  # with which a stage writes its metrics


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
    """Return the outputs among `different` of a stage whose inputs, parameters, and weights or losses are the same.

    A stage writes its metrics and curves together with these, so an edit alone can make them differ.
    """
    edited = []
    for name, result in RESULTS.items():
        then = committed.stages.get(name, {})
        here = now.stages.get(name, {})
        has_same_inputs = all(then.get(kind) == here.get(kind) for kind in ("deps", "params"))
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

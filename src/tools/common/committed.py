"""Compare the run in the workspace with the committed one: dvc.lock and the metrics, here and in the last commit."""

import dataclasses
import json
import os
from typing import Any

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from tools.common.lock import changed_code, hashes, md5_of, parse_lock, read_lock, stages_of, stages_of_former_runs
from tools.common.parameters import flatten, preset_names_left_out, recorded_params
from tools.common.paths import DATA_METRICS, EVAL_METRICS, LOCK, MODEL, MODELS, TRAIN_METRICS

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

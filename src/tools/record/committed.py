"""Compare the run in the workspace with the last commit, and find what changed since it ran."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from lm.core.errors import EnvironmentFailure
from lm.core.files import read_json
from lm.core.git import git
from lm.core.params import read_yaml
from tools.record.lock import (
    Lock,
    changed_files,
    hash_of_folder,
    md5_by_name,
    md5_of_content,
    read_committed_lock,
    read_lock,
    stage_names,
)
from tools.record.parameters import MISSING, Difference, differences, flatten, preset_names_left_out
from tools.record.paths import (
    DATA_METRICS,
    EVAL_METRICS,
    LOCK,
    MODEL,
    MODELS,
    PIPELINE,
    TRAIN_METRICS,
)

PAGE = "docs/reproducibility.md"


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences of the run in the workspace from the committed one; with equal bits, no output differs."""

    not_compared: str = ""  # why the two were not compared; then all lists are empty
    parameters: Sequence[Difference] = ()
    inputs: Sequence[str] = ()  # paths of code, packages and the user's own text
    outputs: Sequence[str] = ()  # paths
    num_outputs: int = 0
    gpus: Sequence[str] = ()  # that model.json names, if nothing else differs in data/models
    metrics: Sequence[Difference] = ()
    numerics: object = None  # train.numerics of the run in the workspace

    @property
    def is_identical(self) -> bool:
        """Return whether every output has the bytes of the committed one."""
        return not self.not_compared and not self.outputs

    @property
    def headline(self) -> str:
        """Return the sentence that says whether the two are bitwise identical."""
        if self.not_compared:
            return f"Not compared: {self.not_compared}."
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
            return f"Differs from the committed run: {changed} changed; {differ}."
        return f"Not bitwise identical to the committed run: {differ}, although code and parameters are the same."

    @property
    def explanation(self) -> str:
        """Return why bits differ although nothing else does, and the page that explains it; "" in other cases."""
        if self.not_compared or self.is_identical or self.parameters or self.inputs:
            return ""
        if self.numerics == "fast":
            return f"Fast numerics promise equal bits on one machine only ({PAGE})."
        return f"This processor or these versions of packages give other bits ({PAGE})."


def changes_from_commit() -> Changes:
    """Compare the run that dvc.lock records with the committed one. Raise IntegrityError if a dvc.lock is broken."""
    now = read_lock()
    try:
        committed = read_committed_lock()
    except EnvironmentFailure as error:  # git cannot read the repository
        return Changes(not_compared=str(error))
    if committed is None:
        return Changes(not_compared="this folder has no commit with a dvc.lock")

    # Inputs are files that no stage makes.
    outputs_now = now.hashes("outs")
    changed = [each.name for each in differences(committed.hashes("deps"), now.hashes("deps"))]
    inputs = [path for path in changed if path not in outputs_now]

    outputs_then = committed.hashes("outs")
    outputs = [each.name for each in differences(outputs_then, outputs_now)]

    # Git itself stores metrics and plots. Where both locks record the same hash, the files must be equal.
    unlike_git = (git("diff", "--name-only", "--relative", "HEAD") or "").splitlines()
    edited = [path for path in unlike_git if path in outputs_now and path not in outputs]
    if edited:
        problem = f"{', '.join(edited)} of the last commit is not what its own {LOCK} records"
        return Changes(not_compared=f"{problem}; `git log -p {edited[0]}` shows who edited it")

    # A run on a GPU has the same bits, and its model.json names the GPU.
    gpus: list[str] = []
    if str(MODELS) in outputs:
        gpus = gpus_of(read_json(MODEL)["segments"])
        if gpus and hash_without_gpus() == outputs_then.get(str(MODELS)):
            outputs.remove(str(MODELS))

    return Changes(
        # Parameters of presets with other names are compared field by field.
        parameters=differences(preset_names_left_out(committed.params), preset_names_left_out(now.params)),
        inputs=inputs,
        outputs=outputs,
        gpus=gpus,
        num_outputs=len(outputs_now | outputs_then),
        metrics=metric_differences(),
        numerics=now.params.get("train.numerics"),
    )


def gpus_of(segments: list[dict]) -> list[str]:
    """Return the names of the GPUs that the parts of a run were computed on, each once."""
    return list(dict.fromkeys(segment["gpu"] for segment in segments if "gpu" in segment))


def hash_without_gpus() -> str:
    """Return DVC's hash that data/models has if the same run is computed on a CPU, whose segments name no GPU."""
    record = read_json(MODEL)
    segments = [{name: value for name, value in segment.items() if name != "gpu"} for segment in record["segments"]]
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


# What changed since the run.


@dataclasses.dataclass(frozen=True)
class Stale:
    """Stages, parameters and files here that differ from those of the run in dvc.lock."""

    stages: list[str]  # that never ran, or ran before their inputs were made again
    parameters: list[Difference]
    files: list[str]  # code, packages and the user's own text


def stale(lock: Lock) -> Stale:
    """Compare the stages, parameters and files here with those that the stages ran with."""
    made = lock.hashes("outs")
    stages = stage_names(PIPELINE.read_text(encoding="utf-8"))
    inputs = {path: md5 for path, md5 in lock.hashes("deps").items() if path not in made}
    return Stale(
        stages=[name for name in stages if name not in lock.stages or name in lock.stale_stages],
        parameters=changed_parameters(lock),
        files=changed_files(inputs),
    )


def changed_parameters(recorded: Lock) -> list[Difference]:
    """Return the parameters that have other values in the files here than the stages ran with."""
    found = {}
    for stage in recorded.stages.values():
        for file, sections in stage.get("params", {}).items():
            content = read_yaml(Path(file))
            here = {name: value_of(content, name) for name in sections}
            found |= {each.name: each for each in differences(flatten(sections), flatten(here))}
    return list(found.values())


def value_of(content: dict, name: str):
    """Return the value of a dotted name, MISSING if there is none."""
    value: object = content
    for key in name.split("."):
        value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
    return value

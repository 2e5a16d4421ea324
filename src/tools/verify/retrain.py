"""Train the run in the workspace again, or a part of it, and compare validations and weights.

The stage train itself does it, in a scratch folder, so that nothing of the workspace changes.
"""

import itertools
import random
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import check_sha256, output_lock, read_json, scratch_folder
from lm.core.messages import say
from lm.core.paths import RUNS
from lm.model.weights import load_tensors, recorded_numerics, save_weights
from lm.train.checkpoints import Checkpoint, link_checkpoint, list_checkpoints, load_checkpoint
from lm.train.config import read_params
from lm.train.run import Run, RunFiles
from lm.train.state import digest_of, named_tensors
from tools.record.lock import read_timing
from tools.record.parameters import differences
from tools.record.paths import CURVE, METRICS, MODEL, MODELS, PLOTS, TOKENIZER, TRAIN, TRAIN_METRICS, VALIDATION
from tools.record.run import DIGEST
from tools.verify.records import BEST, LAST, read_curve, wrong

FILES = RunFiles(TRAIN, VALIDATION, TOKENIZER)
OF_FINISHED_RUN = ("training", "best", "last")  # entries of model.json that a checkpoint does not have
WHOLE_RUN_S = 600  # a run that takes longer is trained in part
NOT_COMPARABLE = "Not comparable: fast numerics promise bits on one machine with one number of threads."


class Steps(NamedTuple):
    """The steps to train again: from `start`, 0 or that of a stored checkpoint, to `end`, a validation."""

    start: int
    end: int


def retrain(end: int | None, seed: int, weights: Path | None) -> list[str]:
    """Train the run again, and return sentences that say what this has shown, and what it has not.

    Raise IntegrityError if bits differ, and ParamsError if `end` is not a validation.

    Args:
        end: the validation to train to, from the nearest stored checkpoint before it; its own checkpoint is stored in
            .runs. None: the whole run if it takes at most WHOLE_RUN_S, else a part that `seed` chooses.
        weights: a new folder to write with the weights at the end of the steps, or None.
    """
    model, curve = read_run()
    run = RUNS / model["fingerprint"]
    validations = sorted(curve)
    with output_lock(run), scratch_folder(run / "retrained") as folder:
        # Choose the steps.
        if end is None and seconds_of_run(model, Steps(0, validations[1]), folder) <= WHOLE_RUN_S:
            steps = Steps(0, model["last"]["step"])
        else:
            stored = [checkpoint.step for checkpoint in list_checkpoints(run)]
            steps = choose_steps(validations, stored, end, seed)

        # Train.
        origin = Checkpoint(run, steps.start) if steps.start else None
        if origin and origin.step in curve:
            check_checkpoint(origin, curve)
        made = Checkpoint(folder / RUNS / run.name, steps.end)
        if not made.record.exists():
            train(origin, steps, run.name, folder)
        state = load_checkpoint(made)

        # Compare. Fast numerics depend on the machine, which both record.
        if recorded_numerics(model) == "fast" and not is_same_machine(state, model):
            return [NOT_COMPARABLE]
        compare_curves(folder, steps)
        shown = compare_model(state, model, steps)
        if "last" in shown:
            compare_metrics(folder)

        # Store the checkpoint and the weights that are asked for.
        sentences = [conclusion(steps, shown, model)]
        if end is not None:
            sentences.append(store(made, run, curve))
        if weights:
            write_weights(weights, state, model)
            sentences.append(f"{weights}: has the weights of step {steps.end}")
    return sentences


def write_weights(folder: Path, state: dict, model: dict) -> None:
    """Write the weights of a state and their model.json: the entries of the run's model.json that are true of them."""
    step, tokens, loss = state["history"]["validation"][-1]
    here = {"step": step, "tokens_seen": tokens, "val_loss": loss}
    record = {name: value for name, value in model.items() if name not in OF_FINISHED_RUN}
    save_weights(folder, dict(state["model"]), {**record, "segments": state["segments"], "best": here})


# The run in the workspace.


def read_run() -> tuple[dict, dict[int, dict[str, str]]]:
    """Return model.json and the curve of validations of the workspace's run, each of them with a digest.

    Raise IntegrityError if digests are missing, or if the workspace describes another run.
    """
    model = read_json(MODEL)
    curve = read_curve(CURVE)
    if not (curve and all(row.get(DIGEST) for row in curve.values())):
        problem = "missing, or without digests of checkpoints, which fast numerics do not record on a GPU"
        raise IntegrityError(f"{CURVE}: {problem}; run `dvc repro`")
    fingerprint = Run.read(FILES, read_params(), is_verified=True).fingerprint
    if model["fingerprint"] != fingerprint:
        problem = f"was made by run {model['fingerprint']}; code, parameters and inputs here are of {fingerprint}"
        raise IntegrityError(f"{MODEL}: {problem}; check out the commit of the run, or run `dvc repro`")
    return model, curve


# Which steps.


def choose_steps(validations: list[int], stored: Collection[int], end: int | None, seed: int) -> Steps:
    """Return the steps to `end`, a validation, from the nearest stored checkpoint before it or from 0.

    Without an `end`, `seed` chooses a part from one of the validations (at 0, or with a stored checkpoint) to the next.
    """
    if end is None:
        parts = [Steps(*part) for part in itertools.pairwise(validations) if part[0] in {0, *stored}]
        return random.Random(seed).choice(parts)
    if end == 0 or end not in validations:
        possible = ", ".join(str(step) for step in validations if step)
        raise ParamsError(f"--retrain is {end}; it must be the step of a validation: {possible}")
    return Steps(max(step for step in {0, *stored} if step < end), end)


def seconds_of_run(model: dict, first: Steps, folder: Path) -> float:
    """Return the seconds that the whole run takes here.

    If it was not trained here, extrapolate those of the `first` steps, which are trained in `folder`.
    """
    timing = read_timing(model)
    steps = model["last"]["step"]
    if not timing:
        train(None, first, model["fingerprint"], folder)
        timing = read_json(folder / RUNS / model["fingerprint"] / "timing.json")
        steps = first.end
    seconds = sum(timing[name][-1] for name in ("seconds", "validation_seconds", "saving_seconds"))
    return seconds * model["last"]["step"] / steps


# Training.


def train(origin: Checkpoint | None, steps: Steps, fingerprint: str, folder: Path) -> None:
    """Train from a checkpoint, or from the initial weights, to the checkpoint of step `steps.end`, in `folder`.

    A run in that folder is continued. Raise UserError, with the exit status of the stage, if the stage fails; it has
    printed why.
    """
    where = f"the checkpoint {origin.path}" if origin else "the initial weights"
    say(f"retrain: steps {steps.start} to {steps.end} of run {fingerprint}, from {where}", file=sys.stderr)
    run = folder / RUNS / fingerprint
    run.mkdir(parents=True, exist_ok=True)
    if origin:
        for source in (origin.path, origin.record):
            if not (run / source.name).exists():
                (run / source.name).symlink_to(source.resolve())
    inputs = {"train": TRAIN, "validation": VALIDATION, "tokenizer": TOKENIZER}
    outputs = {"models": folder / MODELS, "metrics": folder / METRICS, "plots": folder / PLOTS, "runs": folder / RUNS}
    flags = {**inputs, **outputs, "until": steps.end}
    command = [sys.executable, "src/train.py", *(f"--{name}={value}" for name, value in flags.items())]
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status:
        error = UserError("src/train.py failed; its message is above")
        error.exit_code = max(1, status)
        raise error


# Comparing.


def is_same_machine(state: dict, model: dict) -> bool:
    """Return whether the last steps of a state were computed on the machine that the run in the workspace records."""
    here, *recorded = [segment | {"from_step": None} for segment in (state["segments"][-1], *model["segments"])]
    return here in recorded


def compare_curves(folder: Path, steps: Steps) -> None:
    """Raise IntegrityError unless the curves in `folder` are those of the workspace up to the end of the steps."""
    for path in (CURVE, PLOTS / "training.csv"):
        made = read_curve(folder / path)
        recorded = read_curve(path)
        for step in sorted({*made, *recorded}):
            if step <= steps.end and made.get(step) != recorded.get(step):
                found = f"{describe(recorded.get(step))}; retrained from step {steps.start}: {describe(made.get(step))}"
                raise wrong(path, f"step {step} has {found}", "train")


def describe(row: dict[str, str] | None) -> str:
    """Describe a row of a curve."""
    return ", ".join(f"{name} {value}" for name, value in row.items() if name != "step") if row else "no row"


def compare_metrics(folder: Path) -> None:
    """Raise IntegrityError unless the metrics of the whole run are those of the workspace."""
    made = read_json(folder / TRAIN_METRICS)
    for name, value, found in differences(made, read_json(TRAIN_METRICS)):
        raise wrong(TRAIN_METRICS, f"{name} is {found}, this code makes {value}", "train")


def compare_model(state: dict, model: dict, steps: Steps) -> list[str]:
    """Return which of "best" and "last" the steps made, after comparing each tensor with that of the file.

    Raise IntegrityError if a tensor differs, or if the weights have another step or loss in model.json.
    """
    shown = []
    best_step = model["best"]["step"]
    # The best weights of a state that was trained from a checkpoint may be older than that.
    if steps.start < best_step <= steps.end or steps.start == best_step == 0:
        compare_weights("best", model, (state["best_step"], state["best_loss"]), state["best_weights"], BEST)
        shown.append("best")
    if steps.end == model["last"]["step"]:
        last_loss = state["history"]["validation"][-1][-1]
        compare_weights("last", model, (state["step"], last_loss), state["model"], LAST)
        shown.append("last")
    return shown


def compare_weights(
    name: str, model: dict, step_and_loss: tuple[int, float], made: dict[str, Tensor], file: Path
) -> None:
    """Raise IntegrityError unless a file has the tensors `made`: names in this order, types, shapes, bytes.

    step_and_loss: those that model.json must give for the weights `name`, "best" or "last".
    """
    recorded_step_and_loss = (model[name]["step"], model[name]["val_loss"])
    if recorded_step_and_loss != step_and_loss:
        raise wrong(MODEL, f"{name} is {recorded_step_and_loss}, this code makes {step_and_loss}", "train")
    recorded = load_tensors(file, None)
    if digest_of(recorded.items()) != digest_of(made.items()):
        raise wrong(file, "has other tensors than this code makes", "train")


def conclusion(steps: Steps, shown: list[str], model: dict) -> str:
    """Return what the retrained steps have shown, and what they have not."""
    if not shown:
        return f"Steps {steps.start} to {steps.end} have the recorded bits. Not shown: the weights."
    weights = f"weights in {MODELS}"
    not_shown = [f"the {name} weights" for name in ("best", "last") if name not in shown]
    if not_shown:
        weights = f"{shown[0]} {weights}"
    if steps.start:
        sentence = f"From the stored checkpoint of step {steps.start} this code makes the {weights}."
        not_shown.append("that checkpoint")
    else:
        of_initial = " of the recorded initial weights" if model.get("init_sha256") else ""
        sentence = f"The {weights} are those that this code makes{of_initial}."
    return f"{sentence} Not shown: {', '.join(not_shown)}." if not_shown else sentence


# Checkpoints.


def check_checkpoint(checkpoint: Checkpoint, curve: dict[int, dict[str, str]]) -> None:
    """Raise IntegrityError if a checkpoint is damaged, or has another digest than the curve of its run."""
    remedy = f"delete it and {checkpoint.record.name}, and run the command again"
    sha256 = read_json(checkpoint.record).get("sha256", "missing")
    check_sha256(checkpoint.path, sha256, advice=remedy)
    digest = digest_of(named_tensors(load_checkpoint(checkpoint)))
    recorded = curve[checkpoint.step][DIGEST]
    if digest != recorded:
        problem = f"{CURVE} records {recorded} at step {checkpoint.step}"
        raise IntegrityError(f"{checkpoint.path}: its digest is {digest}, {problem}; {remedy}")


def store(checkpoint: Checkpoint, run: Path, curve: dict[int, dict[str, str]]) -> str:
    """Add a checkpoint to those of the run, unless it has one of this step, and check its digest; return a sentence."""
    own = Checkpoint(run, checkpoint.step)
    if not own.record.exists():
        link_checkpoint(checkpoint, run)
    check_checkpoint(own, curve)
    return f"stored: {own.path}"

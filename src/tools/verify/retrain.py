"""Train a part of the workspace's run again, from one of its checkpoints or from the initial weights, and compare bits.

The stage train itself does it, in a folder of its own, so that nothing of the workspace changes.
"""

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import check_sha256, output_lock, read_json, scratch_folder
from lm.core.params import read_yaml
from lm.core.paths import RUNS
from lm.tokens.tokenfile import sidecar_path
from lm.train.checkpoints import Checkpoint, link_checkpoint, list_checkpoints, load_checkpoint
from lm.train.config import read_params
from lm.train.run import Run, RunFiles
from lm.train.state import digest_of, named_tensors
from tools.common.models import write_weights
from tools.common.paths import CURVE, METRICS, MODEL, MODELS, PARAMS, PLOTS, TOKENIZER, TRAIN, VALIDATION
from tools.common.run import DIGEST, read_curve

FILES = RunFiles(TRAIN, VALIDATION, TOKENIZER)


class Steps(NamedTuple):
    """The steps to train again: from `start`, a stored checkpoint or 0, to `end`, a validation."""

    start: int
    end: int


def retrain(end: int | None, start: int | None, seed: int, weights: Path | None) -> None:
    """Train the workspace's run again up to the validation of step `end`; compare each validation on the way.

    The checkpoint of an `end` that is given is stored in .runs. Raise IntegrityError where bits differ, and ParamsError
    if the run cannot be trained so.

    Args:
        end: if None, the first validation after `start`.
        start: step of a stored checkpoint, or 0. If None, the nearest one before `end`; without an `end`, one that
            `seed` chooses.
        seed: of that choice.
        weights: a new folder to write with the weights of `end`, or None.
    """
    model, recorded = read_run()
    run = RUNS / model["fingerprint"]
    stored = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(run)}
    if end is None:
        steps = choose_interval(sorted(recorded), stored, start, seed)
    else:
        steps = choose_steps(sorted(recorded), stored, start, end)

    # Check the checkpoint from which the training begins.
    origin = stored.get(steps.start)
    where = f"the checkpoint {origin.path}" if origin else "the initial weights"
    by_seed = f" (--seed {seed})" if start is None and end is None else ""
    print(f"retrain: steps {steps.start} to {steps.end} of run {run.name}, from {where}{by_seed}", flush=True)
    if origin and origin.step in recorded:
        check_checkpoint(origin, recorded, "or begin elsewhere with --from")

    # Train again, compare, and keep what is wanted.
    with output_lock(run), scratch_folder(run / "retrained") as folder:
        checkpoint = Checkpoint(run, steps.end)
        if steps.start < steps.end:
            checkpoint = Checkpoint(train_and_compare(origin, steps, run.name, recorded, folder), steps.end)
        if end is not None:
            store(checkpoint, run, recorded)
        if weights:
            write_weights(weights, load_checkpoint(checkpoint), model)
            print(f"{weights}: has the weights of step {steps.end}")


def choose_steps(validations: list[int], stored: Collection[int], start: int | None, end: int) -> Steps:
    """Return the steps up to `end` from `start`, or from the nearest stored checkpoint before `end`.

    validations, stored: the steps of the validations and of the stored checkpoints.
    """
    if end == 0 or end not in validations:
        possible = ", ".join(str(step) for step in validations if step)
        raise ParamsError(f"--retrain is {end}; it must be the step of a validation: {possible}")
    starts = sorted({0, *stored})
    if start is None:
        start = max(step for step in starts if step < end)
    if start not in starts or start > end:
        possible = ", ".join(str(step) for step in starts if step <= end)
        raise ParamsError(f"--from is {start}; it must be 0 or the step of a stored checkpoint up to {end}: {possible}")
    return Steps(start, end)


def choose_interval(validations: list[int], stored: Collection[int], start: int | None, seed: int) -> Steps:
    """Return the steps from `start` to the next validation; without a start, `seed` chooses it.

    validations: their steps, ascending. stored: the steps of the stored checkpoints.
    """
    starts = [step for step in validations[:-1] if step == 0 or step in stored]
    if start is None and starts:
        start = random.Random(seed).choice(starts)
    if start not in starts:
        possible = ", ".join(map(str, starts)) or "none"
        requirement = "the step of a checkpoint before the last validation"
        raise ParamsError(f"--from is {start}; it must be {requirement}: {possible}")
    return Steps(start, validations[validations.index(start) + 1])


def train_and_compare(origin: Checkpoint | None, steps: Steps, run_name: str, recorded: dict, folder: Path) -> Path:
    """Train from a checkpoint, or from the initial weights, in `folder`; return the folder of the run.

    Raise IntegrityError if a validation differs from that in the curve `recorded`.
    """
    start_s = time.monotonic()
    run = train_again(origin, steps.end, run_name, folder)
    print(f"trained in {time.monotonic() - start_s:.0f} s", flush=True)

    again = read_curve(folder / CURVE)
    for step, row in sorted(again.items()):
        expected = recorded.get(step)
        if row != expected:
            found = f"{describe(expected)}; retrained from step {steps.start}: {describe(row)}"
            is_fast = read_yaml(PARAMS)["train"].get("numerics") == "fast"
            hint = f"; in fast numerics bits depend on machine and threads ({MODEL}: segments)" if is_fast else ""
            raise IntegrityError(f"{CURVE}: step {step} has {found}{hint}")

    print(f"same bits: step {steps.end} has {describe(again[steps.end])} as recorded")
    return run


def store(checkpoint: Checkpoint, run: Path, recorded: dict) -> None:
    """Make a checkpoint one of the run's, unless it has one of this step; check its digest."""
    own = Checkpoint(run, checkpoint.step)
    if not own.record.exists():
        check_checkpoint(checkpoint, recorded, "and run the same command again")
        link_checkpoint(checkpoint, run)
        print(f"stored: {own.path}")
        return
    check_checkpoint(own, recorded, f"and run `python src verify --retrain {own.step}`")
    print(f"already stored, with the recorded digest: {own.path}")


def read_run() -> tuple[dict, dict[int, dict[str, str]]]:
    """Return model.json and the curve of validations of the workspace's run, each of them with a digest.

    Raise IntegrityError if digests are missing, or if the workspace describes another run.
    """
    model = read_json(MODEL)
    recorded = read_curve(CURVE)
    has_digests = bool(recorded) and all(row.get(DIGEST) for row in recorded.values())
    if "fingerprint" not in model or not has_digests:
        problem = "missing, or without digests of checkpoints, which fast numerics do not record on a GPU"
        raise IntegrityError(f"{CURVE}: {problem}; run `dvc repro`")
    if fault := fault_of_model(model):
        raise IntegrityError(f"{MODEL}: {fault}; check out the commit of the run, or run `dvc repro`")
    return model, recorded


def fault_of_model(model: dict) -> str | None:
    """Return a clause if model.json is of another run than the one that the workspace describes, else None."""
    # The parameters that model.json records: they name what differs.
    params = read_params()
    vocab_size = read_json(sidecar_path(TRAIN))["tokenizer"]["vocab_size"]
    config = params.model.config(vocab_size)
    here = dataclasses.asdict(params.train) | {"config": dataclasses.asdict(config)}
    if different := [name for name, value in model.items() if name in here and here[name] != value]:
        return "; ".join(f"{name} is {model[name]}, params.yaml has {here[name]}" for name in different)

    # All else that decides the run.
    run = Run.read(FILES, params, is_verified=True)
    if model.get("fingerprint") == run.fingerprint:
        return None
    made_by = f"was made by run {model.get('fingerprint')}"
    return f"{made_by}, the workspace's code, parameters and inputs are of {run.fingerprint}"


def check_checkpoint(checkpoint: Checkpoint, recorded: dict[int, dict[str, str]], remedy: str) -> None:
    """Raise IntegrityError if a checkpoint is damaged, or has another digest than the curve of its run."""
    sha256 = read_json(checkpoint.record).get("sha256", "missing")
    check_sha256(checkpoint.path, sha256, advice=f"delete it and {checkpoint.record.name}, {remedy}")
    digest = digest_of(named_tensors(load_checkpoint(checkpoint)))
    if digest != recorded[checkpoint.step][DIGEST]:
        problem = f"{CURVE} records {recorded[checkpoint.step][DIGEST]} at step {checkpoint.step}"
        raise IntegrityError(f"{checkpoint.path}: its digest is {digest}, {problem}")


def train_again(start: Checkpoint | None, until: int, fingerprint: str, folder: Path) -> Path:
    """Train from a checkpoint, or from the initial weights, to step `until`; return the folder of the run.

    It lies in `folder`, as the curves do, and its newest checkpoint is that of step `until`. Raise UserError, with the
    exit status of the stage, if the stage fails: it has printed why.
    """
    run = folder / RUNS / fingerprint
    run.mkdir(parents=True)
    if start:
        for source in (start.path, start.record):
            (run / source.name).symlink_to(source.resolve())
    inputs = {"train": TRAIN, "validation": VALIDATION, "tokenizer": TOKENIZER}
    outputs = {"models": folder / MODELS, "metrics": folder / METRICS, "plots": folder / PLOTS}
    flags = {**inputs, **outputs, "until": until}
    command = [sys.executable, "src/train.py", *(f"--{name}={value}" for name, value in flags.items())]
    environment = {**os.environ, "DVC_ROOT": str(folder)}  # under which the stage keeps .runs
    status = subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode
    if status:
        error = UserError("src/train.py failed; its message is above")
        error.exit_code = max(1, status)
        raise error
    return run


def describe(row: dict[str, str] | None) -> str:
    """Describe a validation."""
    return f"digest {row[DIGEST]} and validation loss {row['val_loss']}" if row else "no validation"

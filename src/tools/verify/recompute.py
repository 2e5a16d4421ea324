"""Retrain one interval between two validations, and compare the digests of the checkpoints.

The stage train itself does it, in a folder of its own, and is stopped after the next validation.
"""

import csv
import dataclasses
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError, ParamsError, UserError
from lm.core.files import check_sha256, read_json
from lm.core.params import read_section, read_yaml
from lm.core.paths import KEPT_WEIGHTS, RUNS
from lm.model.config import ModelParams
from lm.model.weights import load_initial, step_name
from lm.tokens.tokenfile import sidecar_path
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint
from lm.train.config import TrainParams
from lm.train.fingerprint import run_fingerprint
from lm.train.state import digest_of, named_tensors
from tools.common.paths import METRICS, MODEL, PARAMS, PLOTS, PRESETS, TOKENIZER, TRAIN, VALIDATION

CURVE = PLOTS / "validation.csv"
POLL_S = 0.05


class Interval(NamedTuple):
    """The steps from one validation to the next, and the checkpoint of the first one; None: the initial weights."""

    start: int
    end: int
    checkpoint: Checkpoint | None


def recompute(start: int | None, seed: int) -> None:
    """Train an interval of the workspace's run again; raise IntegrityError where it differs from the recorded one.

    The weights of train.keep_weights_at that the interval passes are compared too.

    It begins at step `start`, or `seed` chooses it. Raises ParamsError if no checkpoint is kept of that step.
    """
    model, recorded = read_json(MODEL), read_curve(CURVE)
    fingerprint = model.get("fingerprint")
    if not (fingerprint and recorded and all(row.get("checkpoint_digest") for row in recorded.values())):
        problem = "missing, or without digests of checkpoints, which training on a GPU does not record"
        raise IntegrityError(f"{CURVE}: {problem}; run `dvc repro`")
    if fault := fault_of_model(model):
        raise IntegrityError(f"{MODEL}: {fault}; check out the commit of the run, or run `dvc repro`")
    stored = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(RUNS / fingerprint)}
    interval = choose(sorted(recorded), stored, start, seed)
    origin = f"the checkpoint {interval.checkpoint.path}" if interval.checkpoint else "the initial weights"
    chosen = f" (--seed {seed})" if start is None else ""
    steps = f"steps {interval.start} to {interval.end}"
    print(f"recompute: {steps} of run {fingerprint}, from {origin}{chosen}", flush=True)
    check_start(interval, recorded)
    with tempfile.TemporaryDirectory() as folder:
        earlier = [name for name in model.get(KEPT_WEIGHTS, {}) if name < step_name(interval.start)]
        again, kept = train_again(interval, fingerprint, Path(folder), earlier, interval.end == max(recorded))
    for name, sha256 in kept.items():
        if sha256 != model[KEPT_WEIGHTS].get(name):
            found = f"{model[KEPT_WEIGHTS].get(name)}; retrained from step {interval.start}: {sha256}"
            raise IntegrityError(f"{MODEL}: {name} has the sha256 {found}")
    for step in sorted(step for step in again if step <= interval.end):
        if again[step] != recorded.get(step):
            found = f"{describe(recorded.get(step))}; retrained from step {interval.start}: {describe(again[step])}"
            is_fast = read_yaml(PARAMS)["train"].get("numerics") == "fast"
            hint = f"; in fast numerics bits depend on machine and threads ({MODEL}: segments)" if is_fast else ""
            raise IntegrityError(f"{CURVE}: step {step} has {found}{hint}")
    print(f"same bits: step {interval.end} has {describe(again[interval.end])} as recorded")
    if kept:
        print(f"same bits: the weights of {', '.join(kept)}")


def read_curve(path: Path) -> dict[int, dict[str, str]]:
    """Read a curve of validations; return its rows by step, or {} if the file does not exist."""
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


def choose(steps: list[int], stored: dict[int, Checkpoint], start: int | None, seed: int) -> Interval:
    """Return the interval that begins at `start`, or one of all that can be trained again, by `seed`.

    steps: of the validations, ascending. stored: the checkpoints by their steps.
    """
    starts = [step for step in steps[:-1] if step == 0 or step in stored]
    if start is None and starts:
        start = random.Random(seed).choice(starts)
    if start not in starts:
        possible = ", ".join(map(str, starts)) or "none"
        requirement = "the step of a checkpoint before the last validation"
        raise ParamsError(f"--from is {start}; it must be {requirement}: {possible}")
    return Interval(start, steps[steps.index(start) + 1], stored.get(start))


def check_start(interval: Interval, recorded: dict[int, dict[str, str]]) -> None:
    """Raise IntegrityError if the checkpoint is damaged or not the one that the run had."""
    checkpoint = interval.checkpoint
    if checkpoint is None:
        return
    advice = f"delete it and {checkpoint.record.name}, or begin elsewhere with --from"
    check_sha256(checkpoint.path, read_json(checkpoint.record).get("sha256", "missing"), advice=advice)
    digest = digest_of(named_tensors(load_checkpoint(checkpoint)))
    if digest != recorded[interval.start]["checkpoint_digest"]:
        problem = f"{CURVE} records {recorded[interval.start]['checkpoint_digest']} at step {interval.start}"
        raise IntegrityError(f"{checkpoint.path}: its digest is {digest}, {problem}")


def train_again(
    interval: Interval, fingerprint: str, folder: Path, earlier: list[str], is_last: bool
) -> tuple[dict[int, dict[str, str]], dict[str, str]]:
    """Run the stage in `folder` to the end of the interval. Raise what the stage raises.

    Return its curve, and name → SHA-256 of the weights that it kept on the way. `earlier` names those that it kept
    before. At the last validation the stage ends by itself.
    """
    run, curve = folder / RUNS / fingerprint, folder / CURVE
    (run / KEPT_WEIGHTS).mkdir(parents=True)
    for name in earlier:  # the stage does not finish without them
        (run / KEPT_WEIGHTS / name).symlink_to((RUNS / fingerprint / KEPT_WEIGHTS / name).resolve())
    if interval.checkpoint:
        for source in (interval.checkpoint.path, interval.checkpoint.record):
            (run / source.name).symlink_to(source.resolve())
    flags = {"train": TRAIN, "validation": VALIDATION, "models": folder / MODEL.parent, "metrics": folder / METRICS}
    flags |= {"plots": curve.parent, "tokenizer": TOKENIZER}
    command = [sys.executable, "src/train.py", *(f"--{name}={path}" for name, path in flags.items())]
    environment = {**os.environ, "DVC_ROOT": str(folder)}  # under which the stage keeps .runs
    with open(folder / "errors", "w") as errors:
        stage = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
    try:
        while stage.poll() is None and interval.end not in read_curve(curve):
            time.sleep(POLL_S)
        if is_last:
            stage.wait()
    finally:
        stage.terminate()
        stage.wait()
    again = read_curve(curve)
    if interval.end not in again:
        *_, last = ["it ended without a message", *(folder / "errors").read_text().splitlines()]
        error = UserError(f"src/train.py failed: {last.removeprefix('error: ')}")
        error.exit_code = max(1, stage.returncode)
        raise error
    made = [path for path in sorted((run / KEPT_WEIGHTS).glob("step-*")) if not path.is_symlink()]
    return again, {path.name: read_json(path / MODEL.name)["best"]["sha256"] for path in made}


def describe(row: dict[str, str] | None) -> str:
    """Describe a validation."""
    return f"digest {row['checkpoint_digest']} and validation loss {row['val_loss']}" if row else "no validation"


def fault_of_model(model: dict) -> str | None:
    """Return a clause if model.json is of another run than the one that the workspace describes, else None."""
    params, name = read_section(PARAMS, "train", TrainParams), read_section(PARAMS, "model.name", str)
    tokenizer = read_json(sidecar_path(TRAIN))["tokenizer"]
    config = read_section(PRESETS, f"models.{name}", ModelParams).config(tokenizer["vocab_size"])
    here = dataclasses.asdict(params) | {"config": dataclasses.asdict(config)}
    if different := [name for name, value in model.items() if name in here and here[name] != value]:
        return "; ".join(f"{name} is {model[name]}, params.yaml has {here[name]}" for name in different)
    _, initial_sha256 = load_initial(Path(params.init_from), config, tokenizer["sha256"])
    expected = run_fingerprint(params, config, initial_sha256, [TRAIN, VALIDATION])
    if model.get("fingerprint") == expected:
        return None
    return f"was made by run {model.get('fingerprint')}, the workspace's code, parameters and inputs are of {expected}"

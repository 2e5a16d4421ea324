"""Train a part of the workspace's run again, from one of its checkpoints or from the initial weights.

The stage train itself does it, in a folder of its own, so that nothing of the workspace changes.
"""

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from lm.core.errors import IntegrityError, UserError
from lm.core.files import check_sha256, read_json
from lm.core.paths import RUNS
from lm.model.weights import save_weights
from lm.tokens.tokenfile import sidecar_path
from lm.train.checkpoints import Checkpoint, load_checkpoint
from lm.train.config import read_params
from lm.train.run import Run, RunFiles
from lm.train.state import digest_of, named_tensors
from tools.common.paths import METRICS, MODEL, MODELS, PLOTS, TOKENIZER, TRAIN, VALIDATION

FILES = RunFiles(TRAIN, VALIDATION, TOKENIZER)
CURVE = PLOTS / "validation.csv"
DIGEST = "checkpoint_digest"  # its column
OF_FINISHED_RUN = ("training", "best", "last")  # entries of model.json that a checkpoint does not have


def read_curve(path: Path) -> dict[int, dict[str, str]]:
    """Read a curve of validations; return its rows by step, or {} if the file does not exist."""
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


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


def write_weights(folder: Path, state: dict, model: dict) -> None:
    """Write the weights of a state and their model.json, which has of the run's model.json what holds for them."""
    step, tokens, loss = state["history"]["validation"][-1]
    here = {"step": step, "tokens_seen": tokens, "val_loss": loss}
    record = {name: value for name, value in model.items() if name not in OF_FINISHED_RUN}
    save_weights(folder, dict(state["model"]), {**record, "segments": state["segments"], "best": here})

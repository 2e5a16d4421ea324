"""What a training run leaves behind: weights and their record, metrics, curves."""

import os
import shutil
from pathlib import Path

from lm.core.errors import IntegrityError
from lm.core.files import atomic_folder, read_json, sha256_file, write_csv, write_json
from lm.model.weights import save_tensors
from lm.train.loop import History, TrainingState
from lm.train.preflight import Plan


def write_curves(plots: Path, history: History) -> None:
    """The curves as CSV, also of a run in progress."""
    write_csv(plots / "training.csv", ["step", "tokens", "lr", "train_loss", "grad_norm"], history.train)
    write_csv(plots / "validation.csv", ["step", "tokens", "val_loss"], history.validation)
    write_csv(plots / "timing.csv", ["tokens", "seconds"], history.timing)


def write_models(models: Path, state: TrainingState, batch_tokens: int, provenance: dict) -> None:
    """Best and last weights, and model.json: `provenance`, the segments of the run, and both weights' hashes."""
    record = {**provenance, "segments": state.segments}
    last_step, _, last_loss = state.history.validation[-1]
    for name, weights, step, loss in (
        ("best", state.best_weights, state.best_step, state.best_loss),
        ("last", state.weights(), last_step, last_loss),
    ):
        sha256 = save_tensors(models / f"{name}_model_params.pt", weights)
        tokens = step * batch_tokens
        record[name] = {"step": step, "tokens_seen": tokens, "val_loss": loss, "sha256": sha256}
    write_json(models / "model.json", record)


def write_metrics(metrics: Path, state: TrainingState, plan: Plan) -> None:
    """train.json, the same for the same bits, and timing.json, which holds the wall clock alone."""
    _, tokens_seen, last_loss = state.history.validation[-1]
    best_tokens = {step: tokens for step, tokens, _ in state.history.validation}[state.best_step]
    figures = {
        "best_val_loss": state.best_loss,
        "last_val_loss": last_loss,
        "best_tokens_seen": best_tokens,
        "tokens_seen": tokens_seen,
        "steps": state.step,
        "epochs": plan.epochs,
        "parameters": plan.num_parameters,
        "training_flops": plan.flops_per_token * tokens_seen,
    }
    if state.history.train:
        figures["last_train_loss"] = state.history.train[-1][3]
    write_json(metrics / "train.json", figures)
    speed = {"train_seconds": state.elapsed_s, "train_tokens_per_s": tokens_seen / state.elapsed_s}
    write_json(metrics / "timing.json", speed)


def check_finished(done: Path) -> None:
    """Raise IntegrityError if the weights of a finished run are not those of its record."""
    record = read_json(done / "models" / "model.json")
    for name in ("best", "last"):
        path = done / "models" / f"{name}_model_params.pt"
        found, recorded = sha256_file(path), record[name]["sha256"]
        if found != recorded:
            raise IntegrityError(
                f"{path}: sha256 is {found}, model.json says {recorded}; delete {done.parent} to train anew"
            )


def publish(done: Path, models: Path, metrics: Path, plots: Path) -> None:
    """Copy a finished run's files to the stage's outputs; each appears whole. IntegrityError if it is damaged."""
    check_finished(done)
    with atomic_folder(models) as folder:
        shutil.copytree(done / "models", folder, dirs_exist_ok=True)
    for source, target in ((done / "metrics", metrics), (done / "plots", plots)):
        target.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            temporary = target / f".{path.name}.tmp"
            shutil.copyfile(path, temporary)
            os.replace(temporary, target / path.name)

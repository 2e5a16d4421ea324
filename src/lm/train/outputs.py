"""The files that a run leaves: curves, metrics, models."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from lm.core.errors import IntegrityError
from lm.core.files import (
    atomic_folder,
    atomic_write,
    check_sha256,
    check_types,
    read_json,
    safe_join,
    sha256_file,
    write_csv,
    write_json,
)
from lm.model import machine
from lm.model.seen import save_seen
from lm.model.weights import save_models
from lm.train.preflight import Plan
from lm.train.run import Training
from lm.train.state import History, TrainingState

RECORDED = ("seq_len", "seed", "eval_tokens", "attend_across_documents")  # parameters in model.json
SUMS = "sha256.json"  # of a finished run: folder → file → SHA-256 of all that `publish` copies
TIMING = ("tokens", "seconds", "validation_seconds", "saving_seconds")  # the columns of History.timing


def write_curves(plots: Path, history: History) -> None:
    """Write the curves so far as CSV files."""
    validation = [[*row, digest] for row, digest in zip(history.validation, history.digests, strict=True)]
    write_csv(plots / "training.csv", ["step", "tokens", "lr", "train_loss", "grad_norm"], history.train)
    write_csv(plots / "validation.csv", ["step", "tokens", "val_loss", "checkpoint_digest"], validation)


def write_metrics(metrics: Path, state: TrainingState, plan: Plan) -> None:
    """Write train.json, which depends only on the bits of the run."""
    figures = {"val_loss": state.best_loss}
    if state.history.train:
        figures["train_loss"] = state.history.train[-1][3]
    figures["tokens_seen"] = state.history.validation[-1][1]
    figures["parameters"] = plan.num_parameters
    write_json(metrics / "train.json", figures)


def write_timing(training: Training) -> None:
    """Write timing.json, the only file with wall-clock times, into the run's folder; it is not an output of a stage."""
    state = training.state
    columns = zip(*state.history.timing, strict=True)
    curve = dict(zip(TIMING, columns, strict=True))
    computed_on = machine.describe(training.device, training.dtype, state.world.world_size)
    record = {"train_seconds": state.seconds["training"], **curve, "computed_on": computed_on}
    write_json(training.run.folder / "timing.json", record)


def describe_model(training: Training) -> dict:
    """Return the entries of model.json that do not depend on the step: the model, its inputs, and the machine."""
    recorded = {name: getattr(training.run.params, name) for name in RECORDED}
    return {**training.run.provenance(), **recorded, "segments": training.state.segments}


def write_results(training: Training) -> None:
    """Write models, metrics and curves of a finished run to <folder>/done; all ranks call it together."""
    state = training.state
    plan = training.plan
    run = training.run.folder
    if not state.world.is_main:
        return
    last_weights = state.weights()

    # Describe the best and the last weights.
    tokens_at = {step: tokens for step, tokens, _ in state.history.validation}
    last_step, last_tokens, last_loss = state.history.validation[-1]
    record = {
        **describe_model(training),
        "training": {
            "steps": state.step,
            "epochs": last_tokens / plan.train_tokens,
            "training_flops": plan.flops_per_token * last_tokens,
            "parameters": plan.num_parameters,
            "last_train_loss": state.history.train[-1][3] if state.history.train else None,
        },
        "best": {"step": state.best_step, "tokens_seen": tokens_at[state.best_step], "val_loss": state.best_loss},
        "last": {"step": last_step, "tokens_seen": last_tokens, "val_loss": last_loss},
    }

    # Write all of it, or nothing.
    with atomic_folder(run / "done") as done:
        record["seen_sha256"] = save_seen(done / "models", training.run.train, training.run.seen_by_start)
        save_models(done / "models", state.best_weights, last_weights, record)
        write_metrics(done / "metrics", state, plan)
        write_curves(done / "plots", state.history)
        folders = ("models", "metrics", "plots")
        write_json(done / SUMS, {f"done/{name}": _sha256_of_files(done / name) for name in folders})


def publish(done: Path, models: Path, metrics: Path, plots: Path) -> None:
    """Copy a finished run to the stage's outputs; each file appears whole.

    Raise IntegrityError, before anything is copied, if a file of the run has changed since it was written.
    """
    # Check that no file of the run has changed.
    run = done.parent
    advice = _train_from_scratch(run)
    sums = read_json(done / SUMS, advice)
    sums_of_folder = {str: str}
    form = {
        "done/models": sums_of_folder,
        "done/metrics": sums_of_folder,
        "done/plots": sums_of_folder,
    }
    check_types(done / SUMS, sums, form, advice)
    for place, files in sums.items():
        for name, sha256 in files.items():
            path = safe_join(run, f"{place}/{name}", done / SUMS)
            if not path.is_file():
                raise IntegrityError(f"{path}: missing; {advice}")
            check_sha256(path, sha256, advice=advice)

    # Copy the models, then metrics and plots.
    with atomic_folder(models) as folder:
        _copy_files(done / "models", sums["done/models"], folder)
    for name, target in (("metrics", metrics), ("plots", plots)):
        for file_name in sums[f"done/{name}"]:
            with atomic_write(target / file_name) as file:
                file.write((done / name / file_name).read_bytes())


def _train_from_scratch(run: Path) -> str:
    return f"delete {run} to train from scratch"


def _sha256_of_files(folder: Path) -> dict[str, str]:
    """Return name → SHA-256 of the files in a folder."""
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


def _copy_files(source: Path, names: Iterable[str], target: Path) -> None:
    """Copy these files of a folder, without shutil.copytree: on a full disk it raises an error without an errno."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(source / name, target / name)

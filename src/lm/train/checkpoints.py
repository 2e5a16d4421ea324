"""Resumable training states in a folder that belongs to one run, and weights that others load.

A run is identified by a fingerprint of its parameters, its code and its inputs; a state is written
whole, with its SHA-256 beside it, and the last two are kept, so that one survives any fault.
"""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from lm.core.errors import BusyError, IntegrityError
from lm.core.files import output_lock, read_json, sha256_file, sha256_json, write_json
from lm.model.weights import load_tensors, save_tensors

KEPT_STATES = 2


def fingerprint(params: dict, code_files: list[Path], input_hashes: dict[str, str]) -> str:
    """Identify a run: 16 hex digits over its parameters, the bytes of its code and its inputs' hashes."""
    code = {path.as_posix(): sha256_file(path) for path in sorted(code_files)}
    return sha256_json({"params": params, "code": code, "inputs": input_hashes})[:16]


def record_of(run: Path, step: int) -> Path:
    """The record of the state of a step, with which it counts."""
    return run / f"state-{step:09d}.json"


def save_state(run: Path, step: int, state: dict) -> None:
    """Write state-<step>.pt and its record into the run's folder; drop all but the last two that have one."""
    record = record_of(run, step)
    path = record.with_suffix(".pt")
    sha256 = save_tensors(path, state)
    write_json(record, {"run": run.name, "step": step, "sha256": sha256})
    kept = sorted(run.glob("state-*.json"))[-KEPT_STATES:]
    for old in sorted(run.glob("*state-*")):  # a record before its state; what killed runs left as well
        if old.with_suffix(".json") not in kept:
            old.unlink()


def load_newest_state(run: Path) -> dict | None:
    """Return the newest intact state, or None if the run has none; a damaged one is named and passed over.

    Raises IntegrityError if there are states but none is intact: training never restarts silently.
    """
    recorded = sorted(run.glob("state-*.json"), reverse=True)
    for record in recorded:
        try:
            return load_state(record)
        except IntegrityError as error:
            print(f"warning: {error}; trying the state before it", file=sys.stderr)
    if recorded:
        raise IntegrityError(
            f"{run}: none of {len(recorded)} states is intact; delete the folder to train from scratch"
        )
    return None


def load_state(record: Path) -> dict:
    """Return the state of a record; IntegrityError if it is damaged or of another run."""
    run, state = record.parent.name, read_json(record)
    if state.get("run") != run:
        raise IntegrityError(f"{record}: is of the run {state.get('run')}, not {run}")
    return load_tensors(record.with_suffix(".pt"), state.get("sha256", "missing"))


def drop_states(run: Path) -> None:
    """Remove the resumable states of a finished run."""
    for path in run.glob("*state-*"):
        path.unlink()


def prune_runs(runs: Path, current: Path, keep: int) -> None:
    """Keep the `keep` most recently used run folders; `current` is always among them, and none goes that is in use.

    A folder is renamed before it is removed, so that what a kill leaves of it is no finished run.
    """
    current.mkdir(parents=True, exist_ok=True)
    for left in runs.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    os.utime(current, (time.time(), time.time()))
    folders = sorted((p for p in runs.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
    for folder in folders[keep:]:
        if folder != current:
            with contextlib.suppress(BusyError), output_lock(folder):  # experiments may run side by side
                shutil.rmtree(folder.rename(runs / f".{folder.name}.tmp"), ignore_errors=True)

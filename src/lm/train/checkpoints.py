"""Run folders: .runs/<fingerprint>/ holds the last two checkpoints of a run, and its results once it is done.

Some earlier checkpoints stay beside the results, so that intervals of the run can be trained again. A checkpoint is
written whole, with its SHA-256 in a record beside it. lm.train.fingerprint names the folders.
"""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from lm.core.errors import BusyError, EnvironmentFailure, IntegrityError
from lm.core.files import atomic_folder, check_types, make_folder, output_lock, read_json, write_json
from lm.model.weights import CHECKPOINTS, RECORD, WEIGHTS, check_sha256, checkpoint_name, load_tensors, save_tensors
from lm.train.config import TrainParams
from lm.train.state import named_tensors

KEPT_CHECKPOINTS = 2


def record_of(run: Path, step: int) -> Path:
    """Return the path of a checkpoint's record, without which the checkpoint does not count."""
    return run / f"checkpoint-{step:09d}.json"


def save_checkpoint(run: Path, step: int, checkpoint: dict) -> None:
    """Write checkpoint-<step>.pt and then its record into the run folder; delete all but the last two checkpoints."""
    _write_checkpoint(record_of(run, step), step, checkpoint)
    kept = sorted(run.glob("checkpoint-*.json"))[-KEPT_CHECKPOINTS:]
    for old in sorted(run.glob("*checkpoint-*")):  # a record before its checkpoint, and what killed runs left
        if old.with_suffix(".json") not in kept:
            old.unlink()


def _write_checkpoint(record: Path, step: int, checkpoint: dict) -> None:
    sha256 = save_tensors(record.with_suffix(".pt"), checkpoint)
    segments = checkpoint.get("segments") or [{}]
    write_json(record, {"run": record.parent.name, "step": step, "sha256": sha256, "dtype": segments[-1].get("dtype")})


def steps_to_keep(params: TrainParams, number: int) -> set[int]:
    """Return the steps of at most `number` validations, spread evenly between the first and the last of a run."""
    intervals = -(-params.max_steps // params.eval_every_steps)
    chosen = {i * intervals // (number + 1) for i in range(1, number + 1)}
    return {i * params.eval_every_steps for i in chosen - {0}}


def keep_checkpoint(run: Path, step: int, checkpoint: dict, name: str = "kept") -> float | None:
    """Write <name>-<step>.pt and then its record, which stay in the folder of a finished run; return its size in MB.

    If that would leave too little disk space for the checkpoints of the run itself, warn and return None.
    """
    tensors = [*(tensor for _, tensor in named_tensors(checkpoint)), *checkpoint["best_weights"].values()]
    needed, free = sum(tensor.nbytes for tensor in tensors), shutil.disk_usage(run).free
    try:
        if free < (1 + KEPT_CHECKPOINTS) * needed:
            raise EnvironmentFailure(f"{run}: {free / 1e6:.0f} MB are free")
        _write_checkpoint(run / f"{name}-{step:09d}.json", step, checkpoint)
    except EnvironmentFailure as error:
        print(f"warning: the checkpoint of step {step} is not kept: {error}", file=sys.stderr, flush=True)
        return None
    return needed / 1e6


def describe_run(run: Path, length_free: str, max_steps: int) -> None:
    """Write run.json: the run's length, and a fingerprint that it shares with runs of other lengths."""
    write_json(run / "run.json", {"length_free": length_free, "max_steps": max_steps})


def extend(run: Path, length_free: str, decay_begins: int, kept_steps: set[int]) -> None:
    """Give a run without checkpoints the last checkpoint that one of another length had before its learning rate fell.

    It must not be after step `decay_begins`, where this run's rate begins to fall. The weights that this run keeps of
    the steps before it come from the other run too. Say so, or why there is none.
    """
    if any(run.glob("checkpoint-*.json")):
        return
    others = [path.parent for path in run.parent.glob("[!.]*/run.json") if path.parent != run]
    others = [other for other in others if _length_free(other) == length_free]
    stable = [(int(path.stem[-9:]), path) for other in others for path in other.glob("stable-*.json")]
    for step, record in sorted(stable, reverse=True):
        if step > decay_begins:
            continue
        try:
            _copy_kept_weights(record.parent, run, {kept for kept in kept_steps if kept < step})
            _link_checkpoint(record, record_of(run, step))
            print(f"extends run {record.parent.name}, which has the same steps up to step {step}", flush=True)
            return
        except (OSError, IntegrityError) as error:
            print(f"warning: {error}; not extended from there", file=sys.stderr, flush=True)
    if others:
        reason = f"it has no checkpoint up to step {decay_begins}, where this run's learning rate begins to fall"
        if not decay_begins:
            reason = "with train.schedule cosine every learning rate depends on the length; wsd can be extended"
        print(f"run {others[0].name} differs in train.max_tokens only, but is not extended: {reason}", flush=True)


def _length_free(run: Path) -> str | None:
    """Return what `describe_run` recorded of a run; warn and return None if that is damaged, or gone meanwhile."""
    try:
        return read_json(run / "run.json", f"delete {run}").get("length_free")
    except (OSError, IntegrityError) as error:
        print(f"warning: {error}; the run is not extended from there", file=sys.stderr, flush=True)
        return None


def _link_checkpoint(record: Path, target: Path) -> None:
    """Make another run's checkpoint one of this run, without a copy where the disk has hard links."""
    saved, source, link = read_json(record), record.with_suffix(".pt"), target.with_suffix(".pt")
    check_types(record, saved, {"sha256": str}, advice="delete it")
    check_sha256(source, saved["sha256"], advice="delete it")
    link.unlink(missing_ok=True)
    try:
        os.link(source, link)
    except OSError:
        shutil.copyfile(source, link)
    write_json(target, {**saved, "run": target.parent.name})


def _copy_kept_weights(other: Path, run: Path, steps: set[int]) -> None:
    for source in (other / CHECKPOINTS / checkpoint_name(step) for step in sorted(steps)):
        record = read_json(source / RECORD)
        check_types(source / RECORD, record, {"best": {"sha256": str}}, advice="delete it")
        check_sha256(source / WEIGHTS, record["best"]["sha256"], advice="delete it")
        with atomic_folder(run / CHECKPOINTS / source.name) as folder:
            shutil.copyfile(source / WEIGHTS, folder / WEIGHTS)
            write_json(folder / RECORD, {**record, "fingerprint": run.name})


def kept_checkpoints(run: Path) -> dict[int, Path]:
    """Return step → record of the checkpoints that were kept of a run."""
    return {int(record.stem.removeprefix("kept-")): record for record in sorted(run.glob("kept-*.json"))}


def newest_dtype(run: Path) -> str | None:
    """Return the name of the dtype of a run's newest segment, or None if the run has no checkpoints."""
    for record in sorted(run.glob("checkpoint-*.json"), reverse=True):
        with contextlib.suppress(IntegrityError):
            return read_json(record).get("dtype")
    return None


def load_newest_checkpoint(run: Path) -> dict | None:
    """Return the newest intact checkpoint, or None if there are none; raise IntegrityError if all are damaged."""
    records = sorted(run.glob("checkpoint-*.json"), reverse=True)
    for record in records:
        try:
            return load_checkpoint(record)
        except IntegrityError as error:
            print(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)
    if records:
        remedy = "delete the folder to train from scratch"
        raise IntegrityError(f"{run}: none of {len(records)} checkpoints is intact; {remedy}")
    return None


def load_checkpoint(record: Path) -> dict:
    """Return the checkpoint of a record; raise IntegrityError if it is damaged or belongs to another run."""
    run, recorded = record.parent.name, read_json(record)
    if recorded.get("run") != run:
        raise IntegrityError(f"{record}: belongs to run {recorded.get('run')}, not {run}")
    return load_tensors(record.with_suffix(".pt"), str(recorded.get("sha256", "missing")))


def prune_runs(runs: Path, current: Path, keep: int) -> None:
    """Keep the `keep` most recently used run folders; `current` and folders in use are never deleted."""
    make_folder(current)
    for leftover in runs.glob(".*.tmp"):  # renamed before it is deleted: a kill never leaves half of a finished run
        shutil.rmtree(leftover, ignore_errors=True)
    os.utime(current, (time.time(), time.time()))
    # Experiments may run at the same time: a folder may be in use, or another of them may delete it.
    last_used = {}
    for folder in runs.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if folder.is_dir():
                last_used[folder] = folder.stat().st_mtime
    for folder in sorted(last_used, key=lambda folder: last_used[folder], reverse=True)[keep:]:
        if folder != current:
            with contextlib.suppress(BusyError, FileNotFoundError), output_lock(folder):
                shutil.rmtree(folder.rename(runs / f".{folder.name}.tmp"), ignore_errors=True)

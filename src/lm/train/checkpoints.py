"""Run folders: .runs/<fingerprint>/ holds the checkpoints of a run, and its results once it is done.

A checkpoint is the whole state of a run after a step: checkpoint-<step>.pt. Beside it is a record with its SHA-256;
without the record, a checkpoint does not count. Checkpoints serve three purposes. A killed run continues from its
newest one, a longer run begins with the last one from before the learning rate fell, and `verify --retrain` trains
again from a retained one. lm.train.fingerprint names the folders.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from lm.core.errors import BusyError, IntegrityError
from lm.core.files import check_sha256, check_types, make_folder, output_lock, read_json, write_json, write_text
from lm.core.messages import say
from lm.model.weights import load_tensors, save_tensors
from lm.train.config import TrainParams

SAVES_PER_INTERVAL = 50  # saving times between two checkpoints at least, so that saving takes 2 % of a run
LAST_USE = "last_use"  # file in a run folder: the number of its last use, counted over all runs in .runs
NEWEST = 2  # checkpoints kept of a run in progress; the older one serves if the newer one is damaged


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` steps, on the disk."""

    run: Path
    step: int

    @property
    def path(self) -> Path:
        """Return the file with the state."""
        return self.run / f"checkpoint-{self.step:09d}.pt"

    @property
    def record(self) -> Path:
        """Return the JSON file that belongs to it: its run, step and SHA-256."""
        return self.path.with_suffix(".json")


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run, in the order of their steps."""
    names = [path.stem for path in run.glob("checkpoint-*.json")]
    return [Checkpoint(run, int(name.removeprefix("checkpoint-"))) for name in sorted(names)]


def save_checkpoint(run: Path, step: int, state: dict, retained: Collection[int] = ()) -> None:
    """Write the checkpoint of a step, and then its record; keep only it, the previous one and those of `retained`."""
    checkpoint = Checkpoint(run, step)
    sha256 = save_tensors(checkpoint.path, state)
    write_json(checkpoint.record, {"run": run.name, "step": step, "sha256": sha256})
    newest = [checkpoint.step for checkpoint in list_checkpoints(run)[-NEWEST:]]
    delete_checkpoints(run, {*retained, *newest})


class CheckpointWriter:
    """Write the checkpoints of a run, one at a time; at the end of the context, wait for the last one.

    A run on a GPU trains on while a thread writes. The errors of the thread are those of `save_checkpoint`; the next
    call raises them, or the end of the context. On a CPU there is no thread: it would take a core from training, and
    memory for a copy of the state, and save less than 1 % of the time of the default run.
    """

    def __init__(self, run: Path, retained: Collection[int], device: torch.device):
        self._run = run
        self._retained = retained
        self._thread = None if device.type == "cpu" else ThreadPoolExecutor(1)
        self._writing: Future | None = None

    def save(self, step: int, state: dict) -> None:
        """Return once the checkpoint is on the disk; with a thread, once the previous one is and this one is copied."""
        self.wait()
        if self._thread is None:
            save_checkpoint(self._run, step, state, self._retained)
        else:
            self._writing = self._thread.submit(save_checkpoint, self._run, step, copy_to_host(state), self._retained)

    def check(self) -> None:
        """Raise the error of the last checkpoint, if it could not be written."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return once the last checkpoint is on the disk."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()


def copy_to_host(value):
    """Return a copy of nested dicts, lists and tuples in which every tensor is a copy in the memory of the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_to_host(item) for item in value)
    return value


def delete_checkpoints(run: Path, keep: Collection[int]) -> None:
    """Delete all checkpoints of a run except those of the steps `keep`, and what killed processes left behind."""
    names = {Checkpoint(run, step).path.stem for step in keep}
    for path in sorted(run.glob("*checkpoint-*")):  # in this order a record goes before its checkpoint
        if path.stem not in names:
            path.unlink()


def load_checkpoint(checkpoint: Checkpoint, is_verified: bool = False) -> dict:
    """Return the state of a checkpoint; raise IntegrityError if it is damaged or belongs to another run.

    is_verified: another process has checked its SHA-256.
    """
    record = read_json(checkpoint.record)
    if record.get("run") != checkpoint.run.name:
        raise IntegrityError(f"{checkpoint.record}: belongs to run {record.get('run')}, not {checkpoint.run.name}")
    sha256 = None if is_verified else str(record.get("sha256", "missing"))
    return load_tensors(checkpoint.path, sha256)


def load_newest_checkpoint(run: Path) -> dict | None:
    """Return the state of the newest intact checkpoint, or None if there is no checkpoint.

    Raise IntegrityError if all are damaged.
    """
    found = list_checkpoints(run)
    for checkpoint in reversed(found):
        try:
            return load_checkpoint(checkpoint)
        except IntegrityError as error:
            say(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)
    if found:
        remedy = "delete the folder to train from scratch"
        raise IntegrityError(f"{run}: none of {len(found)} checkpoints is intact; {remedy}")
    return None


def interval_s(every_s: float, last_save_s: float) -> float:
    """Return the seconds between checkpoints: `every_s` (0: after every step), or more where saving is slow."""
    return max(every_s, SAVES_PER_INTERVAL * last_save_s) if every_s else 0.0


def retained_steps(params: TrainParams, number: int) -> set[int]:
    """Return the steps whose checkpoints are retained when the run is done; none if `number` is 0.

    They are the steps of `number` validations, spread evenly between the first and the last one of the run, and the
    step from which the learning rate falls.
    """
    if number == 0:
        return set()
    num_validations = math.ceil(params.max_steps / params.eval_every_steps)
    chosen = {i * num_validations // (number + 1) for i in range(1, number + 1)}
    steps = {validation * params.eval_every_steps for validation in chosen}
    steps.add(params.decay_begins)
    return steps - {0}


def describe_run(run: Path, length_free: str, params: TrainParams) -> None:
    """Write run.json: the fingerprint shared with runs of other lengths, and the step from which the rate falls."""
    write_json(run / "run.json", {"length_free": length_free, "decay_begins": params.decay_begins})


def extend(run: Path, length_free: str, params: TrainParams) -> None:
    """Seed a run without checkpoints from a run of another length: with the last checkpoint that both share.

    Runs that differ only in length have the same steps until the learning rate of one of them falls. Print which run is
    extended, or why none is.
    """
    if list_checkpoints(run):
        return

    # Find the runs that differ only in length, and the checkpoints that they share with this run.
    others: list[Path] = []
    shared: list[Checkpoint] = []
    for path in sorted(run.parent.glob("[!.]*/run.json")):
        other = path.parent
        other_decay_begins = None if other == run else _read_decay_begins(other, length_free)
        if other_decay_begins is None:
            continue
        others.append(other)
        last_shared = min(params.decay_begins, other_decay_begins)
        shared += [checkpoint for checkpoint in list_checkpoints(other) if checkpoint.step <= last_shared]

    # Take the last one that is intact.
    for checkpoint in sorted(shared, key=lambda checkpoint: checkpoint.step, reverse=True):
        try:
            link_checkpoint(checkpoint, run)
            same = f"which has the same steps up to step {checkpoint.step}"
            say(f"extends run {checkpoint.run.name}, {same}")
            return
        except (OSError, IntegrityError) as error:
            say(f"warning: {error}; not extended from there", file=sys.stderr)
    if others:
        reason = f"it has no checkpoint up to step {params.decay_begins}, where this run's learning rate begins to fall"
        if params.schedule == "cosine":
            reason = "with train.schedule cosine every learning rate depends on the length; wsd can be extended"
        say(f"run {others[0].name} differs in train.max_tokens only, but is not extended: {reason}")


def _read_decay_begins(other: Path, length_free: str) -> int | None:
    """Return the step from which another run's rate falls, or None if that run differs in more than its length.

    Another run may have been deleted meanwhile, or its record may be damaged: warn, and return None.
    """
    try:
        record = read_json(other / "run.json", f"delete {other}")
        form = {"length_free": str, "decay_begins": int}
        check_types(other / "run.json", record, form, f"delete {other}")
    except (OSError, IntegrityError) as error:
        say(f"warning: {error}; the run is not extended from there", file=sys.stderr)
        return None
    return record["decay_begins"] if record["length_free"] == length_free else None


def link_checkpoint(checkpoint: Checkpoint, run: Path) -> None:
    """Add a checkpoint of another folder to this run; copy it only if the disk has no hard links."""
    record = read_json(checkpoint.record)
    check_types(checkpoint.record, record, {"sha256": str}, advice="delete it")
    check_sha256(checkpoint.path, record["sha256"], advice="delete it")
    own = Checkpoint(run, checkpoint.step)
    own.path.unlink(missing_ok=True)
    try:
        os.link(checkpoint.path, own.path)
    except OSError:
        shutil.copyfile(checkpoint.path, own.path)
    write_json(own.record, {**record, "run": run.name})


def prune_runs(runs: Path, current: Path, keep: int) -> None:
    """Keep the `keep` most recently used run folders; `current` and folders in use are never deleted.

    Uses are numbered: a clock may have been wrong, and writing checkpoints changes the time of a folder.
    """
    make_folder(current)
    for leftover in runs.glob(".*.tmp"):  # renamed before it is deleted: a kill never leaves half of a finished run
        shutil.rmtree(leftover, ignore_errors=True)
    last_uses = {folder: _read_last_use(folder) for folder in runs.iterdir() if folder.is_dir()}
    write_text(current / LAST_USE, str(1 + max(last_uses.values())))
    # Experiments may run at the same time: a folder may be in use, or another of them may delete it.
    del last_uses[current]
    for folder in sorted(last_uses, key=lambda folder: last_uses[folder], reverse=True)[keep - 1 :]:
        with contextlib.suppress(BusyError, FileNotFoundError), output_lock(folder):
            shutil.rmtree(folder.rename(runs / f".{folder.name}.tmp"), ignore_errors=True)


def _read_last_use(folder: Path) -> int:
    """Return the number of the last use of a run folder, 0 if it has none."""
    try:
        return int((folder / LAST_USE).read_text())
    except (FileNotFoundError, ValueError):
        return 0

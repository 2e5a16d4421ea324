"""Train a run again up to a validation, and compare the bits with the recorded ones."""

import random
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import output_lock, scratch_folder
from lm.core.params import read_yaml
from lm.core.paths import RUNS
from lm.train.checkpoints import Checkpoint, link_checkpoint, list_checkpoints, load_checkpoint
from tools.common.paths import MODEL, PARAMS
from tools.common.retrain import CURVE, check_checkpoint, describe, read_curve, read_run, train_again, write_weights


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

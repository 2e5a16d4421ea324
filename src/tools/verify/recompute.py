"""Retrain one interval between two validations, and compare the digests of the checkpoints."""

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import read_json
from lm.core.params import read_yaml
from lm.core.paths import KEPT_WEIGHTS, RUNS
from lm.train.checkpoints import Checkpoint, list_checkpoints
from tools.common.paths import MODEL, PARAMS
from tools.common.retrain import CURVE, check_checkpoint, describe, read_curve, read_run, train_again


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
    model, recorded = read_run()
    fingerprint = model["fingerprint"]

    # Choose the interval.
    stored = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(RUNS / fingerprint)}
    interval = choose(sorted(recorded), stored, start, seed)
    origin = f"the checkpoint {interval.checkpoint.path}" if interval.checkpoint else "the initial weights"
    chosen = f" (--seed {seed})" if start is None else ""
    steps = f"steps {interval.start} to {interval.end}"
    print(f"recompute: {steps} of run {fingerprint}, from {origin}{chosen}", flush=True)
    if interval.checkpoint:
        check_checkpoint(interval.checkpoint, recorded, "or begin elsewhere with --from")

    # Train it again.
    with tempfile.TemporaryDirectory() as folder:
        run = train_again(interval.checkpoint, interval.end, fingerprint, Path(folder))
        again = read_curve(folder / CURVE)
        records = sorted((run / KEPT_WEIGHTS).glob(f"step-*/{MODEL.name}"))
        kept = {record.parent.name: read_json(record)["best"]["sha256"] for record in records}

    # Compare.
    for name, sha256 in kept.items():
        if sha256 != model[KEPT_WEIGHTS].get(name):
            found = f"{model[KEPT_WEIGHTS].get(name)}; retrained from step {interval.start}: {sha256}"
            raise IntegrityError(f"{MODEL}: {name} has the sha256 {found}")
    for step, row in sorted(again.items()):
        if row != recorded.get(step):
            found = f"{describe(recorded.get(step))}; retrained from step {interval.start}: {describe(row)}"
            is_fast = read_yaml(PARAMS)["train"].get("numerics") == "fast"
            hint = f"; in fast numerics bits depend on machine and threads ({MODEL}: segments)" if is_fast else ""
            raise IntegrityError(f"{CURVE}: step {step} has {found}{hint}")
    print(f"same bits: step {interval.end} has {describe(again[interval.end])} as recorded")
    if kept:
        print(f"same bits: the weights of {', '.join(kept)}")


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

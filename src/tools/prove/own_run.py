"""The run that params.yaml, presets.yaml and data/ describe: digest its first steps, and compare them with a file."""

import argparse
import dataclasses
from pathlib import Path

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import check_types, read_json, write_json
from lm.core.params import read_yaml
from lm.exact.threads import ThreadTuner
from lm.model import machine
from lm.train.config import read_params
from lm.train.preflight import check_run
from lm.train.ranks import SINGLE_PROCESS
from lm.train.run import Run, RunFiles
from tools.common.environment import processor
from tools.common.parameters import differences, flatten
from tools.common.paths import PARAMS, TOKENIZER, TRAIN, VALIDATION
from tools.prove.digests import check_expected, digest_steps, first_difference, last_weights

FILES = RunFiles(TRAIN, VALIDATION, TOKENIZER)
WRITE = "write it with `python src prove --params --write`"


def prove_own_run(args: argparse.Namespace, path: Path) -> None:
    """Train the first steps of the run, and write their digests to `path` or compare them with it.

    Raise ParamsError if the file is of another run, and IntegrityError if it is damaged or the bits differ.
    """
    # The parameters, of which some cannot be digested.
    num_steps = args.steps
    params = read_params()
    if params.train.compile:
        raise ParamsError(f"{PARAMS}: train.compile is true; it must be false, to see the operations of torch")
    if not 1 <= num_steps <= params.train.max_steps:
        most = f"{params.train.max_steps}, the steps of the run"
        raise ParamsError(f"--steps is {num_steps}; it must be from 1 to {most}")

    # Read everything before the training, which takes longer.
    device = check_run(params, SINGLE_PROCESS)
    run = Run.read(FILES, params)
    described = describe_run(run, num_steps)
    is_compared = not (args.write or args.expect)
    before = read_bits(path, described) if is_compared else {"computed_on": {}}

    # Train. Where train.dtype leaves the choice, compute as the file was computed.
    numerics = run.params.numerics
    threads = ThreadTuner(numerics, adapts=args.threads is None and numerics == "exact")
    training = run.start(SINGLE_PROCESS, device, before["computed_on"].get("dtype"))
    found = digest_steps(
        training.state, training.windows, run.params, training.dtype, num_steps, 1, threads, with_operations=True
    )
    computed_on = {"processor": processor(), "numerics": numerics, **machine.describe(device, training.dtype)}
    computed_on["threads"] = threads.most  # in exact numerics their number changes during the run, and no bits

    # Write or compare.
    summary = f"{num_steps} steps, weights {last_weights(found)}"
    if args.write:
        write_json(path, {"run": described, "computed_on": computed_on, **found})
        print(f"{path} has the bits of this run: {summary}")
        return
    if args.expect:
        check_expected(found, args.expect)
        return
    changed = changes(before["computed_on"], computed_on) or "the same versions and machine"
    if problem := first_difference(found, common_operations(before, found), "same"):
        raise IntegrityError(f"{path}: {changed}: {problem}")
    print(f"same bits as {path}: {summary}, {changed}")


def describe_run(run: Run, num_steps: int) -> dict:
    """Return what tells the first steps of a run from those of another one."""
    return {
        "train": read_yaml(PARAMS)["train"],
        "model": dataclasses.asdict(run.config),
        "tokens": run.train.meta["sha256"],
        "tokenizer": run.train.meta["tokenizer"]["sha256"],
        "initial weights": run.initial_sha256,
        "steps": num_steps,
    }


def read_bits(path: Path, described: dict) -> dict:
    """Read the bits of the run `described`; raise IntegrityError if the file is damaged, ParamsError if of another run.

    It is damaged, too, if it is missing or incomplete.
    """
    bits = read_json(path, WRITE)
    check_types(path, bits, {"run": dict, "computed_on": {"dtype": str}}, WRITE)
    if bits["computed_on"]["dtype"] not in machine.COMPUTE_DTYPES:
        raise IntegrityError(f"{path}: computed_on.dtype is {bits['computed_on']['dtype']}; {WRITE}")
    if different := changes(bits["run"], described):
        raise ParamsError(
            f"{path}: is of another run: {different}; use the parameters and data of that run, or {WRITE}"
        )
    weights = {str(step): str for step in range(1, described["steps"] + 1)}
    check_types(path, bits, {"first step": {str: str}, "weights": weights}, WRITE)
    return bits


def changes(before: dict, after: dict) -> str:
    """Return the entries that differ, by dotted name: "torch 2.13.0 → 2.14.0, threads 1 → 2"; "" if there are none."""
    found = differences(flatten(before), flatten(after))
    return ", ".join(f"{name} {value} → {other}" for name, value, other in found)


def common_operations(before: dict, found: dict) -> dict:
    """Return the digests `before` without the operations that this version of torch no longer calls."""
    operations = {name: known for name, known in before["first step"].items() if name in found["first step"]}
    return {**before, "first step": operations}

r"""Stage train: token files → data/models, metrics, curves.

    python src/train.py --train train.bin --validation validation.bin --tokenizer tokenizer \
        --models models --metrics metrics --plots plots

`train` is the whole run. A killed run continues from its checkpoints in .runs/<fingerprint>/ (lm.train.checkpoints).
"""

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

import torch
from torch import Tensor

from lm.core.errors import DivergedError, exit_with_status
from lm.core.files import output_lock
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.exact.threads import ThreadTuner
from lm.model import machine
from lm.model.causality import check_causality
from lm.train import checkpoints, preflight, ranks, step
from lm.train.checkpoints import CheckpointWriter
from lm.train.config import TrainRuntime, read_params, read_runtime
from lm.train.outputs import publish, write_curves, write_metrics, write_results, write_timing
from lm.train.progress import Progress, print_end, print_plan
from lm.train.ranks import SINGLE_PROCESS, World
from lm.train.run import Run, RunFiles, Training
from lm.train.stop import StopRequest


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flags of the stage."""

    files: RunFiles
    models: Path
    metrics: Path
    plots: Path
    until: int | None  # the step after which the run ends unfinished


def parse(argv: list[str]) -> Arguments:
    """Read the flags; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser("train.py", description="Train a model on token files.", allow_abbrev=False)
    for name, text in {
        "train": "token file for training",
        "validation": "token file for validation",
        "models": "folder to write",
        "metrics": "folder for train.json",
        "plots": "folder for training.csv and validation.csv",
    }.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer, for train.ngram_buckets")
    parser.add_argument("--runs", type=Path, help="folder of checkpoints (.runs of the repository)")
    parser.add_argument("--until", type=int, metavar="STEP", help="end after the checkpoint of this step, unfinished")
    flags = parser.parse_args(argv)
    files = RunFiles(flags.train, flags.validation, flags.tokenizer, flags.runs)
    return Arguments(files, flags.models, flags.metrics, flags.plots, flags.until)


@exit_with_status
def main(argv: list[str]) -> None:
    """Train as the flags say, or publish the results of a run that is already done."""
    arguments = parse(argv)
    inputs = StageInputs("train")
    runtime = read_runtime()
    machine.keep_freed_memory()
    with preflight.explain_out_of_memory():
        world = ranks.world_from_environment()
        if world.world_size > 1:
            run_rank(arguments, inputs, runtime, world)
        else:
            run_stage(arguments, inputs, runtime, argv)


def run_stage(arguments: Arguments, inputs: StageInputs, runtime: TrainRuntime, argv: list[str]) -> None:
    """Check the inputs, train in this process or in the ranks that it starts, and publish the results."""
    num_processes = runtime.num_processes
    planned = World(world_size=num_processes, local_world_size=num_processes)
    params = read_params()
    device = preflight.check_run(params, planned)
    run = Run.read(arguments.files, params)

    # One process at a time writes an output or a run folder.
    folder = run.folder
    inputs.check_unchanged()  # the fingerprint is that of the code that runs
    with output_lock(arguments.models), output_lock(folder, wait=True):
        checkpoints.prune_runs(folder.parent, folder, runtime.keep_fingerprints)
        if (folder / "done").exists():
            again = f"rm -r {shlex.quote(str(folder))} && dvc repro -f train"
            say(
                f"this run is already finished: its results are copied from {folder}, nothing is trained; "
                f"to train it again: {again}"
            )
        elif num_processes > 1:
            ranks.start_ranks(num_processes, [__file__, *argv], runtime.timeout_s)
        else:
            train(run, arguments, runtime, SINGLE_PROCESS, device)
        if arguments.until is None:
            inputs.check_unchanged()
            publish(folder / "done", arguments.models, arguments.metrics, arguments.plots)


def run_rank(arguments: Arguments, inputs: StageInputs, runtime: TrainRuntime, world: World) -> None:
    """Train as one of several ranks, which read no whole token file, take no lock and publish no results."""
    params = read_params()
    device = preflight.check_run(params, world)
    run = Run.read(arguments.files, params, is_verified=True)
    folder = run.folder
    inputs.check_unchanged()  # the fingerprint is that of the code that runs
    if (folder / "done").exists():
        if world.is_main:
            say(f"this run is already finished: `dvc repro` copies its results from {folder}")
        return
    with ranks.joined(world, device, runtime.timeout_s):
        train(run, arguments, runtime, world, device)


def train(run: Run, arguments: Arguments, runtime: TrainRuntime, world: World, device: torch.device) -> None:
    """Train to the end of the run and write its results to <folder>/done; raise Interrupted if asked to stop.

    With the flag --until it ends earlier, after the checkpoint of that step.
    """
    params = run.params
    torch.set_flush_denormal(False)  # a library may have turned it on for the process, which changes small numbers

    # Results in exact numerics have the same bits for any number of threads.
    threads = ThreadTuner(params.numerics, adapts=params.numerics == "exact" and world.world_size == 1)

    # Build the model, print the size of the run, and resume from the newest intact checkpoint.
    saved = run.load_checkpoint(world)
    training = run.start(world, device)
    print_plan(training, threads)
    training.resume(saved)

    # Start to read batches. Each is a function of the seed and the step.
    state = training.state
    steps = range(state.step, params.max_steps)
    batches = step.prefetch(training.windows, steps, device, step.rows_of_rank(world, params))

    # Start to count the time.
    retained = checkpoints.retained_steps(params, runtime.keep_checkpoints)
    state.measured = time.monotonic()
    last_save = state.measured
    last_save_s = 0.0
    with (
        StopRequest(ranks.parent_stage(), world.is_main) as stop,
        Progress(training.plan, state, params) as progress,
        CheckpointWriter(run.folder, retained, device) as writer,
    ):
        # Check that losses do not depend on later tokens, and validate the initial weights.
        if world.is_main:
            say("checking the model; code that was not compiled on this machine yet is compiled first")
        check_causality(state.model, run.validation, params.seq_len, params.micro_batch_size, training.dtype)
        if not state.history.validation:
            validate(training, arguments, progress)
        try:
            # A run that diverged does not continue.
            step.check_divergence(state, params)
            while state.step < params.max_steps:
                # Leave cores to other processes that are busy.
                threads.adapt()
                take_step(training, next(batches), progress)

                # Validate, and keep the weights if they are the best so far.
                if state.step % params.eval_every_steps == 0 or state.step == params.max_steps:
                    validate(training, arguments, progress)

                # Save a checkpoint if one is due, if it is retained, or if the run stops here. End if the previous one
                # could not be written.
                writer.check()
                interval_s = checkpoints.interval_s(runtime.checkpoint_every_s, last_save_s)
                due = time.monotonic() - last_save > interval_s
                stop_signal, due = world.all_reduce_max(stop.signal_number, int(due))
                is_last = state.step == arguments.until
                if stop_signal or due or is_last or state.step in retained:
                    seconds_before = state.seconds["saving"]
                    save_checkpoint(training, writer, waits=is_last or stop_signal > 0)
                    last_save = state.measured
                    last_save_s = state.seconds["saving"] - seconds_before
                if stop_signal:
                    raise stop.interrupted(state.step, stop_signal)
                if is_last:
                    return
        except DivergedError:
            save_checkpoint(training, writer, waits=True)  # it holds the best weights
            raise

    # Write the results, and delete the checkpoints that are not retained.
    write_results(training)
    if world.is_main:
        checkpoints.delete_checkpoints(run.folder, retained)
        print_end(state)


def take_step(training: Training, batch: tuple[Tensor, Tensor], progress: Progress) -> None:
    """Take a step with a batch, inputs and targets (B, T) int64. Raise DivergedError if the loss is not finite."""
    state = training.state
    params = training.run.params

    # Compute the gradients over all micro-batches and ranks, and clip them.
    loss, grad_norm = step.compute_gradients(state, batch, params, training.dtype)
    step.check_finite(loss, grad_norm, state, training.windows, params)

    # Update the weights at the learning rate of this step.
    lr = step.learning_rate(state.step, params)
    step.update_weights(state, lr)

    # Log the loss.
    progress.update(params.batch_tokens)
    step.log_step(state, loss, grad_norm, lr, params)


def validate(training: Training, arguments: Arguments, progress: Progress) -> None:
    """Score the validation windows, keep the best weights, and bring curves, metrics and display up to date."""
    run = training.run
    state = training.state
    state.count_seconds("training")
    loss = step.validation_loss(state, run.validation, run.params, training.dtype)
    step.record_validation(state, loss, run.params)
    state.history.digests.append(state.digest() if training.has_digests else "")
    state.count_seconds("validation")
    state.history.timing.append([state.history.validation[-1][1], *state.seconds.values()])
    if state.world.is_main:
        write_curves(arguments.plots, state.history)
        write_metrics(arguments.metrics, state, training.plan)
        write_timing(training)
    progress.show_validation()
    state.count_seconds("saving")


def save_checkpoint(training: Training, writer: CheckpointWriter, waits: bool) -> None:
    """Save the checkpoint of this step, and delete those that it replaces.

    All ranks return at the same time: when `writer.save` does or, with `waits`, when the checkpoint is on the disk.
    """
    state = training.state
    state.count_seconds("training")
    if state.world.is_main:
        writer.save(state.step, state.as_dict())
        if waits:
            writer.wait()
    state.world.all_reduce_max(0)  # wait for the main rank
    state.count_seconds("saving")

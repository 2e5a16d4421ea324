"""Stage train: token files → data/models, metrics, curves.

    python src/train.py --train train.bin --validation validation.bin --models models --metrics metrics --plots plots

`train` is the whole run. A killed run continues from its states in .runs/<fingerprint>/ (lm.train.checkpoints).
"""

import argparse
import dataclasses
import os
import shlex
import sys
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import torch

from lm.core.errors import DivergedError, IntegrityError, command
from lm.core.files import output_lock
from lm.core.params import read_section
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model, ModelConfig, ModelParams
from lm.model.threads import FreeCores
from lm.model.weights import load_initial
from lm.tokens.tokenfile import TokenFile, check_id_range, check_window_fits, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import checkpoints, distributed, launcher, measure, preflight, step
from lm.train.batches import prefetch
from lm.train.config import TrainParams, TrainRuntime
from lm.train.fingerprint import run_fingerprint
from lm.train.optimizers import build_optimizers
from lm.train.outputs import publish, write_curves, write_metrics, write_results, write_timing
from lm.train.progress import Progress, print_end
from lm.train.schedule import decay_begins, learning_rate
from lm.train.signals import StopRequest
from lm.train.state import TrainingState
from lm.train.world import World

PARAMS, PRESETS, RUNTIME = "params.yaml", "presets.yaml", "runtime.yaml"


@dataclasses.dataclass
class Run:
    """One training run: what it reads, what computes it, and, once it has started, its state."""

    paths: argparse.Namespace
    params: TrainParams
    runtime: TrainRuntime
    config: ModelConfig
    train: TokenFile
    validation: TokenFile
    initial: Gemma3Model | None  # None: weights are drawn from train.seed
    initial_sha256: str | None
    device: torch.device
    world: World
    folder: Path = dataclasses.field(init=False)  # .runs/<fingerprint>
    cores: FreeCores = dataclasses.field(init=False)
    dtype: torch.dtype = dataclasses.field(init=False)
    plan: preflight.Plan = dataclasses.field(init=False)
    windows: TokenWindows = dataclasses.field(init=False)
    state: TrainingState = dataclasses.field(init=False)
    saved: float = 0.0  # time.monotonic() of the last checkpoint


@command
def main(argv: list[str]) -> None:
    """Train as the flags say, or publish the results of a run that is already done."""
    parser = argparse.ArgumentParser("train.py", description="Train a model on token files.", allow_abbrev=False)
    for name in ("train", "validation", "models", "metrics", "plots"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    paths, runtime = parser.parse_args(argv), read_section(RUNTIME, "train", TrainRuntime)
    # Start the ranks of this machine, each with the same flags, unless this process is a rank.
    if runtime.num_processes > 1 and distributed.ranks_from_environment() is None:
        return launcher.start(runtime.num_processes, [__file__, *argv])
    if runtime.keep_freed_memory:
        machine.keep_freed_memory()
    with distributed.join(runtime.shard, runtime.timeout_s) as world, preflight.out_of_memory_in_words():
        # The other ranks wait until the main rank has its locks.
        if not world.is_main and not distributed.wait_for_main(world):
            return
        run = read_run(paths, runtime, world)
        if not world.is_main:
            return train(run)
        # One process at a time writes an output or a run folder.
        distributed.announce(world, "waits")
        with output_lock(paths.models), output_lock(run.folder, wait=True):
            distributed.announce(world, "holds")
            checkpoints.prune_runs(run.folder.parent, run.folder, runtime.keep_fingerprints)
            if not (run.folder / "done").exists():
                extend(run)
                train(run)
            else:
                print(
                    f"this run is already finished: its results are copied from {run.folder}, nothing is trained; "
                    f"to train it again: rm -r {shlex.quote(str(run.folder))} && dvc repro -f train"
                )
            publish(run.folder / "done", paths.models, paths.metrics, paths.plots)


def train(run: Run) -> None:
    """Train to the end of the run and write its results to <folder>/done; raise Interrupted if asked to stop."""
    params, world = run.params, run.world

    # Build the model, print the size and the time of the run, and resume from the newest intact checkpoint.
    start(run)
    resume(run)
    state, rows = run.state, step.rows_of_rank(world, params)
    batches = prefetch(run.windows, range(state.step, params.max_steps), run.device, rows)
    peak_flops = machine.matmul_peak_flops(run.device, run.dtype) * world.world_size
    run.saved = state.measured = time.monotonic()
    with (
        StopRequest(distributed.is_launched(world), world.is_main) as stop,
        Progress(run.plan, state, params, peak_flops) as progress,
    ):
        # Validate the initial weights.
        if not state.history.validation:
            validate(run, progress)
        try:
            # A run that diverged does not continue.
            step.check_divergence(state, params)
            while not step.is_finished(state, params):
                run.cores.adapt()

                # Compute the gradients over all micro-batches and ranks, and clip them.
                loss, grad_norm = step.compute_gradients(state, next(batches), params, run.dtype)
                step.check_finite(loss, grad_norm, state, run.windows, params)

                # Update the weights at the learning rate of this step.
                lr = learning_rate(state.step, params)
                step.update_weights(state, lr)

                # Log the loss.
                progress.update(params.batch_tokens)
                step.log_step(state, loss, grad_norm, lr, params)

                # Validate, and keep the weights if they are the best so far.
                if state.step % params.eval_every_steps == 0 or state.step == params.max_steps:
                    validate(run, progress)

                # Keep the state before the learning rate falls: a longer run continues from it.
                if state.step == decay_begins(params) and run.runtime.keep_states:
                    keep_stable_state(run)

                # Save a checkpoint if one is due, or if any rank is asked to stop.
                due = time.monotonic() - run.saved > run.runtime.checkpoint_every_s
                stop_signal, due = world.all_reduce_max(stop.signal_number, int(due))
                if stop_signal or due:
                    save_checkpoint(run)
                if stop_signal:
                    raise stop.interrupted(state.step, stop_signal)
        except DivergedError:
            save_checkpoint(run)  # it holds the best weights
            raise

    # Finish: write the results, and delete the checkpoints.
    finish(run)


def read_run(paths: argparse.Namespace, runtime: TrainRuntime, world: World) -> Run:
    """Read and check the parameters, then the data; find the folder of the run."""
    params, name = read_section(PARAMS, "train", TrainParams), read_section(PARAMS, "model.name", str)
    model_params = read_section(PRESETS, f"models.{name}", ModelParams)
    preflight.refuse_unequal_rows(params, world)
    preflight.check_lengths(PARAMS, params.seq_len, name, model_params.max_seq_len)
    device = machine.pick_device(world.local_rank if world.world_size > 1 else None, params.numerics)
    machine.refuse_emulation(params.dtype, device)
    train, validation = open_tokens(paths.train), open_tokens(paths.validation)
    if train.meta["tokenizer"] != validation.meta["tokenizer"]:
        both = f"{paths.train} and {paths.validation}"
        raise IntegrityError(f"{both} were made with different tokenizers; run `dvc repro`")
    for tokens in (train, validation):
        check_id_range(tokens)
    check_window_fits(validation, params.seq_len)
    config = model_params.config(train.vocab_size)
    initial, sha256 = load_initial(Path(params.init_from), config, train.meta["tokenizer"]["sha256"])
    run = Run(paths, params, runtime, config, train, validation, initial, sha256, device, world)
    run.folder = run_folder(run)
    return run


def run_folder(run: Run) -> Path:
    """Return .runs/<fingerprint> of the main repository, also when run in a copy for a queued experiment."""
    return Path(os.environ.get("DVC_ROOT", ".")) / ".runs" / fingerprint_of(run)


def fingerprint_of(run: Run, without: tuple[str, ...] = ()) -> str:
    """Return the fingerprint of the run, or of all runs that differ in nothing but the parameters `without`."""
    token_files = [run.train.path, run.validation.path]
    return run_fingerprint(run.params, run.config, run.initial_sha256, token_files, without)


def extend(run: Run) -> None:
    """Begin with the state that a run of another length had before its learning rate fell, if one was kept."""
    length_free = fingerprint_of(run, without=("max_tokens",))
    checkpoints.describe_run(run.folder, length_free, run.params.max_steps)
    checkpoints.extend(run.folder, length_free, decay_begins(run.params))


def start(run: Run) -> None:
    """Build model, optimizers and batches; print the size of the run. Raise EnvironmentFailure if it does not fit."""
    params, world = run.params, run.world
    rows = params.batch_size // world.world_size
    micro_batch_tokens = rows // step.num_micro_batches(rows, params) * params.seq_len
    num_shards = world.world_size if world.sharded else 1
    run.plan = preflight.Plan(params, run.config, len(run.train.ids), micro_batch_tokens, num_shards)
    if world.is_main:
        ranks = world.local_world_size if run.device.type == "cpu" else 1
        preflight.refuse_too_large(run.plan, machine.available_memory_bytes(run.device) // ranks)
    distributed.start_group(world, run.device)
    # Results in portable numerics have the same bits for any number of threads.
    run.cores = FreeCores(params.numerics == "portable" and world.world_size == 1)
    # The main rank chooses the dtype for all; a run that continues keeps its own.
    dtype, earlier = torch.float32, checkpoints.newest_dtype(run.folder)
    if world.is_main and params.numerics == "fast":
        dtype = machine.resolve_dtype(params.dtype, run.device, earlier)
    run.dtype = torch.bfloat16 if world.all_reduce_max(int(dtype == torch.bfloat16))[0] else torch.float32
    model = run.initial
    if model is None:
        model = Gemma3Model(run.config)
        model.init_weights(torch.Generator().manual_seed(params.seed))
    model.document_start_id = None if params.attend_across_documents else run.train.eot_id
    if params.compile:
        model.compile()
    world.place_model(model, run.device)
    optimizers = build_optimizers(model, params, run.dtype, world)
    run.state = TrainingState(model, optimizers, world)
    run.windows = TokenWindows(run.train.ids, params.seq_len, params.batch_size, params.seed)
    print_plan(run)


def print_plan(run: Run) -> None:
    """Measure a step and a validation on all ranks; print the size of the run, its time, and warnings."""
    world, seconds = run.world, measure.step_seconds(run.state, run.windows, run.params, run.dtype)
    validation_s = measure.validation_seconds(run.state, run.validation, run.params, run.dtype)
    if not world.is_main:
        return
    print("\n".join(run.plan.lines(seconds, validation_s)), flush=True)
    if world.world_size > 1:
        print(f"processes    {world.world_size}, {world.local_world_size} on this host", flush=True)
    messages = preflight.warnings(run.plan, run.params, run.config, run.plan.hours(seconds, validation_s))
    if run.device.type == "cpu" and world.world_size == 1:
        messages += run.cores.warnings()
    for message in messages:
        print(f"warning: {message}", file=sys.stderr, flush=True)


def resume(run: Run) -> None:
    """Load the newest state of the run's folder, if there is one; record a segment if what computes has changed."""
    state, world, folder = run.state, run.world, run.folder
    saved = checkpoints.load_newest_state(folder) if world.is_main else None
    (newest,) = world.all_reduce_max(-1 if saved is None else saved["step"])
    if not world.is_main and newest >= 0:
        saved = checkpoints.load_state(checkpoints.record_of(folder, newest))
    if saved is not None:
        try:
            state.restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"its newest state does not fit: {' '.join(str(error).split())}"
            raise IntegrityError(f"{folder}: {reason}; delete the folder to train from scratch") from None
        if world.is_main:
            print(f"resumed at step {state.step} from {folder}", flush=True)
    state.begin_segment(machine.bits_depend_on(run.device, run.dtype, run.params.numerics, world.world_size))


def validate(run: Run, progress: Progress) -> None:
    """Score the validation windows, keep the best weights, and bring curves, metrics and display up to date."""
    state = run.state
    run.state.count_seconds("training")
    step.record_validation(state, step.validation_loss(state, run.validation, run.params, run.dtype), run.params)
    state.history.digests.append(state.digest())
    run.state.count_seconds("validation")
    state.history.timing.append([state.history.validation[-1][1], *state.seconds.values()])
    if run.world.is_main:
        write_curves(run.paths.plots, state.history)
        write_metrics(run.paths.metrics, state, run.plan)
        write_timing(run.folder, state, machine.describe(run.device, run.dtype, run.world.world_size))
    if state.step in checkpoints.steps_to_keep(run.params, run.runtime.keep_states):
        saved = state.as_dict()
        if run.world.is_main:
            checkpoints.keep_state(run.folder, state.step, saved)
    progress.show_validation()
    run.state.count_seconds("saving")


def keep_stable_state(run: Run) -> None:
    """Keep the state of this step for longer runs; all ranks call it together."""
    saved, step = run.state.as_dict(), run.state.step
    megabytes = checkpoints.keep_state(run.folder, step, saved, "stable") if run.world.is_main else None
    if megabytes:
        print(f"kept the state of step {step} for longer runs: {megabytes:.1f} MB in {run.folder}", flush=True)


def save_checkpoint(run: Run) -> None:
    """Save the state of this step; return on every rank once it is on the disk."""
    run.state.count_seconds("training")
    saved = run.state.as_dict()
    if run.world.is_main:
        checkpoints.save_state(run.folder, run.state.step, saved)
    run.world.all_reduce_max(0)  # wait for the main rank
    run.state.count_seconds("saving")
    run.saved = run.state.measured


def finish(run: Run) -> None:
    """Write the results to <folder>/done, delete the checkpoints, and print the best validation loss."""
    state, params = run.state, run.params
    if not run.world.is_main:
        state.weights()  # all ranks gather the weights together
        return
    provenance = {
        "fingerprint": run.folder.name, "config": dataclasses.asdict(run.config),
        "eot_id": run.train.eot_id, "tokenizer_sha256": run.train.meta["tokenizer"]["sha256"],
        "data_sha256": {"train": run.train.meta["sha256"], "validation": run.validation.meta["sha256"]},
        "init_sha256": run.initial_sha256,
    }  # fmt: skip
    write_results(run.folder / "done", state, run.plan, params, provenance)
    for state_file in run.folder.glob("*state-*"):
        state_file.unlink()
    print_end(state, params)


if __name__ == "__main__":
    sys.exit(main())

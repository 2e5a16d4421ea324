r"""Stage train: token files → data/models, metrics, curves.

    python src/train.py --train train.bin --validation validation.bin --tokenizer tokenizer \
        --models models --metrics metrics --plots plots

`train` is the whole run. A killed run continues from its checkpoints in .runs/<fingerprint>/ (lm.train.checkpoints).
"""

import argparse
import dataclasses
import functools
import os
import shlex
import sys
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import torch

from lm.core.errors import DivergedError, IntegrityError, ParamsError, command
from lm.core.files import output_lock
from lm.core.params import read_section
from lm.model import device as machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.model.threads import ThreadTuner
from lm.model.weights import load_initial
from lm.tokens.tokenfile import TokenFile, check_id_range, check_tokenizer, check_window_fits, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import checkpoints, distributed, launcher, preflight, step
from lm.train.batches import prefetch
from lm.train.config import TrainParams, TrainRuntime
from lm.train.fingerprint import run_fingerprint
from lm.train.optimizers import build_optimizers
from lm.train.outputs import keep_weights, publish, write_curves, write_metrics, write_results, write_timing
from lm.train.progress import Progress, print_end
from lm.train.schedule import decay_begins, learning_rate
from lm.train.signals import StopRequest
from lm.train.spelling import Spelling
from lm.train.state import TrainingState
from lm.train.world import World

PARAMS, PRESETS, RUNTIME = "params.yaml", "presets.yaml", "runtime.yaml"


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What a run reads, after all checks: flags, parameters, token files, and the weights that it starts from."""

    paths: argparse.Namespace
    params: TrainParams
    runtime: TrainRuntime
    config: ModelConfig
    train: TokenFile
    validation: TokenFile
    initial: Gemma3Model | None  # None: weights are drawn from train.seed
    initial_sha256: str | None
    spelling: Spelling | None
    device: torch.device

    @functools.cached_property
    def folder(self) -> Path:
        """Return .runs/<fingerprint> of the main repository, also when run in a copy for a queued experiment."""
        return Path(os.environ.get("DVC_ROOT", ".")) / ".runs" / self.fingerprint()

    def fingerprint(self, without: tuple[str, ...] = ()) -> str:
        """Return the fingerprint of the run, or of all runs that differ in nothing but the parameters `without`."""
        token_files = [self.train.path, self.validation.path]
        return run_fingerprint(self.params, self.config, self.initial_sha256, token_files, without)

    def provenance(self) -> dict:
        """Return the entries of model.json that say what the model was made from."""
        return {
            "fingerprint": self.folder.name, "config": dataclasses.asdict(self.config),
            "eot_id": self.train.eot_id, "tokenizer_sha256": self.train.meta["tokenizer"]["sha256"],
            "data_sha256": {"train": self.train.meta["sha256"], "validation": self.validation.meta["sha256"]},
            "init_sha256": self.initial_sha256,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A run in progress: its state, which each step changes, and what stays the same."""

    inputs: Inputs
    plan: preflight.Plan
    windows: TokenWindows
    dtype: torch.dtype
    threads: ThreadTuner
    state: TrainingState


@command
def main(argv: list[str]) -> None:
    """Train as the flags say, or publish the results of a run that is already done."""
    parser = argparse.ArgumentParser("train.py", description="Train a model on token files.", allow_abbrev=False)
    for name, text in {
        "train": "token file for training",
        "validation": "token file for validation",
        "models": "folder to write",
        "metrics": "folder for train.json",
        "plots": "folder for training.csv and validation.csv",
    }.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer, for train.spelling_buckets")
    paths, runtime = parser.parse_args(argv), read_section(RUNTIME, "train", TrainRuntime)
    # Start the ranks of this machine, each with the same flags, unless this process is a rank.
    if runtime.num_processes > 1 and distributed.ranks_from_environment() is None:
        return launcher.start(runtime.num_processes, [__file__, *argv])
    if runtime.keep_freed_memory:
        machine.keep_freed_memory()
    with distributed.join(runtime.shard, runtime.timeout_s) as world, preflight.explain_out_of_memory():
        # The other ranks wait until the main rank has its locks.
        if not world.is_main and not distributed.wait_for_main(world):
            return
        inputs = read_inputs(paths, runtime, world)
        if not world.is_main:
            return train(inputs, world)
        # One process at a time writes an output or a run folder.
        distributed.announce(world, "waits")
        folder = inputs.folder
        with output_lock(paths.models), output_lock(folder, wait=True):
            distributed.announce(world, "holds")
            checkpoints.prune_runs(folder.parent, folder, runtime.keep_fingerprints)
            if not (folder / "done").exists():
                extend(inputs)
                train(inputs, world)
            else:
                print(
                    f"this run is already finished: its results are copied from {folder}, nothing is trained; "
                    f"to train it again: rm -r {shlex.quote(str(folder))} && dvc repro -f train"
                )
            publish(folder / "done", paths.models, paths.metrics, paths.plots)


def train(inputs: Inputs, world: World) -> None:
    """Train to the end of the run and write its results to <folder>/done; raise Interrupted if asked to stop."""
    params, runtime = inputs.params, inputs.runtime
    torch.set_flush_denormal(False)  # a library may have turned it on for the process, which changes small numbers

    # Build the model, print the size of the run, and resume from the newest intact checkpoint.
    training = build(inputs, world)
    print_plan(training)
    resume(training)

    # Begin to read batches: a function of the seed and the step alone.
    state, dtype, windows = training.state, training.dtype, training.windows
    batches = prefetch(windows, range(state.step, params.max_steps), inputs.device, step.rows_of_rank(world, params))
    peak_flops = machine.matmul_peak_flops(inputs.device, dtype) * world.world_size
    state.measured = time.monotonic()  # from here on the time counts; it is also that of the last checkpoint
    last_save = state.measured
    with (
        StopRequest(distributed.is_launched(world), world.is_main) as stop,
        Progress(training.plan, state, params, peak_flops) as progress,
    ):
        # Validate the initial weights.
        if not state.history.validation:
            validate(training, progress)
        keep_chosen_weights(training)
        try:
            # A run that diverged does not continue.
            step.check_divergence(state, params)
            while not step.is_finished(state, params):
                # Leave cores to other processes that are busy.
                training.threads.adapt()

                # Compute the gradients over all micro-batches and ranks, and clip them.
                loss, grad_norm = step.compute_gradients(state, next(batches), params, dtype)
                step.check_finite(loss, grad_norm, state, windows, params)

                # Update the weights at the learning rate of this step.
                lr = learning_rate(state.step, params)
                step.update_weights(state, lr)

                # Log the loss.
                progress.update(params.batch_tokens)
                step.log_step(state, loss, grad_norm, lr, params)

                # Validate, and keep the weights if they are the best so far.
                if state.step % params.eval_every_steps == 0 or state.step == params.max_steps:
                    validate(training, progress)

                # Keep the weights of the steps of train.keep_checkpoints.
                keep_chosen_weights(training)

                # Keep a checkpoint before the learning rate falls: a longer run continues from it.
                if state.step == decay_begins(params) and runtime.keep_resumable:
                    keep_stable_checkpoint(training)

                # Save a checkpoint if one is due, or if any rank is asked to stop.
                due = time.monotonic() - last_save > runtime.checkpoint_every_s
                stop_signal, due = world.all_reduce_max(stop.signal_number, int(due))
                if stop_signal or due:
                    save_checkpoint(training)
                    last_save = state.measured
                if stop_signal:
                    raise stop.interrupted(state.step, stop_signal)
        except DivergedError:
            save_checkpoint(training)  # it holds the best weights
            raise

    # Finish: write the results, and delete the checkpoints.
    finish(training)


def read_inputs(paths: argparse.Namespace, runtime: TrainRuntime, world: World) -> Inputs:
    """Read and check the parameters, then the data."""
    params, name = read_section(PARAMS, "train", TrainParams), read_section(PARAMS, "model.name", str)
    model_params = read_section(PRESETS, f"models.{name}", ModelParams)
    preflight.refuse_sharded_muon(params, world)
    preflight.refuse_unequal_rows(params, world)
    preflight.check_lengths(PARAMS, params.seq_len, name, model_params.max_seq_len)
    device = machine.pick_device(world.local_rank if world.world_size > 1 else None, params.numerics)
    machine.refuse_emulation(params.dtype, device)
    # The main rank reads the token files to check them; the others, which start after it, only map them.
    is_verified = not world.is_main
    train, validation = open_tokens(paths.train, is_verified), open_tokens(paths.validation, is_verified)
    if train.meta["tokenizer"] != validation.meta["tokenizer"]:
        both = f"{paths.train} and {paths.validation}"
        raise IntegrityError(f"{both} were made with different tokenizers; run `dvc repro`")
    if not is_verified:
        for tokens in (train, validation):
            check_id_range(tokens)
    check_window_fits(validation, params.seq_len)
    config = model_params.config(train.vocab_size)
    initial, sha256 = load_initial(Path(params.init_from), config, train.meta["tokenizer"]["sha256"], params.numerics)
    spelling = read_spelling(paths.tokenizer, params.spelling_buckets, train)
    return Inputs(paths, params, runtime, config, train, validation, initial, sha256, spelling, device)


def read_spelling(folder: Path | None, num_buckets: int | None, train: TokenFile) -> Spelling | None:
    """Read from a tokenizer's folder how the tokens of a training file are spelled; None if there are no buckets."""
    if num_buckets is None:
        return None
    if folder is None:
        raise ParamsError(f"{PARAMS}: train.spelling_buckets is {num_buckets}, needed: --tokenizer, or null")
    from lm.tokenizer.load import load_tokenizer  # slow to import, and not always needed

    tokenizer = load_tokenizer(folder)
    check_tokenizer(train, tokenizer.sha256)
    return Spelling(tokenizer.token_texts, train.vocab_size, num_buckets)


def extend(inputs: Inputs) -> None:
    """Begin with the checkpoint that a run of another length had before its learning rate fell, if one was kept."""
    length_free = inputs.fingerprint(without=("max_tokens", "keep_checkpoints"))
    checkpoints.describe_run(inputs.folder, length_free, inputs.params.max_steps)
    checkpoints.extend(inputs.folder, length_free, decay_begins(inputs.params), inputs.params.kept_steps)


def build(inputs: Inputs, world: World) -> Training:
    """Build model, optimizers and batches; raise EnvironmentFailure if they do not fit into memory."""
    params, device = inputs.params, inputs.device

    # Refuse a run that does not fit before it takes memory.
    rows = params.batch_size // world.world_size
    micro_batch_tokens = rows // step.num_micro_batches(rows, params) * params.seq_len
    num_shards = world.world_size if world.sharded else 1
    plan = preflight.Plan(params, inputs.config, len(inputs.train.ids), micro_batch_tokens, num_shards)
    if world.is_main:
        ranks = world.local_world_size if device.type == "cpu" else 1
        preflight.refuse_too_large(plan, machine.available_memory_bytes(device) // ranks)
    distributed.start_group(world, device)

    # Results in exact numerics have the same bits for any number of threads.
    threads = ThreadTuner(params.numerics == "exact" and world.world_size == 1)

    # The main rank chooses the dtype for all; a run that continues keeps its own.
    dtype, earlier = torch.float32, checkpoints.newest_dtype(inputs.folder)
    if world.is_main and params.numerics == "fast":
        dtype = machine.resolve_dtype(params.dtype, device, earlier)
    dtype = torch.bfloat16 if world.all_reduce_max(int(dtype == torch.bfloat16))[0] else torch.float32

    # Start from the given weights, or draw them from the seed.
    model = inputs.initial
    if model is None:
        model = Gemma3Model(inputs.config, params.numerics)
        model.init_weights(torch.Generator().manual_seed(params.seed))
    model.document_start_id = None if params.attend_across_documents else inputs.train.eot_id
    if params.sampled_vocab_size is not None:
        model.entry_weights = step.entry_weights(inputs.train.ids, inputs.config.vocab_size)
    if params.compile:
        model.compile()
    world.place_model(model, device)
    state = TrainingState(model, build_optimizers(model, params, dtype, world, inputs.spelling), world)
    windows = TokenWindows(inputs.train.ids, params.seq_len, params.batch_size, params.seed)
    return Training(inputs, plan, windows, dtype, threads, state)


def print_plan(training: Training) -> None:
    """Print the size of the run and warnings, on the main rank."""
    inputs, plan, world = training.inputs, training.plan, training.state.world
    if not world.is_main:
        return
    print("\n".join(plan.lines()), flush=True)
    if world.world_size > 1:
        print(f"processes    {world.world_size}, {world.local_world_size} on this host", flush=True)
    messages = preflight.warnings(plan, inputs.params, inputs.config)
    for message in messages + training.threads.warnings():
        print(f"warning: {message}", file=sys.stderr, flush=True)


def resume(training: Training) -> None:
    """Load the newest checkpoint of the run's folder, if there is one; record a segment if the hardware has changed."""
    inputs, state, world, folder = training.inputs, training.state, training.state.world, training.inputs.folder
    saved = checkpoints.load_newest_checkpoint(folder) if world.is_main else None
    (newest,) = world.all_reduce_max(-1 if saved is None else saved["step"])
    if not world.is_main and newest >= 0:
        saved = checkpoints.load_checkpoint(checkpoints.record_of(folder, newest))
    if saved is not None:
        try:
            state.restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"its newest checkpoint does not fit: {' '.join(str(error).split())}"
            raise IntegrityError(f"{folder}: {reason}; delete the folder to train from scratch") from None
        if world.is_main:
            print(f"resumed at step {state.step} from {folder}", flush=True)
    numerics, sharded = inputs.params.numerics, world.sharded
    here = machine.numerics_identity(inputs.device, training.dtype, numerics, world.world_size, sharded)
    state.begin_segment(here)


def validate(training: Training, progress: Progress) -> None:
    """Score the validation windows, keep the best weights, and bring curves, metrics and display up to date."""
    inputs, state, params = training.inputs, training.state, training.inputs.params
    state.count_seconds("training")
    step.record_validation(state, step.validation_loss(state, inputs.validation, params, training.dtype), params)
    state.history.digests.append(state.digest())
    state.count_seconds("validation")
    state.history.timing.append([state.history.validation[-1][1], *state.seconds.values()])
    if state.world.is_main:
        write_curves(inputs.paths.plots, state.history)
        write_metrics(inputs.paths.metrics, state, training.plan)
        computed_on = machine.describe(inputs.device, training.dtype, state.world.world_size, state.world.sharded)
        write_timing(inputs.folder, state, computed_on)
    if state.step in checkpoints.steps_to_keep(params, inputs.runtime.keep_resumable):
        saved = state.as_dict()
        if state.world.is_main:
            checkpoints.keep_checkpoint(inputs.folder, state.step, saved)
    progress.show_validation()
    state.count_seconds("saving")


def keep_chosen_weights(training: Training) -> None:
    """Keep the weights of this step if train.keep_checkpoints chose it; all ranks call it together."""
    inputs, state, params = training.inputs, training.state, training.inputs.params
    if state.step in params.kept_steps:
        state.count_seconds("training")
        weights = state.weights()
        if state.world.is_main:
            keep_weights(inputs.folder, state, weights, params, inputs.provenance())
        state.count_seconds("saving")


def keep_stable_checkpoint(training: Training) -> None:
    """Keep the checkpoint of this step for longer runs; all ranks call it together."""
    state, folder = training.state, training.inputs.folder
    saved = state.as_dict()
    megabytes = checkpoints.keep_checkpoint(folder, state.step, saved, "stable") if state.world.is_main else None
    if megabytes:
        print(f"kept the checkpoint of step {state.step} for longer runs: {megabytes:.1f} MB in {folder}", flush=True)


def save_checkpoint(training: Training) -> None:
    """Save the checkpoint of this step; return on every rank once it is on the disk."""
    state = training.state
    state.count_seconds("training")
    saved = state.as_dict()
    if state.world.is_main:
        checkpoints.save_checkpoint(training.inputs.folder, state.step, saved)
    state.world.all_reduce_max(0)  # wait for the main rank
    state.count_seconds("saving")


def finish(training: Training) -> None:
    """Write the results to <folder>/done, delete the checkpoints, and print the best validation loss."""
    inputs, state = training.inputs, training.state
    if not state.world.is_main:
        state.weights()  # all ranks gather the weights together
        return
    write_results(inputs.folder / "done", state, training.plan, inputs.params, inputs.provenance())
    for checkpoint in inputs.folder.glob("*checkpoint-*"):
        checkpoint.unlink()
    print_end(state, inputs.params)


if __name__ == "__main__":
    sys.exit(main())

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

from lm.core.errors import DivergedError, IntegrityError, ParamsError, exit_with_status
from lm.core.files import output_lock
from lm.core.messages import say
from lm.core.params import read_section
from lm.exact.threads import ThreadTuner
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import load_initial
from lm.tokens.tokenfile import TokenFile, check_id_range, check_tokenizer, check_window_fits, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import checkpoints, launcher, preflight, ranks, step
from lm.train.checkpoints import Checkpoint, CheckpointWriter
from lm.train.config import TrainParams, TrainRuntime
from lm.train.fingerprint import run_fingerprint
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.outputs import keep_weights, publish, write_curves, write_metrics, write_results, write_timing
from lm.train.progress import Progress, print_end, shows_bar
from lm.train.ranks import SINGLE_PROCESS, World
from lm.train.state import TrainingState
from lm.train.stop import StopRequest

SAVES_PER_INTERVAL = 50  # times that a checkpoint could be saved between two, so that saving takes 2 % of a run
PARAMS = "params.yaml"
PRESETS = "presets.yaml"
RUNTIME = "runtime.yaml"


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
    ngrams: NgramEmbeddings | None
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
            "fingerprint": self.folder.name,
            "config": dataclasses.asdict(self.config),
            "eot_id": self.train.eot_id,
            "tokenizer_sha256": self.train.meta["tokenizer"]["sha256"],
            "data_sha256": {"train": self.train.meta["sha256"], "validation": self.validation.meta["sha256"]},
            "init_sha256": self.initial_sha256,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A run in progress: its state, which each step changes, and what stays the same."""

    inputs: Inputs
    plan: preflight.Plan
    windows: TokenWindows
    dtype: torch.dtype
    threads: ThreadTuner
    state: TrainingState
    warnings: list[str]  # of the memory that the run needs


@exit_with_status
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
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer, for train.ngram_buckets")
    parser.add_argument("--until", type=int, metavar="STEP", help="end after the checkpoint of this step, unfinished")
    paths = parser.parse_args(argv)
    runtime = read_section(RUNTIME, "train", TrainRuntime)
    if runtime.keep_freed_memory:
        machine.keep_freed_memory()
    with preflight.explain_out_of_memory():
        world = ranks.world_from_environment(runtime.shard)
        if world.world_size > 1:
            run_rank(paths, runtime, world)
        else:
            run_stage(paths, runtime, argv)


def run_stage(paths: argparse.Namespace, runtime: TrainRuntime, argv: list[str]) -> None:
    """Check the inputs, train in this process or in the ranks that it starts, and publish the results."""
    sharded = runtime.shard and runtime.num_processes > 1
    planned = World(world_size=runtime.num_processes, local_world_size=runtime.num_processes, sharded=sharded)
    inputs = read_inputs(paths, runtime, planned)

    # One process at a time writes an output or a run folder.
    folder = inputs.folder
    with output_lock(paths.models), output_lock(folder, wait=True):
        checkpoints.prune_runs(folder.parent, folder, runtime.keep_fingerprints)
        if (folder / "done").exists():
            again = f"rm -r {shlex.quote(str(folder))} && dvc repro -f train"
            say(
                f"this run is already finished: its results are copied from {folder}, nothing is trained; "
                f"to train it again: {again}"
            )
        elif runtime.num_processes > 1:
            launcher.start(runtime.num_processes, [__file__, *argv])
        else:
            train(inputs, SINGLE_PROCESS)
        if paths.until is None:
            publish(folder / "done", paths.models, paths.metrics, paths.plots)


def run_rank(paths: argparse.Namespace, runtime: TrainRuntime, world: World) -> None:
    """Train as one of several ranks; they neither read whole token files, nor take locks, nor publish results."""
    if launcher.is_rank_of_launcher():
        launcher.stop_with_launcher()
    inputs = read_inputs(paths, runtime, world, is_verified=True)
    if (inputs.folder / "done").exists():
        if world.is_main:
            say(f"this run is already finished: `dvc repro` copies its results from {inputs.folder}")
        return
    with ranks.joined(world, inputs.device, runtime.timeout_s):
        train(inputs, world)


def train(inputs: Inputs, world: World) -> None:
    """Train to the end of the run and write its results to <folder>/done; raise Interrupted if asked to stop.

    With the flag --until it ends earlier, after the checkpoint of that step.
    """
    params = inputs.params
    runtime = inputs.runtime
    torch.set_flush_denormal(False)  # a library may have turned it on for the process, which changes small numbers

    # Build the model, print the size of the run, and resume from the newest intact checkpoint.
    saved = load_checkpoint(inputs, world)
    training = build(inputs, world, saved)
    print_plan(training)
    resume(training, saved)

    # Begin to read batches: a function of the seed and the step alone.
    state = training.state
    dtype = training.dtype
    windows = training.windows
    batches = step.prefetch(
        windows, range(state.step, params.max_steps), inputs.device, step.rows_of_rank(world, params)
    )

    # Measure the peak speed, which only a bar shows.
    peak_flops = None
    if shows_bar(world):
        peak_flops = machine.matmul_peak_flops(inputs.device, dtype) * world.world_size

    # Count the time, and show the run.
    staying = checkpoints.staying_steps(params, runtime.keep_checkpoints)
    state.measured = time.monotonic()  # from here on the time counts; it is also that of the last checkpoint
    last_save = state.measured
    last_save_s = 0.0
    with (
        StopRequest(launcher.is_rank_of_launcher(), world.is_main) as stop,
        Progress(training.plan, state, params, peak_flops) as progress,
        checkpoint_writer(training, staying) as writer,
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
                lr = step.learning_rate(state.step, params)
                step.update_weights(state, lr)

                # Log the loss.
                progress.update(params.batch_tokens)
                step.log_step(state, loss, grad_norm, lr, params)

                # Validate, and keep the weights if they are the best so far.
                if state.step % params.eval_every_steps == 0 or state.step == params.max_steps:
                    validate(training, progress)

                # Keep the weights of the steps of train.keep_weights_at.
                keep_chosen_weights(training)

                # Save a checkpoint if it is to stay, if one is due, or if the run stops here. End if the one before
                # could not be written.
                writer.check()
                interval_s = checkpoint_interval_s(runtime.checkpoint_every_s, last_save_s)
                due = time.monotonic() - last_save > interval_s
                stop_signal, due = world.all_reduce_max(stop.signal_number, int(due))
                is_last = state.step == inputs.paths.until
                if stop_signal or due or is_last or state.step in staying:
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

    # Finish: write the results, and delete the checkpoints.
    finish(training)


def checkpoint_interval_s(every_s: float, last_save_s: float) -> float:
    """Return the seconds from one checkpoint to the next, 0: after every step; longer where saving takes long."""
    return max(every_s, SAVES_PER_INTERVAL * last_save_s) if every_s else 0.0


def read_inputs(paths: argparse.Namespace, runtime: TrainRuntime, world: World, is_verified: bool = False) -> Inputs:
    """Read and check the parameters, then the files.

    is_verified: the process that starts the ranks has read the token files from end to end; this one only maps them.
    """
    # The parameters, and what must fit together.
    params = read_section(PARAMS, "train", TrainParams)
    name = read_section(PARAMS, "model.name", str)
    model_params = read_section(PRESETS, f"models.{name}", ModelParams)
    preflight.reject_sharded_muon(params, world)
    preflight.reject_unequal_rows(params, world)
    preflight.reject_missing_compiler(params)
    preflight.check_lengths(PARAMS, params.seq_len, name, model_params.max_seq_len)

    # The device of this process.
    device = machine.read_device(world.local_rank if world.world_size > 1 else None)
    machine.reject_emulation(params.dtype, device)

    # The token files.
    train = open_tokens(paths.train, is_verified)
    validation = open_tokens(paths.validation, is_verified)
    if train.meta["tokenizer"] != validation.meta["tokenizer"]:
        both = f"{paths.train} and {paths.validation}"
        raise IntegrityError(f"{both} were made with different tokenizers; run `dvc repro`")
    if not is_verified:
        for tokens in (train, validation):
            check_id_range(tokens)
    for tokens in (train, validation):
        check_window_fits(tokens, params.seq_len)

    # What the run starts from.
    config = model_params.config(train.vocab_size)
    tokenizer_sha256 = train.meta["tokenizer"]["sha256"]
    initial, initial_sha256 = load_initial(Path(params.init_from), config, tokenizer_sha256, params.numerics)
    ngrams = read_ngrams(paths.tokenizer, params.ngram_buckets, train)
    return Inputs(paths, params, runtime, config, train, validation, initial, initial_sha256, ngrams, device)


def read_ngrams(folder: Path | None, num_buckets: int | None, train: TokenFile) -> NgramEmbeddings | None:
    """Return the n-gram embeddings for the tokens of a training file, or None if there are no buckets."""
    if num_buckets is None:
        return None
    if folder is None:
        raise ParamsError(
            f"{PARAMS}: train.ngram_buckets is {num_buckets}; it must be null, or give the flag --tokenizer"
        )
    from lm.tokenizer.load import load_tokenizer  # slow to import, and not always needed

    tokenizer = load_tokenizer(folder)
    check_tokenizer(train, tokenizer.sha256)
    return NgramEmbeddings(tokenizer.token_texts, train.vocab_size, num_buckets)


def load_checkpoint(inputs: Inputs, world: World) -> dict | None:
    """Return the newest intact state of the run on all ranks, or None; a new run may extend one of another length."""
    folder = inputs.folder
    saved = None
    if world.is_main:
        length_free = inputs.fingerprint(without=("max_tokens", "keep_weights_at"))
        checkpoints.describe_run(folder, length_free, inputs.params)
        checkpoints.extend(folder, length_free, inputs.params)
        saved = checkpoints.load_newest_checkpoint(folder)
    (newest,) = world.all_reduce_max(-1 if saved is None else saved["step"])
    if newest >= 0 and not world.is_main:
        saved = checkpoints.load_checkpoint(Checkpoint(folder, newest), is_verified=True)
    return saved


def build(inputs: Inputs, world: World, saved: dict | None) -> Training:
    """Build model, optimizers and batches; raise EnvironmentFailure if they do not fit into memory.

    saved: the state that the run continues from, if any.
    """
    params = inputs.params
    device = inputs.device

    # Results in exact numerics have the same bits for any number of threads.
    threads = ThreadTuner(params.numerics, adapts=params.numerics == "exact" and world.world_size == 1)

    # The main rank chooses the dtype for all; a run that continues keeps its own.
    dtype = torch.float32
    if world.is_main and params.numerics == "fast":
        segments = saved["segments"] if saved else []
        dtype = machine.resolve_dtype(params.dtype, device, segments[-1]["dtype"] if segments else None)
    (is_bfloat16,) = world.all_reduce_max(int(dtype == torch.bfloat16))
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32

    # Reject a run that does not fit before it takes memory.
    rows = params.batch_size // world.world_size
    micro_batch_tokens = rows // step.num_micro_batches(rows, params) * params.seq_len
    num_shards = world.world_size if world.sharded else 1
    plan = preflight.Plan(
        params, inputs.config, len(inputs.train.ids), micro_batch_tokens, num_shards, device.type, dtype
    )
    warnings = []
    if world.is_main:
        sharing = world.local_world_size if device.type == "cpu" else 1
        free_bytes = machine.available_memory_bytes(device) // sharing
        warnings = preflight.check_memory(plan, device.type, free_bytes)

    # Start from the given weights, or draw them from the seed.
    model = inputs.initial
    if model is None:
        model = Gemma3Model(inputs.config, params.numerics)
        model.init_weights(torch.Generator().manual_seed(params.seed))
    model.document_start_id = None if params.attend_across_documents else inputs.train.eot_id
    if params.sampled_vocab_size is not None:
        model.sampling_weights = step.sampling_weights(inputs.train.ids, inputs.config.vocab_size)
    if params.compile:
        model.compile()
    world.place_model(model, device, dtype)
    state = TrainingState(model, build_optimizers(model, params, dtype, world, inputs.ngrams), world)
    windows = TokenWindows(inputs.train.ids, params.seq_len, params.batch_size, params.seed)
    return Training(inputs, plan, windows, dtype, threads, state, warnings)


def print_plan(training: Training) -> None:
    """Print the size of the run and warnings, on the main rank."""
    inputs = training.inputs
    plan = training.plan
    world = training.state.world
    if not world.is_main:
        return
    device = machine.describe_device(inputs.device, training.threads.threads)
    say("\n".join([f"device       {device}", *plan.lines()]))
    if world.world_size > 1:
        say(f"processes    {world.world_size}, {world.local_world_size} on this host")
    messages = preflight.warnings(plan, inputs.params, inputs.config)
    for message in messages + training.warnings + training.threads.warnings():
        say(f"warning: {message}", file=sys.stderr)


def resume(training: Training, saved: dict | None) -> None:
    """Continue from a saved state, if there is one; record a segment if the hardware has changed."""
    inputs = training.inputs
    state = training.state
    world = training.state.world
    if saved is not None:
        try:
            state.restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"its newest checkpoint does not fit: {' '.join(str(error).split())}"
            raise IntegrityError(f"{inputs.folder}: {reason}; delete the folder to train from scratch") from None
        if world.is_main:
            say(f"resumed at step {state.step} from {inputs.folder}")
    here = machine.computed_on(inputs.device, training.dtype, inputs.params.numerics, world.world_size, world.sharded)
    state.record_machine(here)


def validate(training: Training, progress: Progress) -> None:
    """Score the validation windows, keep the best weights, and bring curves, metrics and display up to date."""
    inputs = training.inputs
    state = training.state
    params = training.inputs.params
    state.count_seconds("training")
    step.record_validation(state, step.validation_loss(state, inputs.validation, params, training.dtype), params)
    # In fast numerics on a GPU nothing promises equal bits, and a digest would copy the whole state from it.
    has_digest = params.numerics == "exact" or inputs.device.type == "cpu"
    state.history.digests.append(state.digest() if has_digest else "")
    state.count_seconds("validation")
    state.history.timing.append([state.history.validation[-1][1], *state.seconds.values()])
    if state.world.is_main:
        write_curves(inputs.paths.plots, state.history)
        write_metrics(inputs.paths.metrics, state, training.plan)
        here = machine.describe(inputs.device, training.dtype, state.world.world_size, state.world.sharded)
        write_timing(inputs.folder, state, here)
    progress.show_validation()
    state.count_seconds("saving")


def keep_chosen_weights(training: Training) -> None:
    """Keep the weights of this step if train.keep_weights_at chose it; all ranks call it together."""
    inputs = training.inputs
    state = training.state
    params = training.inputs.params
    if state.step in params.kept_weights_steps:
        state.count_seconds("training")
        weights = state.weights()
        if state.world.is_main:
            keep_weights(inputs.folder, state, weights, params, inputs.provenance())
        state.count_seconds("saving")


def checkpoint_writer(training: Training, staying: set[int]) -> CheckpointWriter:
    """Return the writer of the run's checkpoints; with a GPU it writes while training continues.

    On a CPU a thread would take a core from training, and its copy of the state memory, to gain less than 1 % of the
    time of the default run.
    """
    inputs = training.inputs
    return CheckpointWriter(inputs.folder, staying, beside_training=inputs.device.type != "cpu")


def save_checkpoint(training: Training, writer: CheckpointWriter, waits: bool) -> None:
    """Save the checkpoint of this step, and delete those that it replaces.

    Return on every rank as `writer.save` does; if it `waits`, once the checkpoint is on the disk.
    """
    state = training.state
    state.count_seconds("training")
    saved = state.as_dict()
    if state.world.is_main:
        writer.save(state.step, saved)
        if waits:
            writer.wait()
    state.world.all_reduce_max(0)  # wait for the main rank
    state.count_seconds("saving")


def finish(training: Training) -> None:
    """Write the results to <folder>/done, delete checkpoints that do not stay, and print the best validation loss."""
    inputs = training.inputs
    state = training.state
    if not state.world.is_main:
        state.weights()  # all ranks gather the weights together
        return
    write_results(inputs.folder / "done", state, training.plan, inputs.params, inputs.provenance())
    staying = checkpoints.staying_steps(inputs.params, inputs.runtime.keep_checkpoints)
    checkpoints.delete_checkpoints(inputs.folder, staying)
    print_end(state, inputs.params)


if __name__ == "__main__":
    sys.exit(main())

"""Stage train: token files → data/models, metrics, curves.

    python src/train.py data/processed_datasets/train.bin data/processed_datasets/validation.bin \
        data/models metrics plots

Work in progress lives in .runs/<fingerprint>/, so a killed run goes on where it stopped and a
changed parameter, input or line of code begins a run of its own (README, "Stop and go on").
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from lm import checkpoint, machine, preflight
from lm.errors import DataError, ParamsError, command
from lm.figure import draw_training
from lm.files import atomic_folder, output_lock, sha256_file, write_csv, write_json
from lm.model import Gemma3Model, ModelConfig, ModelParams, count_parameters, flops_per_token
from lm.optim import build_optimizers
from lm.params import read_section, read_yaml
from lm.score import score_tokens
from lm.stopping import StopRequest
from lm.tokenfile import TokenFile, check_id_range, open_tokens, sidecar_path
from lm.training import TrainingState, seconds_per_step, train_steps, validate
from lm.windows import TokenWindows

PARAMS, RUNTIME, PIPELINE = "params.yaml", "runtime.yaml", "dvc.yaml"


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The section `train` of params.yaml; tokens are counted, learning rates are per optimizer step."""

    seq_len: int
    batch_tokens: int
    micro_batch_tokens: int
    max_tokens: int
    optimizer: Literal["muon", "adamw"]
    peak_lr: float
    min_lr: float
    embedding_lr_factor: float
    warmup_steps: int
    schedule: Literal["cosine", "stable_decay"]
    decay_share: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    dtype: Literal["float32", "bfloat16"]
    compile: bool
    seed: int
    log_every_tokens: int
    eval_every_tokens: int
    eval_tokens: int

    def __post_init__(self):
        for name in ("seq_len", "batch_tokens", "micro_batch_tokens", "log_every_tokens", "eval_every_tokens", "eval_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needed: at least 1")
        if self.micro_batch_tokens % self.seq_len:
            raise ValueError(
                f"micro_batch_tokens is {self.micro_batch_tokens}, needed: a multiple of seq_len {self.seq_len}"
            )
        if self.batch_tokens % self.micro_batch_tokens:
            raise ValueError(
                f"batch_tokens is {self.batch_tokens}, needed: a multiple of micro_batch_tokens {self.micro_batch_tokens}"
            )
        if self.max_tokens < self.batch_tokens:
            raise ValueError(f"max_tokens is {self.max_tokens}, needed: at least batch_tokens {self.batch_tokens}")
        if self.peak_lr <= 0:
            raise ValueError(f"peak_lr is {self.peak_lr}, needed: above 0")
        if not 0 <= self.min_lr <= self.peak_lr:
            raise ValueError(f"min_lr is {self.min_lr}, needed: from 0 to peak_lr {self.peak_lr}")
        if not 0 <= self.warmup_steps < self.max_steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}, needed: fewer than the run's {self.max_steps} steps")
        if not 0 < self.decay_share <= 1:
            raise ValueError(f"decay_share is {self.decay_share}, needed: above 0, at most 1")
        if self.grad_clip <= 0 or self.embedding_lr_factor <= 0 or self.weight_decay < 0:
            raise ValueError("grad_clip, embedding_lr_factor or weight_decay is out of range, needed: above 0, above 0, 0 or more")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1, beta2 is {self.beta1}, {self.beta2}, needed: from 0 to below 1")

    @property
    def max_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.max_tokens // self.batch_tokens

    @property
    def batch_size(self) -> int:
        """Sequences in an optimizer step."""
        return self.batch_tokens // self.seq_len


@dataclasses.dataclass(frozen=True)
class TrainRuntime:
    """How often states are saved, how many runs are kept, whether the allocator keeps freed memory."""

    checkpoint_every_s: float
    keep_fingerprints: int
    keep_freed_memory: bool


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything a run reads: parameters, checked token files, where and in what format it computes."""

    params: TrainParams
    config: ModelConfig
    train: TokenFile
    validation: TokenFile
    device: torch.device
    dtype: torch.dtype


def read_setup(train_path: Path, validation_path: Path) -> Setup:
    """Read and check parameters before any data is touched, then the data."""
    params = read_section(PARAMS, "train", TrainParams)
    name = read_section(PARAMS, "model.name", str)
    model_params = read_section(PARAMS, f"models.{name}", ModelParams)
    device = machine.pick_device()
    dtype = machine.check_dtype(params.dtype, device)
    train, validation = open_tokens(train_path), open_tokens(validation_path)
    if train.meta["tokenizer"] != validation.meta["tokenizer"]:
        raise ParamsError(f"{train_path} and {validation_path} were made with different tokenizers; run `dvc repro`")
    for tokens in (train, validation):
        check_id_range(tokens)
    if len(validation.ids) < params.seq_len + 1:
        raise DataError(
            f"{validation_path}: {len(validation.ids)} tokens, one window of train.seq_len needs {params.seq_len + 1}"
        )
    if params.seq_len > model_params.max_seq_len:
        raise ParamsError(
            f"{PARAMS}: train.seq_len is {params.seq_len}, needed: at most models.{name}.max_seq_len "
            f"{model_params.max_seq_len}"
        )
    return Setup(params, model_params.config(train.vocab_size), train, validation, device, dtype)


def run_folder(setup: Setup) -> Path:
    """.runs/<fingerprint> below the main repository, also when run in a copy for a queued experiment."""
    code = [Path(dep) for dep in read_yaml(PIPELINE)["stages"]["train"]["deps"] if not dep.startswith("data/")]
    params = {"train": dataclasses.asdict(setup.params), "model": dataclasses.asdict(setup.config)}
    inputs = {tokens.path.name: sha256_file(sidecar_path(tokens.path)) for tokens in (setup.train, setup.validation)}
    return Path(os.environ.get("DVC_ROOT", ".")) / ".runs" / checkpoint.fingerprint(params, code, inputs)


def make_plan(setup: Setup) -> preflight.Plan:
    """Derive size, work and memory of the run."""
    params, config = setup.params, setup.config
    num_parameters = count_parameters(config)["total"]
    return preflight.Plan(
        num_parameters,
        flops_per_token(config, params.seq_len)["total"],
        params.max_steps,
        params.max_steps * params.batch_tokens,
        len(setup.train.ids),
        preflight.estimate_memory_bytes(
            num_parameters, config.n_layer, config.d_model, config.d_ff, config.vocab_size, params.micro_batch_tokens
        ),
    )


def build_state(setup: Setup) -> TrainingState:
    """A fresh model and its optimizers, drawn from train.seed."""
    params = setup.params
    model = Gemma3Model(setup.config)
    model.init_weights(torch.Generator().manual_seed(params.seed))
    model.to(setup.device)
    if params.compile:
        model.compile()
    betas = (params.beta1, params.beta2)
    optimizers = build_optimizers(model, params.optimizer, params.weight_decay, betas, params.embedding_lr_factor)
    return TrainingState(model, optimizers)


def resume(state: TrainingState, run: Path, device: torch.device) -> None:
    """Go on from the newest state; a segment is added where what computes has changed."""
    saved = checkpoint.load_newest_state(run)
    if saved is not None:
        state.restore(saved)
        print(f"resumed at step {state.step} from {run}")
    here = machine.describe(device)
    if state.segments and {**state.segments[-1], "from_step": 0} != {**here, "from_step": 0}:
        print(f"warning: begun on {state.segments[-1]}, going on with {here}: bits may differ", file=sys.stderr)
    if not state.segments or {**state.segments[-1], "from_step": 0} != {**here, "from_step": 0}:
        state.segments.append({"from_step": state.step, **here})


def train(setup: Setup, state: TrainingState, run: Path, runtime: TrainRuntime, plots: Path, peak_flops: float) -> None:
    """Train to the end, validating at intervals and saving states; Interrupted if asked to stop."""
    params = setup.params
    windows = TokenWindows(setup.train.ids, params.seq_len, params.batch_size, params.seed)
    flops = flops_per_token(setup.config, params.seq_len)["total"]
    eval_every_steps = max(1, params.eval_every_tokens // params.batch_tokens)
    started, saved_at = time.monotonic() - state.elapsed_s, time.monotonic()

    def score() -> float:
        ids = setup.validation.ids[: params.eval_tokens]
        batch_size = max(1, params.micro_batch_tokens // params.seq_len)
        losses, _ = score_tokens(
            state.model, ids, setup.validation.eot_id, params.seq_len, params.seq_len, batch_size, setup.device,
            setup.dtype, "validate",
        )  # fmt: skip
        return float(losses.mean(dtype="float64"))

    def keep_state() -> None:
        nonlocal saved_at
        state.elapsed_s = time.monotonic() - started
        checkpoint.save_state(run, state.step, state.as_dict())
        saved_at = time.monotonic()

    total = params.max_steps * params.batch_tokens
    with StopRequest() as stop, tqdm(total=total, unit="tok", unit_scale=True, desc="train", disable=None) as bar:
        bar.update(state.step * params.batch_tokens)
        if not state.history.validation:
            validate(state, score, 0)
        for step in train_steps(state, windows, params, params.max_steps, setup.device, setup.dtype):
            bar.update(params.batch_tokens)
            if step % eval_every_steps == 0 or step == params.max_steps:
                loss = validate(state, score, step * params.batch_tokens)
                state.history.timing.append([step * params.batch_tokens, time.monotonic() - started])
                write_curves(state, plots)
                rate = step * params.batch_tokens / (time.monotonic() - started)
                bar.set_postfix(val_loss=f"{loss:.3f}", mfu=f"{rate * flops / peak_flops:.0%}")
            if stop.wanted:
                keep_state()
                raise stop.interrupted(step)
            if time.monotonic() - saved_at > runtime.checkpoint_every_s:
                keep_state()
    state.elapsed_s = time.monotonic() - started


def write_curves(state: TrainingState, plots: Path) -> None:
    """The curves so far as CSV, also for whoever watches a run in progress."""
    history = state.history
    write_csv(plots / "training.csv", ["step", "tokens", "lr", "train_loss", "grad_norm"], history.train)
    write_csv(plots / "validation.csv", ["step", "tokens", "val_loss"], history.validation)
    write_csv(plots / "timing.csv", ["tokens", "seconds"], history.timing)


def write_results(setup: Setup, state: TrainingState, plan: preflight.Plan, folder: Path) -> None:
    """Write what the stage puts out into `folder`/{models,metrics,plots}."""
    tokens_of = lambda step: step * setup.params.batch_tokens  # noqa: E731
    models, last_loss = folder / "models", state.history.validation[-1][2]
    record = {
        "config": dataclasses.asdict(setup.config),
        "seq_len": setup.params.seq_len,
        "dtype": setup.params.dtype,
        "eval_tokens": setup.params.eval_tokens,
        "seed": setup.params.seed,
        "tokenizer_sha256": setup.train.meta["tokenizer"]["sha256"],
        "data_sha256": {"train": setup.train.meta["sha256"], "validation": setup.validation.meta["sha256"]},
        "segments": state.segments,
    }
    for name, weights, step, loss in (
        ("best", state.best_weights, state.best_step, state.best_loss),
        ("last", state.weights(), state.step, last_loss),
    ):
        sha256 = checkpoint.save_tensors(models / f"{name}_model_params.pt", weights)
        record[name] = {"step": step, "tokens_seen": tokens_of(step), "val_loss": loss, "sha256": sha256}
    write_json(models / "model.json", record)
    metrics = {
        "best_val_loss": state.best_loss,
        "last_val_loss": last_loss,
        "last_train_loss": state.history.train[-1][3] if state.history.train else None,
        "best_tokens_seen": tokens_of(state.best_step),
        "tokens_seen": tokens_of(state.step),
        "steps": state.step,
        "epochs": plan.epochs,
        "parameters": plan.num_parameters,
        "training_flops": plan.flops_per_token * tokens_of(state.step),
    }
    write_json(folder / "metrics" / "train.json", metrics)
    timing = {"train_seconds": state.elapsed_s, "train_tokens_per_s": tokens_of(state.step) / state.elapsed_s}
    write_json(folder / "metrics" / "timing.json", timing)
    write_curves(state, folder / "plots")
    draw_training(folder / "plots")


def publish(done: Path, models: Path, metrics: Path, plots: Path) -> None:
    """Copy a finished run's files to the stage's outputs; each appears whole."""
    with atomic_folder(models) as folder:
        shutil.copytree(done / "models", folder, dirs_exist_ok=True)
    for name, target in (("metrics", metrics), ("plots", plots)):
        for path in (done / name).iterdir():
            target.mkdir(parents=True, exist_ok=True)
            temporary = target / f".{path.name}.tmp"
            shutil.copyfile(path, temporary)
            os.replace(temporary, target / path.name)


def run_to_end(setup: Setup, run: Path, runtime: TrainRuntime, plots: Path) -> None:
    """Train what is left of the run and leave its results in run/done."""
    plan = make_plan(setup)
    preflight.refuse_too_large(plan, machine.available_memory_bytes(setup.device))
    state = build_state(setup)
    windows = TokenWindows(setup.train.ids, setup.params.seq_len, setup.params.batch_size, setup.params.seed)
    micro_batches = setup.params.batch_tokens // setup.params.micro_batch_tokens
    seconds = seconds_per_step(state.model, windows, micro_batches, setup.device, setup.dtype)
    print("\n".join(plan.lines(seconds)))
    config = setup.config
    for warning in preflight.warnings(plan, setup.params.seq_len, config.window, config.full_attention_every):
        print(f"warning: {warning}", file=sys.stderr)
    resume(state, run, setup.device)
    peak_flops = machine.matmul_peak_flops(setup.device, setup.dtype)
    train(setup, state, run, runtime, plots, peak_flops)
    with atomic_folder(run / "done") as folder:
        write_results(setup, state, plan, folder)
    checkpoint.drop_states(run)
    print(f"best validation loss {state.best_loss:.4f} nats/token at step {state.best_step}")


@contextlib.contextmanager
def memory_errors():
    """Turn torch's failed allocations into the sentence that says what to lower."""
    try:
        yield
    except RuntimeError as error:
        raise (preflight.out_of_memory(error) or error) from None


@command
def main(argv: list[str]) -> None:
    """Train on argv[0], validate on argv[1]; write argv[2] (models), argv[3] (metrics), argv[4] (plots)."""
    train_path, validation_path, models, metrics, plots = map(Path, argv)
    runtime = read_section(RUNTIME, "train", TrainRuntime)
    if runtime.keep_freed_memory:
        machine.keep_freed_memory()
    setup = read_setup(train_path, validation_path)
    run = run_folder(setup)
    with output_lock(models), output_lock(run, wait=True), memory_errors():
        checkpoint.prune_runs(run.parent, run, runtime.keep_fingerprints)
        if not (run / "done").exists():
            run_to_end(setup, run, runtime, plots)
        publish(run / "done", models, metrics, plots)


if __name__ == "__main__":
    sys.exit(main())

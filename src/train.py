"""Stage train: token files → data/models, metrics, curves.

    python src/train.py data/processed_datasets/train.bin data/processed_datasets/validation.bin \
        data/models metrics plots

Work in progress lives in .runs/<fingerprint>/, so a killed run goes on where it stopped and a
changed parameter, input or line of code begins a run of its own (README, "Stop and go on"). Of several
processes the first one locks, prints and writes (lm.ranks).
"""

import dataclasses
import os
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from lm.core.errors import DataError, DivergedError, IntegrityError, ParamsError, command
from lm.core.files import atomic_folder, output_lock, sha256_file
from lm.core.params import needed, read_section, read_yaml
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model, ModelConfig, ModelParams
from lm.model.weights import load_initial
from lm.plots import draw_training
from lm.tokens.tokenfile import TokenFile, check_id_range, entropy_per_token, open_tokens, sidecar_path
from lm.tokens.windows import TokenWindows
from lm.train import checkpoints, launcher, preflight
from lm.train import distributed as ranks
from lm.train import loop as training
from lm.train.config import TrainParams
from lm.train.loop import Clock, TrainingState, seconds_per_step, share, train_steps, validate
from lm.train.optimizers import build_optimizers
from lm.train.outputs import publish, write_curves, write_metrics, write_models
from lm.train.signals import StopRequest

PARAMS, RUNTIME, PIPELINE = "params.yaml", "runtime.yaml", "dvc.yaml"


@dataclasses.dataclass(frozen=True)
class TrainRuntime:
    """How often states are saved, how many runs are kept, whether the allocator keeps freed memory; how many
    processes train, whether each keeps a part of the weights alone, how long they wait for each other."""

    checkpoint_every_s: float
    keep_fingerprints: int
    keep_freed_memory: bool
    num_processes: int
    shard: bool
    timeout_s: float

    def __post_init__(self):
        needed(self.num_processes >= 1, "num_processes", self.num_processes, "at least 1")
        needed(self.timeout_s > 0, "timeout_s", self.timeout_s, "above 0")


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything a run reads: parameters, checked token files, the model it begins with (None: drawn
    from train.seed) and the SHA-256 of its weights, where and in what format it computes, with whom."""

    params: TrainParams
    config: ModelConfig
    train: TokenFile
    validation: TokenFile
    initial: Gemma3Model | None
    initial_sha256: str | None
    device: torch.device
    dtype: torch.dtype
    team: ranks.Team


def read_setup(train_path: Path, validation_path: Path, team: ranks.Team) -> Setup:
    """Read and check parameters before any data is touched, then the data."""
    params = read_section(PARAMS, "train", TrainParams)
    name = read_section(PARAMS, "model.name", str)
    model_params = read_section(PARAMS, f"models.{name}", ModelParams)
    if params.seq_len > model_params.max_seq_len:
        raise ParamsError(
            f"{PARAMS}: train.seq_len is {params.seq_len}, needed: at most models.{name}.max_seq_len "
            f"{model_params.max_seq_len}"
        )
    training.refuse_unequal_shares(params, team)
    device = machine.pick_device(team.local_rank if team.count > 1 else None)
    dtype = machine.resolve_dtype(params.dtype, device)
    train, validation = open_tokens(train_path), open_tokens(validation_path)
    if train.meta["tokenizer"] != validation.meta["tokenizer"]:
        raise IntegrityError(f"{train_path} and {validation_path} were made with different tokenizers; run `dvc repro`")
    for tokens in (train, validation):
        check_id_range(tokens)
    if len(validation.ids) < params.seq_len + 1:
        raise DataError(
            f"{validation_path}: {len(validation.ids)} tokens, one window of train.seq_len needs {params.seq_len + 1}"
        )
    config = model_params.config(train.vocab_size)
    initial, sha256 = load_initial(Path(params.init_from), config, train.meta["tokenizer"]["sha256"])
    return Setup(params, config, train, validation, initial, sha256, device, dtype, team)


def run_folder(setup: Setup) -> Path:
    """.runs/<fingerprint> below the main repository, also when run in a copy for a queued experiment."""
    deps = read_yaml(PIPELINE)["stages"]["train"]["deps"]
    listed = [Path(dep) for dep in deps if not dep.startswith(("data/", "${"))]
    code = [file for path in listed for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    params = {"train": dataclasses.asdict(setup.params), "model": dataclasses.asdict(setup.config)}
    inputs = {tokens.path.name: sha256_file(sidecar_path(tokens.path)) for tokens in (setup.train, setup.validation)}
    inputs["initial"] = setup.initial_sha256
    return Path(os.environ.get("DVC_ROOT", ".")) / ".runs" / checkpoints.fingerprint(params, code, inputs)


def build_state(setup: Setup) -> TrainingState:
    """The model that the run begins with, drawn from train.seed if none is given, and fresh optimizers."""
    params, model = setup.params, setup.initial
    if model is None:
        model = Gemma3Model(setup.config)
        model.init_weights(torch.Generator().manual_seed(params.seed))
    if params.compile:
        model.compile()
    setup.team.place_model(model, setup.device)
    betas, factor = (params.beta1, params.beta2), params.embedding_lr_factor
    optimizers = build_optimizers(model, params.optimizer, params.weight_decay, betas, factor, setup.dtype)
    return TrainingState(model, optimizers, setup.team)


def resume(state: TrainingState, run: Path, setup: Setup) -> None:
    """Go on from the newest state, if there is one; a segment is added where what computes has changed."""
    team = setup.team
    saved = checkpoints.load_newest_state(run) if team.first else None
    (step,) = team.highest(-1 if saved is None else saved["step"])
    if not team.first and step >= 0:
        saved = checkpoints.load_state(checkpoints.record_of(run, step))
    if saved is not None:
        try:
            state.restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise IntegrityError(
                f"{run}: its newest state does not fit: {reason}; delete the folder to train from scratch"
            ) from None
        if team.first:
            print(f"resumed at step {state.step} from {run}")
    here = machine.describe(setup.device, setup.dtype, team.count)
    former = dict(state.segments[-1]) if state.segments else {}
    former.pop("from_step", None)
    if former and former != here and team.first:
        print(f"warning: begun on {former}, going on with {here}: the bits may differ", file=sys.stderr)
    if former != here:
        state.segments.append({"from_step": state.step, **here})


def introduce(setup: Setup, state: TrainingState, plan: preflight.Plan, windows: TokenWindows) -> None:
    """Print the pre-flight summary with the time that one step takes now, and what is unwise."""
    team, share_of_batch = setup.team, share(setup.params, setup.team)
    measure = lambda: seconds_per_step(state.model, windows, *share_of_batch, setup.device, setup.dtype)  # noqa: E731
    seconds = measure()
    if not team.first:
        return
    print("\n".join(plan.lines(seconds)), flush=True)
    if team.count > 1:
        print(f"processes    {team.count}, {team.local_count} on this host; their talk is not in the time above")
    found = preflight.warnings(
        plan, setup.params.seq_len, setup.config.sliding_window, setup.config.full_attention_every
    )
    if setup.device.type == "cpu" and team.count == 1:
        found += machine.warn_of_busy_cores(seconds, measure)
    for warning in found:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def train(
    setup: Setup, state: TrainingState, plan: preflight.Plan, windows: TokenWindows, run: Path, every_s: float,
    metrics: Path, plots: Path,
) -> None:  # fmt: skip
    """Train to the end, validating at intervals, saving states every `every_s`; Interrupted if asked to stop.

    Metrics and curves so far are current after each validation, for whoever looks on.
    """
    params, team = setup.params, setup.team
    peak_flops = machine.matmul_peak_flops(setup.device, setup.dtype) * team.count
    clock = Clock(state.elapsed_s)

    def keep_state() -> None:
        """Save the state of this step; every rank has it then, or none."""
        state.elapsed_s = clock.elapsed_s()
        saved = state.as_dict()
        if team.first:
            checkpoints.save_state(run, state.step, saved)
        team.highest(0)  # no rank goes on, or leaves, before the state is there
        clock.restart_interval()

    def validate_now() -> None:
        """Validate and have curves and metrics show it."""
        tokens = state.step * params.batch_tokens
        loss = training.validation_loss(state.model, setup.validation, params, team, setup.device, setup.dtype)
        validate(state, loss, tokens)
        state.elapsed_s = clock.elapsed_s()
        state.history.timing.append([tokens, state.elapsed_s])
        if not team.first:
            return
        write_curves(plots, state.history)
        write_metrics(metrics, state, plan)
        mfu = tokens * plan.flops_per_token / state.elapsed_s / peak_flops
        bar.set_postfix(val_loss=f"{loss:.3f}", mfu=f"{mfu:.0%}")

    with (
        StopRequest(team.launched, team.first) as stop,
        tqdm(total=plan.max_tokens, unit="tok", unit_scale=True, desc="train", disable=not team.first or None) as bar,
    ):
        bar.update(state.step * params.batch_tokens)
        if not state.history.validation:
            validate_now()
        try:
            for step in train_steps(state, windows, params, setup.device, setup.dtype):
                bar.update(params.batch_tokens)
                if step % params.eval_every_steps == 0 or step == params.max_steps:
                    validate_now()
                asked_by, due = team.highest(stop.asked_by, int(clock.interval_s() > every_s))
                if asked_by or due:
                    keep_state()
                if asked_by:
                    raise stop.interrupted(step, asked_by)
        except DivergedError:
            keep_state()  # it holds the best weights so far
            raise
    state.elapsed_s = clock.elapsed_s()


def provenance(setup: Setup) -> dict:
    """What model.json says of where a model comes from: its shape and the hashes of all that made it."""
    return {
        "config": dataclasses.asdict(setup.config),
        "seq_len": setup.params.seq_len,
        "seed": setup.params.seed,
        "eval_tokens": setup.params.eval_tokens,
        "tokenizer_sha256": setup.train.meta["tokenizer"]["sha256"],
        "data_sha256": {"train": setup.train.meta["sha256"], "validation": setup.validation.meta["sha256"]},
        "init_sha256": setup.initial_sha256,
    }


def run_to_end(setup: Setup, run: Path, every_s: float, metrics: Path, plots: Path) -> None:
    """Train what is left of the run and leave its results in run/done."""
    params, team = setup.params, setup.team
    micro_batch_tokens = params.batch_tokens // team.count // share(params, team)[1]
    plan = preflight.make_plan(params, setup.config, len(setup.train.ids), micro_batch_tokens, team.shards)
    if team.first:
        sharers = team.local_count if setup.device.type == "cpu" else 1
        preflight.refuse_too_large(plan, machine.available_memory_bytes(setup.device) // sharers)
    team.begin(setup.device)
    windows = TokenWindows(setup.train.ids, params.seq_len, params.batch_size, params.seed)
    state = build_state(setup)
    introduce(setup, state, plan, windows)
    resume(state, run, setup)
    train(setup, state, plan, windows, run, every_s, metrics, plots)
    if not team.first:
        state.weights()  # as the first one does for its record
        return
    with atomic_folder(run / "done") as folder:
        write_models(folder / "models", state, params.batch_tokens, provenance(setup))
        write_metrics(folder / "metrics", state, plan)
        write_curves(folder / "plots", state.history)
        draw_training(folder / "plots", entropy_per_token(setup.validation))
    checkpoints.drop_states(run)
    if state.step < plan.max_steps:
        print(
            f"ended at step {state.step}: train.patience_evals {params.patience_evals} validations without a better one"
        )
    print(f"best validation loss {state.best_loss:.4f} nats/token at step {state.best_step}")


@command
def main(argv: list[str]) -> None:
    """Train on argv[0], validate on argv[1]; write argv[2] (models), argv[3] (metrics), argv[4] (plots)."""
    train_path, validation_path, models, metrics, plots = map(Path, argv)
    runtime = read_section(RUNTIME, "train", TrainRuntime)
    if runtime.num_processes > 1 and ranks.place() is None:
        return launcher.start(runtime.num_processes, [__file__, *argv])
    if runtime.keep_freed_memory:
        machine.keep_freed_memory()
    with ranks.join(runtime.shard, runtime.timeout_s) as team, preflight.out_of_memory_in_words():
        if not team.first and not team.await_first():
            return
        setup = read_setup(train_path, validation_path, team)
        run = run_folder(setup)
        if not team.first:
            return run_to_end(setup, run, runtime.checkpoint_every_s, metrics, plots)
        with output_lock(models), output_lock(run, wait=True):
            checkpoints.prune_runs(run.parent, run, runtime.keep_fingerprints)
            if not (run / "done").exists():
                run_to_end(setup, run, runtime.checkpoint_every_s, metrics, plots)
            publish(run / "done", models, metrics, plots)


if __name__ == "__main__":
    sys.exit(main())

"""The run that params.yaml, presets.yaml and data/ describe: digest its first steps, and compare them with a file."""

import argparse
import dataclasses
from pathlib import Path

import torch

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import check_types, read_json, write_json
from lm.core.params import read_section, read_yaml
from lm.exact.threads import ThreadTuner
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import load_initial
from lm.tokens.tokenfile import TokenFile, check_tokenizer, check_window_fits, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import preflight
from lm.train.config import TrainParams
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from lm.train.step import sampling_weights
from tools.common.environment import processor
from tools.common.parameters import flatten
from tools.common.paths import PARAMS, PRESETS, TOKENIZER, TRAIN
from tools.prove.digests import check_expected, digest_steps, first_difference, last_weights

WRITE = "write it with `python src prove --params --write`"


@dataclasses.dataclass(frozen=True, eq=False)
class OwnRun:
    """What the run reads, after all checks, and a description that tells it from other runs."""

    params: TrainParams
    config: ModelConfig
    tokens: TokenFile
    initial: Gemma3Model | None  # None: weights are drawn from train.seed
    ngrams: NgramEmbeddings | None
    num_steps: int
    description: dict


def prove_own_run(args: argparse.Namespace, path: Path) -> None:
    """Train the first steps of the run, and write their digests to `path` or compare them with it.

    Raise ParamsError if the file is of another run, and IntegrityError if it is damaged or the bits differ.
    """
    # Read everything before the training, which takes longer.
    run = read_run(args.steps)
    is_compared = not (args.write or args.expect)
    before = read_bits(path, run) if is_compared else {"computed_on": {}}

    # Compute as the file was computed, where train.dtype leaves the choice.
    numerics = run.params.numerics
    threads = ThreadTuner(numerics, adapts=args.threads is None and numerics == "exact")
    device = machine.read_device()
    machine.reject_emulation(run.params.dtype, device)
    dtype = torch.float32
    if numerics == "fast":
        dtype = machine.resolve_dtype(run.params.dtype, device, before["computed_on"].get("dtype"))
    computed_on = {"processor": processor(), "numerics": numerics, **machine.describe(device, dtype)}
    computed_on["threads"] = threads.most  # in exact numerics their number changes during the run, and no bits

    # Train.
    state = build_state(run, device, dtype)
    windows = TokenWindows(run.tokens.ids, run.params.seq_len, run.params.batch_size, run.params.seed)
    found = digest_steps(state, windows, run.params, dtype, run.num_steps, 1, threads, with_operations=True)

    # Write or compare.
    summary = f"{run.num_steps} steps, weights {last_weights(found)}"
    if args.write:
        write_json(path, {"run": run.description, "computed_on": computed_on, **found})
        print(f"{path} has the bits of this run: {summary}")
        return
    if args.expect:
        check_expected(found, args.expect)
        return
    changed = changes(before["computed_on"], computed_on) or "the same versions and machine"
    if problem := first_difference(found, common_operations(before, found), "same"):
        raise IntegrityError(f"{path}: {changed}: {problem}")
    print(f"same bits as {path}: {summary}, {changed}")


def read_run(num_steps: int) -> OwnRun:
    """Read and check the parameters, then the files; raise what the stage train raises."""
    # The parameters.
    params = read_section(PARAMS, "train", TrainParams)
    name = read_section(PARAMS, "model.name", str)
    model_params = read_section(PRESETS, f"models.{name}", ModelParams)
    preflight.check_lengths(str(PARAMS), params.seq_len, name, model_params.max_seq_len)
    if params.compile:
        raise ParamsError(f"{PARAMS}: train.compile is true; it must be false, to see the operations of torch")
    if not 1 <= num_steps <= params.max_steps:
        raise ParamsError(f"--steps is {num_steps}; it must be from 1 to {params.max_steps}, the steps of the run")

    # The token file.
    tokens = open_tokens(TRAIN)
    check_window_fits(tokens, params.seq_len)

    # What the run starts from.
    config = model_params.config(tokens.vocab_size)
    tokenizer_sha256 = tokens.meta["tokenizer"]["sha256"]
    initial, initial_sha256 = load_initial(Path(params.init_from), config, tokenizer_sha256, params.numerics)
    ngrams = None
    if params.ngram_buckets is not None:
        from lm.tokenizer.load import load_tokenizer  # slow to import, and not always needed

        tokenizer = load_tokenizer(TOKENIZER)
        check_tokenizer(tokens, tokenizer.sha256)
        ngrams = NgramEmbeddings(tokenizer.token_texts, tokens.vocab_size, params.ngram_buckets)

    description = {
        "train": read_yaml(PARAMS)["train"],
        "model": dataclasses.asdict(config),
        "tokens": tokens.meta["sha256"],
        "tokenizer": tokenizer_sha256,
        "initial weights": initial_sha256,
        "steps": num_steps,
    }
    return OwnRun(params, config, tokens, initial, ngrams, num_steps, description)


def read_bits(path: Path, run: OwnRun) -> dict:
    """Read the file; raise IntegrityError if it is missing or damaged, ParamsError if it is of another run."""
    bits = read_json(path, WRITE)
    check_types(path, bits, {"run": dict, "computed_on": {"dtype": str}}, WRITE)
    if bits["computed_on"]["dtype"] not in machine.COMPUTE_DTYPES:
        raise IntegrityError(f"{path}: computed_on.dtype is {bits['computed_on']['dtype']}; {WRITE}")
    if different := changes(bits["run"], run.description):
        raise ParamsError(
            f"{path}: is of another run: {different}; use the parameters and data of that run, or {WRITE}"
        )
    weights = {str(step): str for step in range(1, run.num_steps + 1)}
    check_types(path, bits, {"first step": {str: str}, "weights": weights}, WRITE)
    return bits


def build_state(run: OwnRun, device: torch.device, dtype: torch.dtype) -> TrainingState:
    """Build model and optimizers as the stage train does with one process."""
    params = run.params
    model = run.initial
    if model is None:
        model = Gemma3Model(run.config, params.numerics)
        model.init_weights(torch.Generator().manual_seed(params.seed))
    model.document_start_id = None if params.attend_across_documents else run.tokens.eot_id
    if params.sampled_vocab_size is not None:
        model.sampling_weights = sampling_weights(run.tokens.ids, run.config.vocab_size)
    model.to(device)
    return TrainingState(model, build_optimizers(model, params, dtype, ngrams=run.ngrams))


def changes(before: dict, after: dict) -> str:
    """Return the entries that differ, by dotted name: "torch 2.13.0 → 2.14.0, threads 1 → 2"; "" if there are none."""
    before = flatten(before)
    after = flatten(after)
    names = [name for name in before | after if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name)} → {after.get(name)}" for name in names)


def common_operations(before: dict, found: dict) -> dict:
    """Return the digests `before` without the operations that this version of torch no longer calls."""
    operations = {name: known for name, known in before["first step"].items() if name in found["first step"]}
    return {**before, "first step": operations}

"""Stage eval: model, validation file and tokenizer → loss by document and by position, samples, metrics.

    python src/eval.py --models data/models --train data/processed_datasets/train.bin \
        --validation data/processed_datasets/validation.bin --tokenizer data/tokenizer --audit data/audit \
        --evaluation data/evaluation --metrics metrics --plots plots

It scores every token of the validation file once, in float32 and in the numerics of the training. Windows have the
training length and move by `eval.stride_fraction` of it. The tokens that selected the best model, and the clean
documents, are reported separately. A part of the file is also scored in windows that do not overlap.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.errors import DataError, IntegrityError, ParamsError, exit_with_status
from lm.core.files import PARQUET, atomic_folder, output_lock, read_parquet, write_csv, write_json, write_text
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.core.params import read_section
from lm.core.paths import PARAMS, SOURCES
from lm.evaluate.config import EvalParams
from lm.evaluate.documents import (
    describe_seen,
    loss_by_position,
    make_details,
    mark_spread_windows,
    metrics_of,
    source_of_documents,
    sum_by_document,
)
from lm.evaluate.samples import Sample, begin_text, draw, measure, samples_record, summarize_samples, to_markdown
from lm.evaluate.scoring import NON_OVERLAPPING_WINDOWS, load_as_trained, score
from lm.exact.threads import ThreadTuner
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import keep_freed_memory
from lm.model.seen import seen_by_start
from lm.model.weights import WEIGHTS_DIGITS, check_trained_with
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import (
    LOSSY,
    TokenFile,
    check_tokenizer,
    check_window_fits,
    lossy_fractions,
    open_tokens,
)


def read_params() -> EvalParams:
    """Return the section `eval`. Raise ParamsError if it is wrong."""
    return read_section(PARAMS, "eval", EvalParams)


def read_audit(path: Path, validation: TokenFile) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return each validation document's UTF-8 bytes (D,), and columns (D,) that are known before it is scored.

    `contaminated_fraction` is the fraction of its tokens inside n-grams of the training text. For `source`, see
    `source_of_documents`.
    """
    table = read_parquet(path)
    if (table.schema.metadata or {}).get(b"validation_sha256", b"").decode() != validation.meta["sha256"]:
        raise IntegrityError(f"{path}: made from another validation file than {validation.path}; run `dvc repro`")
    known = {"contaminated_fraction": table["contaminated_fraction"].to_numpy()}
    return table["utf8_bytes"].to_numpy(), known | source_of_documents(validation)


def check_inputs(model_json: Path, record: dict, validation: TokenFile, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError if the model belongs to other files, DataError if there is too little text to score."""
    check_trained_with(tokenizer.sha256, tokenizer.folder, model_json.parent, record)
    if record["data_sha256"]["validation"] not in (None, validation.meta["sha256"]):  # None: an imported model
        raise IntegrityError(f"{model_json}: trained with another {validation.path}; run `dvc repro`")
    check_window_fits(validation, record["seq_len"])
    if not tokenizer.bytes_of(validation.ids).any():
        raise DataError(f"{validation.path}: contains no text, only ends of documents; use another slice")


def check_prompts(source: str, prompts: tuple[str, ...], tokenizer: Tokenizer, max_seq_len: int) -> None:
    """Raise ParamsError if a prompt of a source leaves no room for a sample."""
    for number, prompt in enumerate(prompts):
        num_tokens = len(begin_text(tokenizer, prompt))
        if num_tokens >= max_seq_len:
            name = f"{SOURCES}: sources.{source}.prompts[{number}]"
            found = f"{name} has {num_tokens} tokens, including the end-of-text id before it"
            raise ParamsError(f"{found}; it must have fewer than the model's max_seq_len ({max_seq_len}): shorten it")


def draw_samples(
    model: Gemma3Model, tokenizer: Tokenizer, prompts: tuple[str, ...], params: EvalParams
) -> list[Sample]:
    """Draw `num_samples` continuations of each prompt; without prompts, none."""
    sampling = {"temperature": params.temperature, "top_k": params.top_k}
    seeds = range(params.seed, params.seed + params.num_samples)
    return [
        draw(model, tokenizer, prompt, params.sample_tokens, seed, **sampling) for prompt in prompts for seed in seeds
    ]


def summary_line(details: dict) -> str:
    """Return the results in one line."""
    se = details["bits_per_byte_se"] or math.nan
    documents = details["documents"]
    loss = f"{details['nats_per_token']:.4f} nats/token, {details['bits_per_byte']:.4f} bits per byte"
    lossy = f"; {LOSSY}" if "lossy_tokenizer" in details else ""
    seen = describe_seen(details)
    by_start = f"; {seen}" if seen else ""
    return f"validation: {loss} (standard error {se:.4f} over {documents} documents){lossy}{by_start}"


def parse_paths(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name, text in {
        "models": "folder that train wrote",
        "train": "token file for training",
        "validation": "token file for validation",
        "tokenizer": "folder of the tokenizer",
        "audit": "folder that audit wrote",
        "evaluation": "folder to write",
        "metrics": "folder for eval.json",
        "plots": "folder for loss_by_position.csv",
    }.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    return parser.parse_args(argv)


@exit_with_status
def main(argv: list[str]) -> None:
    """Evaluate the best model of a training run."""
    start_s = time.perf_counter()
    paths = parse_paths(argv)
    inputs = StageInputs("eval")

    # Read the parameters.
    params = read_params()
    source = read_section(PARAMS, "data.source", str)
    prompts = read_section(SOURCES, f"sources.{source}.prompts", tuple[str, ...])

    # Open the inputs and check that they belong together. Keep freed memory: clearing the pages of freed logits each
    # time would take a third of the time.
    keep_freed_memory()
    train = open_tokens(paths.train)
    validation = open_tokens(paths.validation)
    tokenizer = load_tokenizer(paths.tokenizer)
    for tokens in (train, validation):
        check_tokenizer(tokens, tokenizer.sha256)
    utf8_bytes, known = read_audit(paths.audit / "contamination.parquet", validation)
    model, record = load_as_trained(paths.models)
    check_inputs(paths.models / "model.json", record, validation, tokenizer)
    check_prompts(source, prompts, tokenizer, model.config.max_seq_len)
    has_start = record.get("init_sha256") is not None
    seen = seen_by_start(paths.models, record, validation) if has_start else None
    if seen is not None:
        known["seen_by_start"] = seen
    seq_len = record["seq_len"]
    stride = params.stride_tokens(seq_len)
    cores = ThreadTuner(model.numerics, adapts=model.numerics == "exact")

    with output_lock(paths.evaluation), atomic_folder(paths.evaluation) as evaluation:
        # Score every token in overlapping windows, which give it more context.
        print(f"scoring {len(validation.ids):,} tokens in windows of {seq_len:,}, moved by {stride:,}", flush=True)
        losses, _ = score(model, validation, seq_len, stride, cores)

        # Score a part in non-overlapping windows, which use every position equally and are the usual ones.
        part = mark_spread_windows(validation, NON_OVERLAPPING_WINDOWS * seq_len, seq_len)
        losses_by_position, positions = score(model, validation, seq_len, seq_len, cores, part)
        by_position = loss_by_position(losses_by_position[part], positions[part])

        # Sum the losses by document.
        selected = mark_spread_windows(validation, record["eval_tokens"], seq_len)
        token_bytes = tokenizer.bytes_of(validation.ids)
        documents = sum_by_document(losses, selected, token_bytes, validation.spans, utf8_bytes) | known

        # Draw samples, and measure how much of them is copied or repeated.
        print(f"drawing {params.num_samples} samples of each of {len(prompts)} prompts", flush=True)
        samples = draw_samples(model, tokenizer, prompts, params)
        measures = measure(samples, train.ids)
        settings = f"Temperature {params.temperature}, top-k {params.top_k}, seeds from {params.seed} on."
        record_of_samples = samples_record(samples, measures, settings, tokenizer)

        # Summarize.
        weights = record["best"]["sha256"][:WEIGHTS_DIGITS]
        details = {"window_tokens": seq_len, "stride_tokens": stride, "weights_sha256": weights}
        details |= make_details(documents, losses[part], losses_by_position[part])
        if has_start:
            details["seen_by_start"] = None if seen is None else int(seen.sum())
        if lost := lossy_fractions(validation.meta):
            details["lossy_tokenizer"] = lost
        details |= {"samples": summarize_samples(measures)}

        # Write everything.
        inputs.check_unchanged()
        pq.write_table(pa.table(documents), evaluation / "document_losses.parquet", **PARQUET)
        write_json(evaluation / "samples.json", record_of_samples)
        write_text(evaluation / "samples.md", to_markdown(record_of_samples))
        write_json(evaluation / "details.json", details)
        write_csv(paths.plots / "loss_by_position.csv", ["context_tokens", "nats_per_token", "tokens"], by_position)
        write_json(paths.metrics / "eval.json", metrics_of(details))
    say(f"{summary_line(details)}; evaluation took {time.perf_counter() - start_s:.0f} s")

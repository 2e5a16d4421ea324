"""Stage eval: model, validation file and tokenizer → metrics, losses by document and position, samples.

    python src/eval.py --models data/models --train data/processed_datasets/train.bin \
        --validation data/processed_datasets/validation.bin --tokenizer data/tokenizer --audit data/audit \
        --evaluation data/evaluation --metrics metrics --plots plots

Every token of the validation file is scored once, in float32, in windows of the training length that move by
`eval.stride_fraction` of it. The tokens that selected the best model and the clean documents are reported apart.
"""

import argparse
import dataclasses
import math
import sys
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm.core.errors import DataError, IntegrityError, command
from lm.core.files import atomic_folder, output_lock, read_json, write_csv, write_json, write_text
from lm.core.params import needed, read_section
from lm.evaluate.intervals import ratio_interval
from lm.evaluate.phenomena import split_loss, summarize_phenomena
from lm.evaluate.samples import draw, measure, summarize_samples, to_markdown
from lm.model.device import pick_device
from lm.model.gemma3 import Gemma3Model
from lm.model.score import loss_by_position, score_tokens, sum_by_span, summarize
from lm.model.threads import FreeCores
from lm.model.weights import RECORD, WEIGHTS_DIGITS, check_trained_with, load_trained
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.ngrams import CLEAN_BELOW
from lm.tokens.tokenfile import TokenFile, check_id_range, check_tokenizer, check_window_fits, open_tokens, sidecar_path
from lm.tokens.windows import selection_starts

PARAMS, PRESETS = "params.yaml", "presets.yaml"
SCORE_BATCH_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class EvalParams:
    """The section `eval` of params.yaml."""

    stride_fraction: float
    num_samples: int
    sample_tokens: int
    temperature: float
    top_k: int
    seed: int

    def __post_init__(self):
        needed(0 < self.stride_fraction <= 1, "stride_fraction", self.stride_fraction, "above 0, at most 1")
        for name in ("num_samples", "sample_tokens", "top_k"):
            needed(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        needed(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        needed(0 <= self.seed < 2**63, "seed", self.seed, "from 0 to below 2^63")


def read_audit(path: Path, validation: TokenFile) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return each validation document's UTF-8 bytes (D,), and columns (D,) that are known before it is scored.

    `leaked_fraction` is the fraction of its tokens that is in the training text too; `part` see `part_of_documents`.
    """
    table = pq.read_table(path)
    if (table.schema.metadata or {}).get(b"validation_sha256", b"").decode() != validation.meta["sha256"]:
        raise IntegrityError(f"{path}: made from another validation file than {validation.path}; run `dvc repro`")
    known = {"leaked_fraction": table["leaked_fraction"].to_numpy()}
    return table["utf8_bytes"].to_numpy(), known | part_of_documents(validation)


def check_inputs(model_json: Path, record: dict, validation: TokenFile, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError if the model belongs to other files, DataError if there is too little text to score."""
    check_trained_with(tokenizer.sha256, tokenizer.folder, model_json.parent, record)
    if record["data_sha256"]["validation"] not in (None, validation.meta["sha256"]):  # None: an imported model
        raise IntegrityError(f"{model_json}: trained with another {validation.path}; run `dvc repro`")
    check_window_fits(validation, record["seq_len"])
    check_id_range(validation)
    if not tokenizer.bytes_of(validation.ids).any():
        raise DataError(f"{validation.path}: holds no text, only ends of documents; use another slice")


def score(
    model: Gemma3Model, validation: TokenFile, seq_len: int, stride: int, cores: FreeCores
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's nats (N,) and its position (N,) in the window of `seq_len` tokens that scored it."""
    num_tokens = len(validation.ids)
    num_windows = 1 + math.ceil((num_tokens - seq_len) / stride)
    print(f"scoring {num_tokens:,} tokens in {num_windows:,} windows of {seq_len:,}, moved by {stride:,}", flush=True)
    batch_size = max(1, SCORE_BATCH_TOKENS // seq_len)
    losses, positions = score_tokens(model, validation, seq_len, stride, batch_size, torch.float32, cores.adapt)
    if not np.isfinite(losses).all():
        raise DataError(f"{validation.path}: {np.isnan(losses).sum()} of {num_tokens} losses are not finite")
    return losses, positions


def mark_selection(validation: TokenFile, eval_tokens: int, seq_len: int) -> np.ndarray:
    """Return (N,) bool: the tokens that selected the best model; none where `eval_tokens` is 0, as for an import."""
    selected = np.zeros(len(validation.ids), bool)
    if eval_tokens:
        starts = selection_starts(len(selected), eval_tokens, seq_len, validation.spans)
        selected[starts[:, None] + np.arange(seq_len)] = True
    return selected


def sum_by_document(
    losses: np.ndarray, selected: np.ndarray, token_bytes: np.ndarray, spans: np.ndarray, utf8_bytes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return columns (D,): each document's tokens, bytes and nats, and the bytes and nats of its selection tokens.

    `utf8_bytes` (D,) are those of the texts. A tokenizer may change a text first; the selection has its part of them.
    """
    bytes_per_token_byte = utf8_bytes / np.maximum(sum_by_span(token_bytes, spans), 1)
    return {
        "document": np.arange(len(spans)),
        "tokens": spans[:, 1] - spans[:, 0],
        "utf8_bytes": utf8_bytes,
        "nats": sum_by_span(losses, spans),
        "selection_nats": sum_by_span(losses * selected, spans),
        "selection_bytes": np.rint(sum_by_span(token_bytes * selected, spans) * bytes_per_token_byte).astype(np.int64),
    }


def part_of_documents(validation: TokenFile) -> dict[str, np.ndarray]:
    """Return the column `part` (D,), the part of the mixture that holds each document; {} for a plain source.

    Raise IntegrityError if the sidecar counts other documents than the stream holds.
    """
    if "parts" not in validation.meta:
        return {}
    counts = {name: part["documents"] for name, part in validation.meta["parts"].items()}
    if sum(counts.values()) != len(validation.spans):
        counted = f"`parts` counts {sum(counts.values())} documents, the file holds {len(validation.spans)}"
        raise IntegrityError(f"{sidecar_path(validation.path)}: {counted}; run `dvc repro -f tokenize_val`")
    return {"part": np.repeat(np.array(list(counts), object), list(counts.values()))}


def summarize_documents(nats: np.ndarray, utf8_bytes: np.ndarray) -> dict:
    """Return bits per byte of documents (D,) with text, its standard error, and the number of these documents."""
    kept = utf8_bytes > 0
    summary = summarize(nats[kept], utf8_bytes[kept], utf8_bytes[kept])
    return {key: summary[key] for key in ("documents", "bits_per_byte", "bits_per_byte_se")}


def summarize_parts(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return {"parts": name → figures} of the parts with text, in the order of the stream; {} for a plain source."""
    nats, utf8_bytes, parts = documents["nats"], documents["utf8_bytes"], documents.get("part")
    if parts is None:
        return {}
    names = dict.fromkeys(parts[utf8_bytes > 0])
    return {"parts": {name: summarize_documents(nats[parts == name], utf8_bytes[parts == name]) for name in names}}


def summarize_sections(documents: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return bits per byte of the tokens that selected the model, of all others, and of the clean documents."""
    nats, utf8_bytes = documents["nats"], documents["utf8_bytes"]
    selection_nats, selection_bytes = documents["selection_nats"], documents["selection_bytes"]
    clean = documents["leaked_fraction"] < CLEAN_BELOW
    sections = {
        "selection": (selection_nats, selection_bytes),
        "unseen": (nats - selection_nats, utf8_bytes - selection_bytes),
        "clean": (nats[clean], utf8_bytes[clean]),
    }
    # A document may have no text in a section; a section without any is left out.
    return {name: summarize_documents(*sums) for name, sums in sections.items() if sums[1].any()}


def make_details(documents: dict[str, np.ndarray], losses_side_by_side: np.ndarray, entropy_bits: float | None) -> dict:
    """Return the figures of the whole file and of its sections; `entropy_bits` is the text's own, where it is known."""
    details = summarize(documents["nats"], documents["tokens"], documents["utf8_bytes"])
    utf8_bytes, num_documents = details["utf8_bytes"], details["documents"]
    estimate = ratio_interval(documents["nats"] / math.log(2), documents["utf8_bytes"], np.random.default_rng(1))
    details["bits_per_byte_interval"] = [estimate.low, estimate.high]  # 95 %
    if entropy_bits is not None:
        bits = details["nats_per_token"] * details["tokens"] / math.log(2)
        details["entropy"] = {
            f"{name}_bits_per_{unit}": value / count
            for unit, count in (("byte", utf8_bytes), ("document", num_documents))
            for name, value in (("floor", entropy_bits), ("excess", bits - entropy_bits))
        } | {"excess_fraction": bits / entropy_bits - 1}
    nats_side_by_side = float(losses_side_by_side.sum(dtype="float64"))
    details["bits_per_byte_side_by_side"] = nats_side_by_side / math.log(2) / utf8_bytes
    return details | summarize_sections(documents) | summarize_parts(documents)


def split_by_phenomenon(losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer) -> dict[str, dict]:
    """Return {"phenomena": name → figures} of generated stories, whose grammar is known; {} for other text."""
    if validation.meta["surprisal_bits"] is None or len(validation.spans) < 2:
        return {}
    try:
        return {"phenomena": summarize_phenomena(split_loss(losses, validation.ids, validation.spans, tokenizer))}
    except DataError as error:
        print(f"the loss is not split by phenomenon: {error}", flush=True)
        return {}


def parse_paths(argv: list[str]) -> argparse.Namespace:
    """Return the paths of the inputs and outputs."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name in ("models", "train", "validation", "tokenizer", "audit", "evaluation", "metrics", "plots"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args(argv)


def device_of(record: dict) -> torch.device:
    """Return the CPU, whose results are portable, for a model that was trained on one; else a GPU if there is one."""
    on_gpu = (record.get("segments") or [{}])[-1].get("device", "cpu") != "cpu"
    return pick_device(numerics="fast" if on_gpu else "portable")


@command
def main(argv: list[str]) -> None:
    """Evaluate the best model of a training run."""
    paths, start_s = parse_paths(argv), time.perf_counter()

    # Read the parameters.
    params = read_section(PARAMS, "eval", EvalParams)
    source = read_section(PARAMS, "data.source", str)
    prompts = read_section(PRESETS, f"sources.{source}.prompts", tuple[str, ...])

    # Open the inputs and check that they belong together.
    train, validation = open_tokens(paths.train), open_tokens(paths.validation)
    tokenizer = load_tokenizer(paths.tokenizer)
    for tokens in (train, validation):
        check_tokenizer(tokens, tokenizer.sha256)
    utf8_bytes, known = read_audit(paths.audit / "contamination.parquet", validation)
    model, record = load_trained(paths.models, device_of(read_json(paths.models / RECORD)))
    check_inputs(paths.models / "model.json", record, validation, tokenizer)
    seq_len = record["seq_len"]
    stride, cores = max(1, round(params.stride_fraction * seq_len)), FreeCores()

    with output_lock(paths.evaluation), atomic_folder(paths.evaluation) as evaluation:
        # Score every token in overlapping windows, and sum the losses by document.
        losses, _ = score(model, validation, seq_len, stride, cores)
        selected = mark_selection(validation, record["eval_tokens"], seq_len)
        token_bytes, spans = tokenizer.bytes_of(validation.ids), validation.spans
        documents = sum_by_document(losses, selected, token_bytes, spans, utf8_bytes) | known

        # Score again in windows side by side: they fill every position equally, and are what others report.
        losses_side_by_side, positions = score(model, validation, seq_len, seq_len, cores)
        by_position = loss_by_position(losses_side_by_side, positions)

        # Draw samples, and measure how much of them is copied or repeated.
        sampling = {"temperature": params.temperature, "top_k": params.top_k}
        samples = [
            draw(model, tokenizer, prompt, params.sample_tokens, seed, **sampling)
            for prompt in prompts for seed in range(params.seed, params.seed + params.num_samples)
        ]  # fmt: skip
        measures = measure(samples, train.ids)
        settings = f"Temperature {params.temperature}, top-k {params.top_k}, seeds from {params.seed} on."

        # Summarize; the metrics are what a person decides by, the details are all figures.
        weights = record["best"]["sha256"][:WEIGHTS_DIGITS]
        details = {"window_tokens": seq_len, "stride_tokens": stride, "weights_sha256": weights}
        details |= make_details(documents, losses_side_by_side, validation.meta["surprisal_bits"])
        details |= {"samples": summarize_samples(measures)} | split_by_phenomenon(losses, validation, tokenizer)
        clean = {"clean_bpb": details["clean"]["bits_per_byte"]} if "clean" in details else {}
        metrics = {"bits_per_byte": details["bits_per_byte"], "bpb_se": details["bits_per_byte_se"], **clean}

        # Write the tables, the samples, the details and the metrics.
        table, path = pa.table(documents), evaluation / "document_losses.parquet"
        pq.write_table(table, path, compression="none", write_page_checksum=True)
        write_text(evaluation / "samples.md", to_markdown(samples, measures, settings))
        write_json(evaluation / "details.json", details)
        write_csv(paths.plots / "loss_by_position.csv", ["context_tokens", "nats_per_token", "tokens"], by_position)
        write_json(paths.metrics / "eval.json", metrics)
    print(
        f"validation: {details['nats_per_token']:.4f} nats/token, {details['bits_per_byte']:.4f} bits per byte "
        f"(standard error {details['bits_per_byte_se'] or math.nan:.4f} over {details['documents']} documents); "
        f"evaluation took {time.perf_counter() - start_s:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())

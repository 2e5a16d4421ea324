"""Stage eval: model, validation file and tokenizer → metrics, loss by context, samples.

    python src/eval.py data/models data/processed_datasets/train.bin data/processed_datasets/validation.bin \
        data/tokenizer data/audit/overlap.parquet data/evaluation/document_losses.parquet metrics plots

Every token of the validation file is scored once, the first one after an end-of-text id, in windows
of the training length that move by eval.stride, in float32 whatever training computed in. The
documents among the first `eval_tokens`, which chose the best model, are reported apart from the rest,
and so are those of which little stands in the training text.
"""

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm.core.errors import DataError, IntegrityError, ParamsError, command
from lm.core.files import atomic_write, output_lock, write_csv, write_json, write_text
from lm.core.params import read_section
from lm.evaluate.samples import draw, judge, to_markdown
from lm.evaluate.samples import summarize as summarize_samples
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model
from lm.model.score import loss_by_position, score_tokens, sum_by_span, summarize
from lm.model.weights import WEIGHTS_DIGITS, check_trained_with, load_trained
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, check_id_range, check_tokenizer, document_spans, open_tokens

PARAMS = "params.yaml"
SCORE_BATCH_TOKENS = 8192
CLEAN_BELOW = 0.2  # of a document's tokens shared with the training text (Touvron et al. 2023, A.6)


@dataclasses.dataclass(frozen=True)
class EvalParams:
    """The section `eval` of params.yaml."""

    stride: int
    num_samples: int
    sample_tokens: int
    temperature: float
    top_k: int
    seed: int

    def __post_init__(self):
        for name in ("stride", "num_samples", "sample_tokens", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needed: at least 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}, needed: from 0 to below 2^63")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, needed: 0 or more")


def score(model: Gemma3Model, record: dict, tokens: TokenFile, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Each token's nats (N,) and position (N,) in windows of the training length that move by `stride`."""
    seq_len = record["seq_len"]
    if stride > seq_len:
        raise ParamsError(f"{PARAMS}: eval.stride is {stride}, needed: at most train.seq_len {seq_len}")
    losses, positions = score_tokens(
        model, tokens.ids, tokens.eot_id, seq_len, stride, max(1, SCORE_BATCH_TOKENS // seq_len), model.device,
        torch.float32, "evaluate",
    )  # fmt: skip
    if not np.isfinite(losses).all():
        raise DataError(f"{tokens.path}: {np.isnan(losses).sum()} of {len(losses)} losses are not finite")
    return losses, positions


def by_document(losses: np.ndarray, tokens: TokenFile, tokenizer: Tokenizer, eval_tokens: int) -> dict:
    """Columns (D,): what each document's nats, tokens and bytes are, and whether it chose the model."""
    spans = document_spans(tokens)
    return {
        "document": np.arange(len(spans)),
        "tokens": spans[:, 1] - spans[:, 0],
        "utf8_bytes": sum_by_span(tokenizer.token_bytes[tokens.ids], spans).astype(np.int64),
        "nats": sum_by_span(losses, spans),
        "chose_the_model": spans[:, 0] < eval_tokens,
    }


def make_metrics(columns: dict, record: dict, tokens: TokenFile, stride: int) -> dict:
    """The figures of metrics/eval.json: the whole file, its two parts, the excess over a known entropy."""
    chose = columns["chose_the_model"]

    def figures(keep: np.ndarray) -> dict:
        return summarize(*(columns[name][keep] for name in ("nats", "tokens", "utf8_bytes")))

    metrics = figures(np.ones_like(chose)) | {
        "window_tokens": record["seq_len"],
        "stride_tokens": stride,
        "weights_sha256": record["best"]["sha256"][:WEIGHTS_DIGITS],
    }
    clean = columns["shared_share"] < CLEAN_BELOW
    for name, part in (("selection", chose), ("unseen", ~chose), ("clean", clean)):
        if part.any():
            metrics[name] = {key: figures(part)[key] for key in ("documents", "bits_per_byte", "bits_per_byte_se")}
    floor = tokens.meta["surprisal_bits"]
    if floor is not None:
        bits = metrics["nats_per_token"] * metrics["tokens"] / math.log(2)
        metrics["entropy"] = {
            "floor_bits_per_byte": floor / metrics["utf8_bytes"],
            "excess_bits_per_byte": (bits - floor) / metrics["utf8_bytes"],
            "floor_bits_per_document": floor / metrics["documents"],
            "excess_bits_per_document": (bits - floor) / metrics["documents"],
            "excess_share": bits / floor - 1,
        }
    return metrics


def write_samples(
    path: Path, model: Gemma3Model, tokenizer: Tokenizer, prompts: tuple[str, ...], params: EvalParams, train: TokenFile
) -> dict:
    """Continue each prompt num_samples times, write Markdown, return how much is copied and repeated."""
    drawn = [
        draw(model, tokenizer, prompt, params.sample_tokens, params.temperature, params.top_k, params.seed + number)
        for prompt in prompts for number in range(params.num_samples)
    ]  # fmt: skip
    judged = judge(drawn, train.ids)
    settings = f"Temperature {params.temperature}, top-k {params.top_k}, seeds from {params.seed} on."
    write_text(path, to_markdown(drawn, judged, settings))
    return summarize_samples(judged)


def read_overlap(path: Path, tokens: TokenFile) -> np.ndarray:
    """(D,) the share of each validation document that stands in the training text too, as audit found it."""
    table = pq.read_table(path)
    if (table.schema.metadata or {}).get(b"validation_sha256", b"").decode() != tokens.meta["sha256"]:
        raise IntegrityError(f"{path}: is of another validation file than {tokens.path}; run `dvc repro`")
    return table["shared_share"].to_numpy()


@command
def main(argv: list[str]) -> None:
    """Evaluate argv[0], trained on argv[1], on argv[2] with argv[3] and argv[4] (overlap); write the others."""
    models, train_path, validation, tokenizer_folder, overlap, losses_path, metrics, plots = map(Path, argv)
    params = read_section(PARAMS, "eval", EvalParams)
    source = read_section(PARAMS, "data.source", str)
    prompts = read_section(PARAMS, f"sources.{source}.prompts", tuple[str, ...])
    train, tokens, tokenizer = open_tokens(train_path), open_tokens(validation), load_tokenizer(tokenizer_folder)
    for file in (train, tokens):
        check_tokenizer(file, tokenizer.sha256)
    check_id_range(tokens)
    shared = read_overlap(overlap, tokens)
    model, record = load_trained(models, machine.pick_device())
    check_trained_with(tokenizer.sha256, tokenizer.folder, models, record)
    if record["data_sha256"]["validation"] not in (None, tokens.meta["sha256"]):  # None: trained elsewhere
        raise IntegrityError(f"{models}/model.json: trained beside another {validation}; run `dvc repro`")
    if len(tokens.ids) <= record["seq_len"]:
        raise DataError(
            f"{validation}: {len(tokens.ids)} tokens, one window of train.seq_len needs {record['seq_len'] + 1}"
        )
    if not tokenizer.token_bytes[tokens.ids].any():
        raise DataError(f"{validation}: holds no text, only ends of documents; take another slice")
    with output_lock(losses_path):
        columns = by_document(score(model, record, tokens, params.stride)[0], tokens, tokenizer, record["eval_tokens"])
        columns["shared_share"] = shared
        with atomic_write(losses_path) as file:
            pq.write_table(pa.table(columns), file, compression="none", write_page_checksum=True)
        # Windows side by side fill every position alike, and are what others report.
        side_by_side, positions = score(model, record, tokens, record["seq_len"])
        figures = make_metrics(columns, record, tokens, params.stride)
        figures["bits_per_byte_side_by_side"] = (
            float(side_by_side.sum(dtype="float64")) / math.log(2) / figures["utf8_bytes"]
        )
        by_position = loss_by_position(side_by_side, positions)
        write_csv(plots / "loss_by_position.csv", ["context_tokens", "nats_per_token", "tokens"], by_position)
        figures["samples"] = write_samples(metrics / "samples.md", model, tokenizer, prompts, params, train)
        write_json(metrics / "eval.json", figures)
    print(
        f"validation: {figures['nats_per_token']:.4f} nats/token, {figures['bits_per_byte']:.4f} bits per byte "
        f"(standard error {figures['bits_per_byte_se'] or math.nan:.4f} over {figures['documents']} documents)"
    )


if __name__ == "__main__":
    sys.exit(main())

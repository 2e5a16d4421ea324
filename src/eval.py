"""Stage eval: model, validation file and tokenizer → metrics, loss by context, samples.

    python src/eval.py data/models data/processed_datasets/validation.bin data/tokenizer \
        data/evaluation/document_losses.parquet metrics plots

Every token of the validation file is scored once, the first one after an end-of-text id, in windows
of the training length that move by eval.stride, in float32 whatever training computed in. The
documents among the first `eval_tokens`, which chose the best model, are reported apart from the rest.
"""

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lm import machine
from lm.errors import DataError, IntegrityError, ParamsError, command
from lm.figure import draw_loss_by_position
from lm.files import atomic_write, output_lock, write_csv, write_json, write_text
from lm.model import Gemma3Model
from lm.params import read_section
from lm.sample import generate
from lm.score import loss_by_position, score_tokens, sum_by_span, summarize
from lm.tokenfile import TokenFile, check_id_range, check_tokenizer, document_spans, open_tokens
from lm.tokenizer import Tokenizer, load_tokenizer
from lm.trained import WEIGHTS_DIGITS, check_trained_with, load_trained

PARAMS = "params.yaml"
SCORE_BATCH_TOKENS = 8192


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
    for name, part in (("selection", chose), ("unseen", ~chose)):
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
    path: Path, model: Gemma3Model, tokenizer: Tokenizer, prompts: tuple[str, ...], params: EvalParams
) -> None:
    """Continue each prompt, and the empty one, num_samples times and write Markdown."""
    settings = f"Temperature {params.temperature}, top-k {params.top_k}, seed {params.seed}."
    lines = ["# Samples", "", settings, ""]
    for prompt in prompts:
        for number in range(params.num_samples):
            text, end = sample(model, tokenizer, prompt, params, params.seed + number)
            title = f"## `{prompt.strip() or '(nothing)'}`, sample {number + 1}, {end}"
            lines += [title, "", "```text", text.strip("\n"), "```", ""]
    write_text(path, "\n".join(lines))


def sample(model: Gemma3Model, tokenizer: Tokenizer, prompt: str, params: EvalParams, seed: int) -> tuple[str, str]:
    """Continue one prompt from one seed; return the text and how it ended."""
    prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
    generator = torch.Generator(model.device).manual_seed(seed)
    settings = {"temperature": params.temperature, "top_k": params.top_k, "eot_id": tokenizer.eot_id}
    ids = list(generate(model, prompt_ids, params.sample_tokens, generator=generator, **settings))
    if ids and ids[-1] == tokenizer.eot_id:
        return prompt + tokenizer.decode(ids[:-1]), "ends by itself"
    return prompt + tokenizer.decode(ids), f"cut after {len(ids)} tokens"


@command
def main(argv: list[str]) -> None:
    """Evaluate argv[0] on argv[1] with argv[2]; write argv[3] (document losses), argv[4] and argv[5]."""
    models, validation, tokenizer_folder, losses_path, metrics, plots = map(Path, argv)
    params = read_section(PARAMS, "eval", EvalParams)
    source = read_section(PARAMS, "data.source", str)
    prompts = read_section(PARAMS, f"sources.{source}.prompts", tuple[str, ...])
    tokens, tokenizer = open_tokens(validation), load_tokenizer(tokenizer_folder)
    check_tokenizer(tokens, tokenizer.sha256)
    check_id_range(tokens)
    model, record = load_trained(models, machine.pick_device())
    check_trained_with(tokenizer.sha256, tokenizer.folder, models, record)
    if record["data_sha256"]["validation"] not in (None, tokens.meta["sha256"]):  # None: trained elsewhere
        raise IntegrityError(f"{models}/model.json: trained beside another {validation}; run `dvc repro`")
    with output_lock(losses_path):
        columns = by_document(score(model, record, tokens, params.stride)[0], tokens, tokenizer, record["eval_tokens"])
        with atomic_write(losses_path) as file:
            pq.write_table(pa.table(columns), file, compression="none", write_page_checksum=True)
        # Windows side by side fill every position alike, and are what others report.
        side_by_side, positions = score(model, record, tokens, record["seq_len"])
        figures = make_metrics(columns, record, tokens, params.stride)
        figures["bits_per_byte_side_by_side"] = (
            float(side_by_side.sum(dtype="float64")) / math.log(2) / figures["utf8_bytes"]
        )
        write_json(metrics / "eval.json", figures)
        by_position = loss_by_position(side_by_side, positions)
        write_csv(plots / "loss_by_position.csv", ["context_tokens", "nats_per_token", "tokens"], by_position)
        draw_loss_by_position(plots / "loss_by_position.png", by_position)
        write_samples(metrics / "samples.md", model, tokenizer, prompts, params)
    print(
        f"validation: {figures['nats_per_token']:.4f} nats/token, {figures['bits_per_byte']:.4f} bits per byte "
        f"(standard error {figures['bits_per_byte_se'] or math.nan:.4f} over {figures['documents']} documents)"
    )


if __name__ == "__main__":
    sys.exit(main())

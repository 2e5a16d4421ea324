"""Stage eval: model, validation file and tokenizer → metrics, loss by context, samples.

    python src/eval.py data/models data/processed_datasets/validation.bin data/tokenizer \
        data/evaluation/document_losses.parquet metrics plots

Every token of the validation file is scored once, the first one after an end-of-text id, in windows
of the training length that move by eval.stride. The documents among the first `eval_tokens`, which
chose the best model, are reported apart from the unseen rest.
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
from lm.checkpoint import load_tensors
from lm.errors import DataError, IntegrityError, ParamsError, command
from lm.figure import draw_loss_by_position
from lm.files import atomic_write, output_lock, read_json, write_csv, write_json, write_text
from lm.model import Gemma3Model, ModelConfig
from lm.params import read_section
from lm.sample import generate
from lm.score import loss_by_position, score_tokens, sum_by_span, summarize
from lm.tokenfile import TokenFile, check_id_range, check_tokenizer, document_spans, open_tokens
from lm.tokenizer import Tokenizer, load_tokenizer

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


def load_model(models: Path, device: torch.device) -> tuple[Gemma3Model, dict]:
    """Return the best model and model.json. IntegrityError if the weights are not the recorded ones."""
    record = read_json(models / "model.json")
    model = Gemma3Model(ModelConfig(**record["config"]))
    weights = load_tensors(models / "best_model_params.pt", record["best"]["sha256"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise IntegrityError(f"{models}/best_model_params.pt does not fit model.json: {' '.join(str(error).split())}") from None
    return model.to(device), record


def score_documents(model, record: dict, tokens: TokenFile, tokenizer: Tokenizer, stride: int, device) -> tuple:
    """Score the whole file; return per-document columns (D,) and the loss by position in the context."""
    if stride > record["seq_len"]:
        raise ParamsError(f"{PARAMS}: eval.stride is {stride}, needed: at most train.seq_len {record['seq_len']}")
    losses, positions = score_tokens(
        model, tokens.ids, tokens.eot_id, record["seq_len"], stride, max(1, SCORE_BATCH_TOKENS // record["seq_len"]),
        device, machine.DTYPES[record["dtype"]], "evaluate",
    )  # fmt: skip
    if not np.isfinite(losses).all():
        raise DataError(f"{tokens.path}: {np.isnan(losses).sum()} of {len(losses)} losses are not finite")
    spans = document_spans(tokens)
    columns = {
        "document": np.arange(len(spans)),
        "tokens": spans[:, 1] - spans[:, 0],
        "utf8_bytes": sum_by_span(tokenizer.token_bytes[tokens.ids], spans).astype(np.int64),
        "nats": sum_by_span(losses, spans),
        "chose_the_model": spans[:, 0] < record["eval_tokens"],
    }
    return columns, loss_by_position(losses, positions)


def make_metrics(columns: dict, record: dict, tokens: TokenFile, stride: int) -> dict:
    """The figures of metrics/eval.json: the whole file, its two parts, and the excess over a known entropy."""
    figures = lambda keep: summarize(*(columns[name][keep] for name in ("nats", "tokens", "utf8_bytes")))  # noqa: E731
    chose = columns["chose_the_model"]
    metrics = figures(slice(None)) | {"window_tokens": record["seq_len"], "stride_tokens": stride}
    metrics["selection_part"] = figures(chose)
    if not chose.all():
        metrics["unseen_part"] = figures(~chose)
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


def write_samples(path: Path, model, tokenizer: Tokenizer, prompts: tuple[str, ...], params: EvalParams) -> None:
    """Continue each prompt, and the empty one, num_samples times and write Markdown."""
    lines = ["# Samples", "", f"Temperature {params.temperature}, top-k {params.top_k}, seed {params.seed}.", ""]
    for prompt in prompts:
        for number in range(params.num_samples):
            generator = torch.Generator(model.device).manual_seed(params.seed + number)
            prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
            ids = list(
                generate(
                    model, prompt_ids, params.sample_tokens, temperature=params.temperature, top_k=params.top_k,
                    generator=generator, eot_id=tokenizer.eot_id,
                )  # fmt: skip
            )
            ended = bool(ids) and ids[-1] == tokenizer.eot_id
            text = prompt + tokenizer.decode(ids[:-1] if ended else ids)
            end = "ends by itself" if ended else f"cut after {len(ids)} tokens"
            lines += [f"## `{prompt or '(nothing)'}`, sample {number + 1}, {end}", "", "```text", text.strip("\n"), "```", ""]
    write_text(path, "\n".join(lines).replace("\r", ""))


@command
def main(argv: list[str]) -> None:
    """Evaluate argv[0] on argv[1] with argv[2]; document losses to argv[3], metrics to argv[4], plots to argv[5]."""
    models, validation, tokenizer_folder, losses_path, metrics, plots = map(Path, argv)
    params = read_section(PARAMS, "eval", EvalParams)
    prompts = read_section(PARAMS, f"sources.{read_section(PARAMS, 'data.source', str)}.prompts", tuple[str, ...])
    tokens, tokenizer, device = open_tokens(validation), load_tokenizer(tokenizer_folder), machine.pick_device()
    check_tokenizer(tokens, tokenizer.sha256)
    check_id_range(tokens)
    model, record = load_model(models, device)
    if record["data_sha256"]["validation"] != tokens.meta["sha256"]:
        raise IntegrityError(f"{models}/model.json: trained beside another {validation}; run `dvc repro`")
    with output_lock(losses_path):
        columns, by_position = score_documents(model, record, tokens, tokenizer, params.stride, device)
        with atomic_write(losses_path) as file:
            pq.write_table(pa.table(columns), file, compression="none", write_page_checksum=True)
        figures = make_metrics(columns, record, tokens, params.stride)
        write_json(metrics / "eval.json", figures)
        write_csv(plots / "loss_by_position.csv", ["context_tokens", "nats_per_token", "tokens"], by_position)
        draw_loss_by_position(plots / "loss_by_position.png", by_position)
        write_samples(metrics / "samples.md", model, tokenizer, prompts, params)
    se = figures["bits_per_byte_se"]
    print(
        f"validation: {figures['nats_per_token']:.4f} nats/token, {figures['bits_per_byte']:.4f} bits per byte"
        + (f" (standard error {se:.4f} over {figures['documents']} documents)" if se is not None else "")
    )


if __name__ == "__main__":
    sys.exit(main())

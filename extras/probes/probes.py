"""Study the finished model: what its loss consists of, minimal pairs, calibration, and text to read.

    python src probes
    python src probes --against ../other/data/probes

It reads data/models, data/tokenizer, data/processed_datasets and data/evaluation, and writes the folder --out:
index.html to read in a browser, details.json with all figures, minimal_pairs.parquet with a row for each pair.
--against names the folder of another model; the accuracies are compared on the minimal pairs that both have.
"""

import argparse
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from extras.probes.breakdown import loss_by_frequency, loss_by_length
from extras.probes.calibration import calibrate
from extras.probes.excerpts import largest_excess_losses, typical_documents
from extras.probes.minimal_pairs import compare_pairs, score_pairs, summarize_pairs
from extras.probes.page import render
from extras.probes.phenomena import derive_stories, split_by_phenomenon
from lm.core.errors import IntegrityError, ParamsError, command
from lm.core.files import PARQUET, atomic_folder, output_lock, read_json, write_json, write_text
from lm.model.device import pick_device
from lm.model.score import score_tokens
from lm.model.weights import WEIGHTS_DIGITS, check_trained_with, load_trained
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import check_tokenizer, count_ids, open_tokens
from tools.common.arguments import tool_parser
from tools.common.paths import DOCUMENT_LOSSES, EVALUATION_DETAILS, MODELS, TOKENIZER, TRAIN, VALIDATION

PAIRS = "minimal_pairs.parquet"
BATCH_TOKENS = 8192


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("probes", __doc__)
    parser.add_argument("--out", type=Path, default=Path("data/probes"), help="the folder to write (data/probes)")
    parser.add_argument("--pairs", type=int, default=500, help="minimal pairs of each kind, at most (500)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of pairs (1)")
    parser.add_argument("--against", type=Path, help="the folder that this command wrote for another model")
    args = parser.parse_args(argv)
    for name in ("pairs", "seed"):
        if getattr(args, name) < 0:
            raise ParamsError(f"--{name} is {getattr(args, name)}, needed: 0 or more")
    if args.against and not (args.against / PAIRS).exists():
        raise ParamsError(f"--against is {args.against}, which has no {PAIRS}; needed: a folder that probes wrote")
    return args


@command
def main(argv: list[str]) -> None:
    args = parse(argv)

    # Open the model, its text and its evaluation, and check that they belong together.
    train, validation, tokenizer = open_tokens(TRAIN), open_tokens(VALIDATION), load_tokenizer(TOKENIZER)
    for tokens in (train, validation):
        check_tokenizer(tokens, tokenizer.sha256)
    model, record = load_trained(MODELS, pick_device())
    check_trained_with(tokenizer.sha256, TOKENIZER, MODELS, record)
    evaluation = read_json(EVALUATION_DETAILS)
    if not record["best"]["sha256"].startswith(evaluation["weights_sha256"]):
        raise IntegrityError(f"{EVALUATION_DETAILS}: is about other weights than {MODELS} has; run `dvc repro eval`")
    table = pq.read_table(DOCUMENT_LOSSES, columns=["tokens", "nats", "utf8_bytes"])
    documents = {name: table[name].to_numpy() for name in table.column_names}
    if documents["tokens"].sum() != len(validation.ids):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: has other documents than {VALIDATION}; run `dvc repro eval`")

    # Score every token again as eval does, which keeps the losses of documents only; then minimal pairs.
    seq_len, stride = evaluation["window_tokens"], evaluation["stride_tokens"]
    print(f"scoring {len(validation.ids):,} tokens, then minimal pairs", flush=True)
    batch_size = max(1, BATCH_TOKENS // seq_len)
    losses, _ = score_tokens(model, validation, seq_len, stride, batch_size, torch.float32)
    stories = derive_stories(validation, tokenizer)
    columns = score_pairs(model, validation, stories is not None, tokenizer, seq_len, args.pairs, args.seed)
    pairs = pa.table(columns)

    # Break the loss down, on generated stories also by what their grammar knows; measure calibration.
    excess_losses = losses - stories.surprisal_nats if stories else losses
    details = {
        "weights_sha256": record["best"]["sha256"][:WEIGHTS_DIGITS],
        "phenomena": split_by_phenomenon(losses, stories, validation.spans) if stories else {},
        "minimal_pairs": summarize_pairs(columns),
        "against": compare_pairs(pq.read_table(args.against / PAIRS), pairs) if args.against else {},
        "by_frequency": loss_by_frequency(losses, validation.ids, count_ids(train.ids, train.vocab_size)),
        "by_length": loss_by_length(documents),
        "calibration": calibrate(model, validation, seq_len),
    }
    excerpts = {
        "Largest excess losses": largest_excess_losses(
            model, losses, excess_losses, validation, tokenizer, seq_len, stride
        ),
        "Typical documents": typical_documents(losses, excess_losses, validation, tokenizer),
    }

    with output_lock(args.out), atomic_folder(args.out) as folder:
        write_json(folder / "details.json", details)
        pq.write_table(pairs, folder / PAIRS, **PARQUET)
        write_text(folder / "index.html", render(details, excerpts, args.against))
    print(f"{args.out / 'index.html'}: open it in a browser")

"""Score the validation text with causal models of transformers, and write their losses as a table for `compare`.

    python src score_hf exported
    python src score_hf downloads/gpt2 exported --seq_len 256 --out comparisons/gpt2.csv
    python src compare main comparisons/gpt2.csv

A folder holds config.json, safetensors and the tokenizer of a model, or is one that export_hf wrote. Documents, each
followed by end-of-text, are one stream of tokens. Windows move over it by eval.stride_fraction as in `eval`, so the
losses of an export are those of `eval`, except for rounding. All models of a table have windows of one length, because
a longer context lowers the loss. Nothing is downloaded, and code in a folder is not run.
"""

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from lm.core.errors import DataError, ParamsError, exit_with_status
from lm.core.files import read_json, write_text
from lm.core.params import read_section
from lm.evaluate.config import EvalParams
from lm.evaluate.documents import sum_by_span
from lm.model.machine import read_device
from lm.model.score import inputs_and_targets, windows_to_score
from lm.model.weights import RECORD
from lm.text.documents import open_text
from lm.text.slices import read_slice
from lm.tokenizer.load import META, load_tokenizer
from lm.tokens.tokenfile import LOSSY, TokenFile
from tools.export_hf.hugging_face import open_with_transformers
from tools.record.arguments import count, tool_parser
from tools.record.paths import PARAMS, RAW, TOKENIZER

COLUMNS = ["run", "document", "nats", "utf8_bytes"]
MOST_TOKENS = 1024  # of a window, if --seq_len does not set it
CAUSAL_WITHIN = 1e-3  # nats by which rounding may change a prediction when later tokens change


class Stream(NamedTuple):
    """The documents as one stream of tokens."""

    tokens: TokenFile
    spans: np.ndarray  # (D, 2) the first token of each document, and the one after its end-of-text


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if two folders have the same name."""
    parser = tool_parser("score_hf", __doc__)
    add = parser.add_argument
    add("folders", type=Path, nargs="+", metavar="FOLDER", help="folder of a model; its name is that of the run")
    add("--seq_len", type=count, help=f"tokens of a window (of the training, or of the model, at most {MOST_TOKENS:,})")
    add("--out", type=Path, default=Path("comparisons/losses.csv"), help="the table (comparisons/losses.csv)")
    args = parser.parse_args(argv)
    names = {folder.resolve().name for folder in args.folders}
    if len(names) < len(args.folders):
        raise ParamsError("two folders have the same name; name each folder once, or rename one")
    if args.out.suffix != ".csv":
        raise ParamsError(f"--out is {args.out}; the name must end in .csv")
    return args


def open_model(folder: Path):
    """Return the model of a folder in float32, on the device of runtime.yaml; DataError if it cannot be read."""
    if not folder.is_dir():
        raise ParamsError(f"{folder} is not a folder")
    try:
        model = open_with_transformers(folder)
    except Exception as error:  # transformers raises many types for what it cannot read
        raise DataError(f"{folder}: not a causal model of transformers: {' '.join(str(error).split())}") from None
    return torch.nn.Module.to(model, read_device())


def encode(folder: Path, texts: list[str]) -> Stream:
    """Return the texts in the tokens of a folder, all of them ordinary text. DataError if no token ends a document."""
    if (folder / TOKENIZER.name / META).exists():  # as trained
        tokenizer = load_tokenizer(folder / TOKENIZER.name)
        eot_id = tokenizer.eot_id
        ids, lengths = tokenizer.encode_documents(texts)
    else:
        ids, lengths, eot_id = encode_with_transformers(folder, texts)
    ends = np.cumsum(lengths)
    tokens = TokenFile(folder, ids, {"tokenizer": {"eot_id": eot_id}})
    return Stream(tokens, np.stack([ends - lengths, ends], axis=1))


def encode_with_transformers(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return ids (N,) with end-of-text after each document, the lengths (D,) of the documents, and its id."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise DataError(f"{folder}: its tokenizer cannot be read: {' '.join(str(error).split())}") from None
    eot_id = tokenizer.eos_token_id
    if eot_id is None:
        raise DataError(f"{folder}: its tokenizer has no eos_token to end documents; set it in tokenizer_config.json")
    tokenizer.model_max_length = sys.maxsize  # no warning of long documents, which are cut into windows
    documents = [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]
    decoded = [tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in documents]
    if changed := sum(text != again for text, again in zip(texts, decoded, strict=True)):
        print(f"warning: {folder}: decoding does not restore {changed} of {len(texts)} documents; {LOSSY}")
    ids = np.concatenate([[*ids, eot_id] for ids in documents])
    return ids, np.array([len(ids) + 1 for ids in documents]), eot_id


def window_tokens(folder: Path, model, wanted: int | None) -> int:
    """Return the tokens of a window. ParamsError if the model takes fewer."""
    most = getattr(model.config, "max_position_embeddings", None)
    if wanted is not None:
        if wanted < 1 or (most and wanted > most):
            raise ParamsError(f"--seq_len is {wanted}; it must be from 1 to {most or 'the context of the model'}")
        return wanted
    if (folder / RECORD).exists():
        return read_json(folder / RECORD)["seq_len"]
    return min(most or MOST_TOKENS, MOST_TOKENS)


@torch.inference_mode()
def score(model, tokens: TokenFile, seq_len: int, stride: int) -> np.ndarray:
    """Return the nats (N,) of each token, scored as in `lm.model.score`, one window at a time."""
    num_tokens = len(tokens.ids)
    seq_len = min(seq_len, num_tokens)
    nats = np.empty(num_tokens)
    windows = list(windows_to_score(num_tokens, seq_len, min(stride, seq_len)))
    for start, first in tqdm(windows, desc="score", unit="window", disable=None, leave=False):
        inputs, targets = inputs_and_targets(tokens, np.array([start]), seq_len, model.device)
        if start == 0:
            reject_lookahead(model, inputs, tokens)
        scored = slice(first - start, seq_len)
        logits = model(inputs, use_cache=False).logits[0, scored].float()
        nats[first : start + seq_len] = F.cross_entropy(logits, targets[0, scored], reduction="none").cpu()
    return nats


def reject_lookahead(model, inputs: torch.Tensor, tokens: TokenFile) -> None:
    """Raise DataError if predictions of a window (1, T) depend on later tokens: such losses mean nothing."""
    half = inputs.shape[1] // 2
    changed = inputs.clone()
    changed[:, half:] = torch.flip(inputs[:, half:], (1,))
    changed[:, -1] = tokens.eot_id
    before, after = (model(ids, use_cache=False).logits[0, :half].log_softmax(-1) for ids in (inputs, changed))
    if half and (before - after).abs().max() > CAUSAL_WITHIN:
        raise DataError(f"{tokens.path}: a prediction depends on later tokens; this is not a causal model")


def common_window(folders: list[Path], wanted: int | None) -> int:
    """Return the tokens of a window of all models. ParamsError if they differ: a longer context lowers the loss."""
    sizes = {folder: window_tokens(folder, open_model(folder), wanted) for folder in folders}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{folder} {size:,}" for folder, size in sizes.items())
        remedy = f"give --seq_len, such as {min(sizes.values())}"
        raise ParamsError(f"the models have windows of different lengths (tokens: {found}); {remedy}")
    return sizes[folders[0]]


def losses_of(folder: Path, texts: list[str], seq_len: int, params: EvalParams) -> np.ndarray:
    """Return the nats (D,) of the documents under the model of a folder. DataError if one is not finite."""
    model = open_model(folder)
    stream = encode(folder, texts)
    stride = params.stride_tokens(seq_len)
    print(f"{folder}: scoring {len(stream.tokens.ids):,} tokens in windows of {seq_len:,}, moved by {stride:,}")
    nats = sum_by_span(score(model, stream.tokens, seq_len, stride), stream.spans)
    if not np.isfinite(nats).all():
        raise DataError(f"{folder}: a loss is not finite")
    return nats


@exit_with_status
def main(argv: list[str]) -> None:
    """Score the models one after the other, and write the table."""
    args = parse(argv)
    params = read_section(PARAMS, "eval", EvalParams)
    seq_len = common_window(args.folders, args.seq_len)
    text = open_text(RAW, read_slice("validation"))
    texts = [document for batch in text.batches() for document in batch]
    utf8_bytes = text.utf8_bytes()

    # Score.
    rows = []
    for folder in args.folders:
        nats = losses_of(folder, texts, seq_len, params)
        name = folder.resolve().name
        rows += [[name, *row] for row in zip(range(len(texts)), nats.tolist(), utf8_bytes.tolist(), strict=True)]
        print(f"{folder}: {nats.sum() / np.log(2) / utf8_bytes.sum():.4f} bits per byte")

    # Write the table with all digits.
    content = io.StringIO()
    table = csv.writer(content, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(rows)
    write_text(args.out, content.getvalue())
    print(f"written: {args.out}")

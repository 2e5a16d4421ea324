"""Compress a text or a token file by the model's predictions: the size of the file is the model's loss.

    python src compress LICENSE license.rlmc
    python src compress data/processed_datasets/validation.bin validation.rlmc
    python src decompress license.rlmc license.copy

FILE is a UTF-8 text, or a token file X.bin with its sidecar. A token of probability p takes -log2(p) bits, so the size
of OUT in bits is the loss that `eval` reports for this text. Windows move as in `eval`, by eval.stride_fraction of
params.yaml. The model computes in exact numerics, so OUT can be decompressed on any processor.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from extras.compress import files
from extras.compress.predictions import Predictor
from extras.compress.range_coder import Encoder
from lm.core.errors import DataError, exit_with_status
from lm.core.files import atomic_write
from lm.core.params import read_section
from lm.evaluate.config import EvalParams
from lm.exact.threads import ThreadTuner
from lm.model.causality import check_causality
from lm.model.score import inputs_and_targets, windows_to_score
from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import LOSSY, TokenFile, check_tokenizer, lossy_fractions, open_tokens
from tools.record.paths import PARAMS

BATCH_TOKENS = 8192  # of the windows that are computed at once


def read_tokens(path: Path, tokenizer: Tokenizer) -> TokenFile:
    """Return the tokens of a token file, or of a text followed by end-of-text; `meta` has the file's SHA-256.

    Raise IntegrityError for a token file of another tokenizer, and DataError for a text that is not UTF-8 or that
    decoding its tokens does not restore.
    """
    if path.suffix == ".bin":
        tokens = open_tokens(path)
        check_tokenizer(tokens, tokenizer.sha256)
        return tokens
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; the file must be a UTF-8 text or X.bin") from None
    ids, _ = tokenizer.encode_documents([text])
    if tokenizer.decode_bytes(ids[:-1]) != content:
        raise DataError(f"{path}: decoding its tokens does not restore it; use a lossless tokenizer such as bpe")
    meta = {"tokenizer": tokenizer.sidecar_entry(), "sha256": hashlib.sha256(content).hexdigest()}
    return TokenFile(path, ids, meta)


@torch.inference_mode()
def encode(predictor: Predictor, tokens: TokenFile, seq_len: int, stride: int) -> bytes:
    """Return the bytes of the range coder for all tokens, each predicted as `eval` predicts it."""
    num_tokens = len(tokens.ids)
    seq_len = min(seq_len, num_tokens)
    windows = list(windows_to_score(num_tokens, seq_len, stride))
    batch_size = max(1, BATCH_TOKENS // seq_len)
    encoder = Encoder()
    cores = ThreadTuner("exact")
    for begin in tqdm(range(0, len(windows), batch_size), desc="compress", unit="batch", disable=None, leave=False):
        # Compute whole windows at once.
        batch = windows[begin : begin + batch_size]
        starts = np.array([start for start, _ in batch])
        inputs, targets = inputs_and_targets(tokens, starts, seq_len, predictor.model.device)
        hidden = predictor.model.hidden(inputs)  # (B, T, C)

        # Encode the tokens that each window scores.
        for row, (start, first) in enumerate(batch):
            scored = slice(first - start, seq_len)
            all_weights = predictor.weights(hidden[row, scored])
            for token, weights in zip(targets[row, scored].tolist(), all_weights, strict=True):
                encoder.encode(int(weights[:token].sum()), int(weights[token]), int(weights.sum()))
        cores.adapt()
    return encoder.finish()


@exit_with_status
def main(argv: list[str]) -> None:
    """Compress a file, and print its size and the loss."""
    reads = "a UTF-8 text, or a token file X.bin with its sidecar"
    args = files.parse("compress", __doc__, argv, reads, writes="the compressed file")
    params = read_section(PARAMS, "eval", EvalParams)

    # Open the model and the tokens.
    model, record, tokenizer = files.load(args.models, args.tokenizer)
    tokens = read_tokens(args.file, tokenizer)
    num_bytes = tokenizer.count_bytes(tokens.ids)
    if num_bytes == 0:
        raise DataError(f"{args.file}: contains no text; it must have at least one character")
    stride = max(1, round(params.stride_fraction * record["seq_len"]))

    # Compress and write. If a prediction depended on later tokens, decompression would fail.
    check_causality(model, tokens, record["seq_len"], 1, torch.float32)
    payload = encode(Predictor(model), tokens, record["seq_len"], stride)
    token_bytes = tokens.ids.dtype.itemsize if args.file.suffix == ".bin" else 0
    weights_digest = files.first_bytes(record["best"]["sha256"])
    content_digest = files.first_bytes(tokens.meta["sha256"])
    header = files.Header(token_bytes, len(tokens.ids), stride, weights_digest, content_digest)
    with atomic_write(args.out) as file:
        file.write(files.join(header, payload))

    # Report the size without the header, which is the loss.
    bits = 8 * len(payload)
    print(
        f"{num_bytes:,} bytes of text → {len(payload) + files.HEADER_BYTES:,} bytes with a header of "
        f"{files.HEADER_BYTES}; without it {bits / num_bytes:.4f} bits per byte, "
        f"{bits * math.log(2) / len(tokens.ids):.4f} nats per token over {len(tokens.ids):,} tokens"
    )
    if lossy_fractions(tokens.meta):
        print(LOSSY)

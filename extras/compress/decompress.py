"""Decompress a file that `compress` wrote, byte for byte, on any processor.

    python src decompress license.rlmc license.copy

OUT is the text, or the token file X.bin without its sidecar. The model decodes one token after the other. A correct OUT
proves that the model predicts the text as well as the size of FILE says. A result with another SHA-256 is not written.
"""

import numpy as np
import torch
from tqdm import tqdm

from extras.compress import files
from extras.compress.predictions import Predictor
from extras.compress.range_coder import Decoder
from lm.core.errors import IntegrityError, exit_with_status
from lm.core.files import atomic_write
from lm.evaluate.generation import KVCache
from lm.exact.threads import ThreadTuner
from lm.model.score import windows_to_score


@torch.inference_mode()
def decode(predictor: Predictor, header: files.Header, payload: bytes, seq_len: int, eot_id: int) -> list[int]:
    """Return the ids of all tokens."""
    ids: list[int] = []
    decoder = Decoder(payload)
    cores = ThreadTuner("exact")
    seq_len = min(seq_len, header.num_tokens)
    windows = list(windows_to_score(header.num_tokens, seq_len, header.stride))
    for start, first in tqdm(windows, desc="decompress", unit="window", disable=None, leave=False):
        # A window begins with the token before it, and with end-of-text at the start of the file.
        inputs = [ids[start - 1] if start > 0 else eot_id, *ids[start:first]]
        cache = KVCache()
        for _ in range(first, start + seq_len):
            (weights,) = predictor.weights(predictor.last_hidden(inputs, cache))
            ends = weights.cumsum()
            total = int(ends[-1])
            token = int(np.searchsorted(ends, decoder.point(total), side="right"))
            weight = int(weights[token])
            decoder.remove(int(ends[token]) - weight, weight, total)
            ids.append(token)
            inputs.append(token)
        cores.adapt()
    return ids


@exit_with_status
def main(argv: list[str]) -> None:
    """Decompress a file; if the result is not what was compressed, write nothing and raise IntegrityError."""
    reads = "a file that `compress` wrote"
    args = files.parse(
        "decompress", __doc__, argv, reads, writes="the text, or the token file X.bin without its sidecar"
    )
    header, payload = files.split(args.file)

    # Load the model that the header names.
    model, record, tokenizer = files.load(args.models, args.tokenizer)
    weights_digest = files.first_bytes(record["best"]["sha256"])
    if weights_digest != header.weights_digest:
        weights = f"the weights {header.weights_digest.hex()}…, but {args.models} has {weights_digest.hex()}…"
        raise IntegrityError(f"{args.file}: was compressed with {weights}; set --models to the folder of that model")

    # Decompress, compare and write.
    ids = decode(Predictor(model), header, payload, record["seq_len"], tokenizer.eot_id)
    is_text = header.token_bytes == 0
    content = tokenizer.decode_bytes(ids[:-1]) if is_text else np.array(ids, f"<u{header.token_bytes}").tobytes()
    if files.digest(content) != header.content_digest:
        problem = "the result is not what was compressed, because the model computes other bits here"
        raise IntegrityError(f"{args.file}: {problem}; `python src verify --processor` names the first")
    with atomic_write(args.out) as file:
        file.write(content)
    print(f"{args.out}: {len(content):,} bytes, {len(ids):,} tokens, with the SHA-256 of the original")

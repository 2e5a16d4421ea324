"""Stages tokenize_train and tokenize_val: write a slice of the text as one stream of token ids.

    python src/tokenize_split.py --split train --raw data/raw --tokenizer data/tokenizer \\
        --tokens data/processed_datasets/train.bin

gigatoken encodes the text if it can (lm.tokenizer.gigatoken_encoder), otherwise the tokenizer does, in processes.
The bytes depend neither on this choice nor on the size of chunks, because documents are encoded one by one.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

from lm.core.errors import exit_with_status
from lm.core.files import output_lock
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.core.params import read_section
from lm.core.paths import RUNTIME
from lm.text.documents import Text, open_manifest
from lm.text.slices import Slice, read_slice
from lm.tokenizer.config import TokenizeRuntime
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import Encoded, encode_in_processes, encode_with_gigatoken, show_progress
from lm.tokenizer.gigatoken_encoder import open_gigatoken
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import LOSSY, lossy_fractions, write_tokens


@contextlib.contextmanager
def hash_beside(text: Text) -> Iterator[Future]:
    """Hash the file of the text while it is encoded; `result()` raises IntegrityError for a damaged file.

    Damage is reported before any error that may follow from it.
    """
    with ThreadPoolExecutor(1) as pool:
        file_check = pool.submit(text.check_file)
        try:
            yield file_check
        except Exception:
            file_check.result()
            raise


def tokenize_slice(
    raw: Path, folder: Path, text_slice: Slice, out: Path, num_processes: int | None, inputs: StageInputs
) -> tuple[dict, str]:
    """Encode a slice of `raw` with the tokenizer in `folder`; write the token file `out` and its sidecar.

    Return the sidecar and the name of the encoder. num_processes: used without gigatoken; None means one per core.
    """
    text = Text(raw, open_manifest(raw), text_slice)
    with hash_beside(text) as file_check:
        tokenizer = load_tokenizer(folder)

        def write(encoded: Encoded) -> dict:
            """Write the ids, and then the sidecar. Raise IntegrityError if an input is damaged or has changed."""
            counts = TextCounts()

            def describe() -> dict:
                file_check.result()
                inputs.check_unchanged()
                return counts.sidecar_entries(tokenizer, text.slice, text.source)

            ids = counts.ids_of(show_progress(encoded, text.num_chars))
            return write_tokens(out, ids, tokenizer.meta["dtype"], describe)

        # Encode with gigatoken, which is faster.
        gigatoken = open_gigatoken(tokenizer)
        if gigatoken:
            return write(encode_with_gigatoken(text.chunks(), gigatoken)), "gigatoken"

        # Encode with the tokenizer itself if gigatoken cannot be used.
        num_processes = num_processes or os.cpu_count() or 1
        return write(encode_in_processes(text.chunks(), tokenizer, num_processes)), "the tokenizer itself"


@exit_with_status
def main(argv: list[str]) -> None:
    """Tokenize one slice; the token file appears complete or not at all."""
    parser = argparse.ArgumentParser(prog="python src/tokenize_split.py", allow_abbrev=False)
    add = parser.add_argument
    add("--split", choices=("train", "validation"), required=True, help="which slice of the source")
    add("--raw", type=Path, required=True, help="folder of the text and its manifest")
    add("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    add("--tokens", type=Path, required=True, help="token file to write, X.bin; X.json is written beside it")
    args = parser.parse_args(argv)
    inputs = StageInputs("tokenize_train" if args.split == "train" else "tokenize_val")

    # Read the slice and the settings of this machine.
    text_slice = read_slice(args.split)
    runtime = read_section(RUNTIME, "tokenize", TokenizeRuntime)

    # Encode the documents and write the token file and its sidecar.
    with output_lock(args.tokens):
        meta, encoder = tokenize_slice(args.raw, args.tokenizer, text_slice, args.tokens, runtime.num_processes, inputs)

    # Report what the tokenizer loses, and the counts.
    if lost := lossy_fractions(meta):
        unknown, changed = (f"{fraction:.2%}" for fraction in lost.values())
        found = f"{unknown} of the tokens are unknown, and {changed} of the documents are decoded to another text"
        advice = "do not compare them with those of another tokenizer"
        say(f"warning: {args.tokens}: {found}; {LOSSY}; {advice}", file=sys.stderr)
    bytes_per_token = meta["utf8_bytes"] / meta["tokens"]
    say(f"{args.tokens}: {meta['tokens']:,} tokens, {bytes_per_token:.2f} bytes per token; encoded by {encoder}")

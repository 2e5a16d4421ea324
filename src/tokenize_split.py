"""Stages tokenize_train and tokenize_val: write a slice of the text as one stream of token ids.

    python src/tokenize_split.py --split train --raw data/raw --tokenizer data/tokenizer \\
        --tokens data/processed_datasets/train.bin

gigatoken encodes in a thread if it can be used (lm.tokenizer.engine), otherwise the tokenizer encodes in processes.
The bytes do not depend on that or on the size of chunks, because documents are encoded one by one.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.errors import command
from lm.core.files import output_lock
from lm.core.params import read_section
from lm.text.documents import (
    check_files,
    describe_text,
    expected_chars,
    files_of,
    iter_chunks,
    open_manifest,
)
from lm.text.slices import AnySlice, Slice, refuse_overlap
from lm.tokenizer.config import TokenizeRuntime
from lm.tokenizer.encoding import encode_in_processes, encode_in_thread, encode_with_fallback, show_progress
from lm.tokenizer.engine import Engine, open_engine
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokenizer.tally import Tally
from lm.tokens.tokenfile import LOSSY, lossy_fractions, write_tokens

PARAMS, SOURCES, RUNTIME = "params.yaml", "sources.yaml", "runtime.yaml"


class Inputs(NamedTuple):
    """What `open_inputs` opens; `check.result()` returns None, or raises IntegrityError for a damaged file."""

    raw: Path
    manifest: dict
    source: dict  # the sidecar's entry of the text
    check: Future
    text_slice: Slice
    tokenizer: Tokenizer
    engine: Engine | None


@contextlib.contextmanager
def open_inputs(raw: Path, folder: Path, text_slice: Slice) -> Iterator[Inputs]:
    """Load the tokenizer and start to hash the text's files. A damaged file is reported before other errors."""
    manifest = open_manifest(raw)
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(check_files, raw, files_of(manifest))
        try:
            source = describe_text(manifest, text_slice)
            tokenizer = load_tokenizer(folder)
            yield Inputs(raw, manifest, source, check, text_slice, tokenizer, open_engine(tokenizer))
        except Exception:
            check.result()
            raise


def tokenize_slice(inputs: Inputs, out: Path, runtime: TokenizeRuntime) -> tuple[dict, str]:
    """Write the slice's tokens to `out` and its sidecar; return the sidecar and the name of the encoder."""
    raw, manifest, source, check, text_slice, tokenizer, engine = inputs

    def write(engine: Engine | None) -> dict:
        """Write the token file with this engine, by default the tokenizer's own; return its sidecar."""
        # Stream the documents in chunks and encode them in their order.
        chunks, tally = iter_chunks(raw, manifest, text_slice, runtime.chunk_chars), Tally()
        if engine:
            encoded = encode_in_thread(chunks, engine)
        else:
            encoded = encode_in_processes(chunks, tokenizer, runtime.num_processes or os.cpu_count() or 1)

        def describe() -> dict:
            check.result()  # before anything is kept
            return tally.describe(tokenizer, text_slice, source)

        # Write the stream, then the sidecar.
        shown = show_progress(encoded, expected_chars(manifest, text_slice))
        return write_tokens(out, tally.ids_of(shown), tokenizer.meta["dtype"], describe)

    return encode_with_fallback(write, engine, out)


def read_slice(split: str) -> Slice:
    """Return the slice of the selected source; refuse a validation slice that overlaps the training slice."""
    source = read_section(PARAMS, "data.source", str)
    train = read_section(SOURCES, f"sources.{source}.train", AnySlice)
    if split == "train":  # a change of the validation slice must not tokenize train again
        return train
    validation = read_section(SOURCES, f"sources.{source}.validation", Slice)
    refuse_overlap(train, validation, f"{SOURCES}: sources.{source}")
    return validation


@command
def main(argv: list[str]) -> None:
    """Tokenize one slice; the token file appears complete or not at all."""
    parser = argparse.ArgumentParser(prog="python src/tokenize_split.py", allow_abbrev=False)
    add = parser.add_argument
    add("--split", choices=("train", "validation"), required=True, help="which slice of the source")
    add("--raw", type=Path, required=True, help="folder of the text and its manifest")
    add("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    add("--tokens", type=Path, required=True, help="token file to write, X.bin; X.json is written beside it")
    args = parser.parse_args(argv)

    # Read the slice and how the work is done on this machine.
    text_slice = read_slice(args.split)
    runtime = read_section(RUNTIME, "tokenize", TokenizeRuntime)

    # Encode the documents and write the token file and its sidecar.
    with output_lock(args.tokens), open_inputs(args.raw, args.tokenizer, text_slice) as inputs:
        meta, encoder = tokenize_slice(inputs, args.tokens, runtime)

    # Report what the tokenizer loses, and the counts.
    if lost := lossy_fractions(meta):
        unknown, changed = (f"{fraction:.2%}" for fraction in lost.values())
        found = f"{unknown} of the tokens are unknown, and {changed} of the documents are decoded to another text"
        advice = "do not compare them with those of another tokenizer"
        print(f"warning: {args.tokens}: {found}; {LOSSY}; {advice}", file=sys.stderr)
    bytes_per_token = meta["utf8_bytes"] / meta["tokens"]
    print(f"{args.tokens}: {meta['tokens']:,} tokens, {bytes_per_token:.2f} bytes per token; encoded by {encoder}")


if __name__ == "__main__":
    sys.exit(main())

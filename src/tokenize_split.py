"""Stages tokenize_train and tokenize_val: write a slice of the text as one stream of token ids.

    python src/tokenize_split.py --split train --raw data/raw --tokenizer data/tokenizer \\
        --tokens data/processed_datasets/train.bin

gigatoken encodes if it can be used (lm.tokenizer.gigatoken_encoder), otherwise the tokenizer in processes.
The bytes do not depend on that or on the size of chunks, because documents are encoded one by one.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.errors import exit_with_status
from lm.core.files import output_lock
from lm.core.messages import say
from lm.core.params import read_section
from lm.core.paths import PARAMS, RUNTIME, SOURCES
from lm.text.documents import (
    Chunk,
    check_files,
    describe_text,
    expected_chars,
    files_of,
    iter_chunks,
    open_manifest,
)
from lm.text.slices import AnySlice, Slice, reject_overlap
from lm.tokenizer.config import TokenizeRuntime
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import Encoded, encode_in_processes, encode_with_gigatoken, show_progress
from lm.tokenizer.gigatoken_encoder import GigatokenError, open_gigatoken
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import LOSSY, lossy_fractions, write_tokens


@contextlib.contextmanager
def hash_beside(raw: Path, manifest: dict) -> Iterator[Future]:
    """Hash the files of the text while it is encoded; `result()` raises IntegrityError for a damaged file.

    A damaged file is reported before an error that may follow from it.
    """
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(check_files, raw, files_of(manifest))
        try:
            yield check
        except Exception:
            check.result()
            raise


def tokenize_slice(raw: Path, folder: Path, text_slice: Slice, out: Path, runtime: TokenizeRuntime) -> tuple[dict, str]:
    """Write the tokens of a slice of `raw`, by the tokenizer of `folder`, to `out`, and its sidecar.

    Return the sidecar, and the name of the encoder.
    """
    manifest = open_manifest(raw)
    with hash_beside(raw, manifest) as check:
        # Open the text and the tokenizer.
        source = describe_text(manifest, text_slice)
        tokenizer = load_tokenizer(folder)
        gigatoken = open_gigatoken(tokenizer)

        def read_chunks() -> Iterator[Chunk]:
            return iter_chunks(raw, manifest, text_slice, runtime.chunk_chars)

        def write(encoded: Encoded) -> dict:
            """Write the ids and then, if the text is undamaged, the sidecar; return the sidecar."""
            counts = TextCounts()

            def describe() -> dict:
                check.result()
                return counts.sidecar_entries(tokenizer, text_slice, source)

            shown = show_progress(encoded, expected_chars(manifest, text_slice))
            return write_tokens(out, counts.ids_of(shown), tokenizer.meta["dtype"], describe)

        # Encode with gigatoken, which is faster.
        if gigatoken:
            try:
                meta = write(encode_with_gigatoken(read_chunks(), gigatoken))
                return meta, gigatoken.summary()
            except GigatokenError as error:
                print(f"warning: {error}; tokenizing all of {out} again with tiktoken alone", file=sys.stderr)

        # Encode with the tokenizer itself if gigatoken cannot be used or has failed.
        num_processes = runtime.num_processes or os.cpu_count() or 1
        meta = write(encode_in_processes(read_chunks(), tokenizer, num_processes))
        return meta, "the tokenizer itself"


def read_slice(split: str) -> Slice:
    """Return the slice of the selected source; reject a validation slice that overlaps the training slice."""
    source = read_section(PARAMS, "data.source", str)
    train = read_section(SOURCES, f"sources.{source}.train", AnySlice)
    if split == "train":  # a change of the validation slice must not tokenize train again
        return train
    validation = read_section(SOURCES, f"sources.{source}.validation", Slice)
    reject_overlap(train, validation, f"{SOURCES}: sources.{source}")
    return validation


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

    # Read the slice and how the work is done on this machine.
    text_slice = read_slice(args.split)
    runtime = read_section(RUNTIME, "tokenize", TokenizeRuntime)

    # Encode the documents and write the token file and its sidecar.
    with output_lock(args.tokens):
        meta, encoder = tokenize_slice(args.raw, args.tokenizer, text_slice, args.tokens, runtime)

    # Report what the tokenizer loses, and the counts.
    if lost := lossy_fractions(meta):
        unknown, changed = (f"{fraction:.2%}" for fraction in lost.values())
        found = f"{unknown} of the tokens are unknown, and {changed} of the documents are decoded to another text"
        advice = "do not compare them with those of another tokenizer"
        say(f"warning: {args.tokens}: {found}; {LOSSY}; {advice}", file=sys.stderr)
    bytes_per_token = meta["utf8_bytes"] / meta["tokens"]
    say(f"{args.tokens}: {meta['tokens']:,} tokens, {bytes_per_token:.2f} bytes per token; encoded by {encoder}")


if __name__ == "__main__":
    sys.exit(main())

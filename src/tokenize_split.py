"""Stages tokenize_train and tokenize_val: a slice of data/raw → X.bin and X.json.

    python src/tokenize_split.py train data/raw data/tokenizer data/processed_datasets/train.bin

The encoder is a thread where gigatoken serves (lm.engine), else processes of the tokenizer itself.
The bytes written depend neither on that, nor on the number of processes, nor on where chunks are
cut: documents are encoded one by one.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from lm.core.errors import command
from lm.core.files import output_lock, read_json
from lm.core.params import read_section
from lm.text.documents import MANIFEST, Slice, check_files, describe_source, files_of, iter_chunks, refuse_overlap
from lm.tokenizer.encoding import encode_in_processes, encode_in_thread, show_progress
from lm.tokenizer.engine import Engine, EngineDifference, open_engine
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokenizer.tally import Tally
from lm.tokens.tokenfile import write_tokens

PARAMS, RUNTIME = "params.yaml", "runtime.yaml"


@dataclasses.dataclass(frozen=True)
class TokenizeRuntime:
    """Processes where gigatoken does not serve (null: one a core), and characters a chunk.

    Neither changes a byte of the result.
    """

    num_processes: int | None
    chunk_chars: int

    def __post_init__(self):
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError(f"num_processes is {self.num_processes}, needed: at least 1, or null")
        if self.chunk_chars < 1:
            raise ValueError(f"chunk_chars is {self.chunk_chars}, needed: at least 1")


class Inputs(NamedTuple):
    """What is read: data/raw with its manifest, the check of its files that goes on meanwhile and ends with None
    or IntegrityError, the slice of it, the tokenizer and its engine."""

    raw: Path
    manifest: dict
    checked: Future
    part: Slice
    tokenizer: Tokenizer
    engine: Engine | None


@contextlib.contextmanager
def open_inputs(raw: Path, folder: Path, part: Slice) -> Iterator[Inputs]:
    """Load the tokenizer and begin to hash data/raw; whatever goes wrong, a damaged file is named first."""
    manifest = read_json(raw / MANIFEST)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_files, raw, files_of(manifest))
        try:
            tokenizer = load_tokenizer(folder)
            yield Inputs(raw, manifest, checked, part, tokenizer, open_engine(tokenizer))
        except Exception:
            checked.result()
            raise


def tokenize(inputs: Inputs, out: Path, runtime: TokenizeRuntime) -> dict:
    """Tokenize one slice into `out` and its sidecar; return the sidecar. Raises EngineDifference."""
    raw, manifest, checked, part, tokenizer, engine = inputs
    chunks, tally = iter_chunks(raw, manifest, part, runtime.chunk_chars), Tally()
    if engine:
        encoded = encode_in_thread(chunks, engine)
    else:
        encoded = encode_in_processes(chunks, tokenizer, runtime.num_processes or os.cpu_count() or 1)

    def describe() -> dict:
        """The sidecar's entries, once the text is known to be the manifest's."""
        checked.result()  # before anything is kept
        return tally.describe(tokenizer, part, describe_source(raw, manifest))

    total = part.num_chars or manifest["splits"].get(part.split, {}).get("characters", 0) - part.start_char
    return write_tokens(out, tally.ids_of(show_progress(encoded, total)), tokenizer.meta["dtype"], describe)


def tokenize_fast(inputs: Inputs, out: Path, runtime: TokenizeRuntime) -> tuple[dict, str]:
    """Tokenize with gigatoken where it serves, and where it then fails, all of it again without.

    Returns the sidecar and who encoded.
    """
    if inputs.engine:
        try:
            meta = tokenize(inputs, out, runtime)
            return meta, inputs.engine.describe()
        except EngineDifference as difference:
            print(f"warning: {difference}; tokenizing all of {out} again with tiktoken alone", file=sys.stderr)
    return tokenize(inputs._replace(engine=None), out, runtime), "the tokenizer itself"


def read_slice(which: str) -> Slice:
    """The slice of params.yaml. The validation one is refused where it overlaps the training one.

    The training slice alone decides train.bin: moving the validation offset does not tokenize it anew.
    """
    source = read_section(PARAMS, "data.source", str)
    train = read_section(PARAMS, f"sources.{source}.train", Slice)
    if which == "train":
        return train
    validation = read_section(PARAMS, f"sources.{source}.validation", Slice)
    refuse_overlap(train, validation, f"{PARAMS}: sources.{source}")
    return validation


@command
def main(argv: list[str]) -> None:
    """Tokenize the slice argv[0] ("train" or "validation") of argv[1] with argv[2] into argv[3]."""
    which, raw, folder, out = argv[0], *map(Path, argv[1:])
    part = read_slice(which)
    runtime = read_section(RUNTIME, "tokenize", TokenizeRuntime)
    with output_lock(out), open_inputs(raw, folder, part) as inputs:
        meta, encoder = tokenize_fast(inputs, out, runtime)
    print(f"{out}: {meta['tokens']:,} tokens, {meta['utf8_bytes'] / meta['tokens']:.2f} bytes a token; by {encoder}")


if __name__ == "__main__":
    sys.exit(main())

"""Stages tokenize_train and tokenize_val: a slice of data/raw → X.bin and X.json.

    python src/tokenize_split.py train data/raw data/tokenizer data/processed_datasets/train.bin

Text is streamed: a bounded number of chunks is in flight between the reader, one process a core
and the writer, so memory does not grow with the corpus; the bytes written do not depend on the
number of processes nor on where chunks are cut, because documents are encoded one by one.
"""

import dataclasses
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from lm.documents import Slice, iter_texts, read_manifest, refuse_overlap, surprisal_bits
from lm.errors import EnvironmentFailure, IntegrityError, command
from lm.files import output_lock, sha256_file
from lm.params import read_section
from lm.tokenfile import write_tokens
from lm.tokenizer import Tokenizer, load_tokenizer

PARAMS, RUNTIME = "params.yaml", "runtime.yaml"


@dataclasses.dataclass(frozen=True)
class TokenizeRuntime:
    """Processes (null: one a core) and characters a chunk; neither changes a byte of the result."""

    num_processes: int | None
    chunk_chars: int

    def __post_init__(self):
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError(f"num_processes is {self.num_processes}, needed: at least 1, or null")
        if self.chunk_chars < 1:
            raise ValueError(f"chunk_chars is {self.chunk_chars}, needed: at least 1")


class Encoded(NamedTuple):
    """One chunk's ids (N,) in the vocabulary's dtype, and what its text was."""

    ids: np.ndarray
    num_documents: int
    num_chars: int
    utf8_bytes: int


_tokenizer: Tokenizer | None = None


def _start_worker(folder: str) -> None:
    """Load the tokenizer once in each process."""
    global _tokenizer
    _tokenizer = load_tokenizer(folder)


def _encode(texts: list[str]) -> Encoded:
    """Encode one chunk of documents, each followed by its end-of-text id."""
    ids, _ = _tokenizer.encode_documents(texts)
    return Encoded(ids, len(texts), sum(map(len, texts)), sum(len(text.encode("utf-8")) for text in texts))


def chunks_of(batches: Iterable[list[str]], chunk_chars: int) -> Iterator[list[str]]:
    """Regroup documents into chunks of at least `chunk_chars` characters (the last may be shorter)."""
    chunk, size = [], 0
    for texts in batches:
        for text in texts:
            chunk.append(text)
            size += len(text)
            if size >= chunk_chars:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def map_in_order(pool: Executor, work: Callable, items: Iterable, max_in_flight: int) -> Iterator:
    """Yield work(item) in the order of `items` with a bounded number of items in flight."""
    pending = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) >= max_in_flight:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def encode_slice(raw: Path, folder: Path, part: Slice, runtime: TokenizeRuntime) -> Iterator[Encoded]:
    """Yield the slice's encoded chunks in order, worked on by `num_processes` processes."""
    num_processes = runtime.num_processes or os.cpu_count() or 1
    chunks = chunks_of(iter_texts(raw, part), runtime.chunk_chars)
    context = get_context("spawn")
    try:
        with ProcessPoolExecutor(num_processes, context, _start_worker, (str(folder),)) as pool:
            yield from map_in_order(pool, _encode, chunks, 2 * num_processes)
    except BrokenProcessPool:
        raise EnvironmentFailure(
            "a tokenizing process was killed, most likely for want of memory; "
            f"lower tokenize.num_processes or tokenize.chunk_chars in {RUNTIME}"
        ) from None


class Tally:
    """Counts over the chunks that pass through, checked against the tokenizer's token bytes."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.token_bytes = tokenizer.token_bytes
        self.documents = self.characters = self.utf8_bytes = 0

    def ids_of(self, chunks: Iterable[Encoded], total_chars: int | None) -> Iterator[np.ndarray]:
        """Pass each chunk's ids on, counting and showing progress.

        Raises IntegrityError if the ids do not stand for the bytes of the text, or if there is not
        exactly one end-of-text id a document.
        """
        with tqdm(total=total_chars, unit="char", unit_scale=True, desc="tokenize", disable=None) as bar:
            for chunk in chunks:
                num_ends = int(np.count_nonzero(chunk.ids == self.tokenizer.eot_id))
                num_bytes = int(self.token_bytes[chunk.ids].sum()) if self.tokenizer.is_byte_level else chunk.utf8_bytes
                if (num_ends, num_bytes) != (chunk.num_documents, chunk.utf8_bytes):
                    raise IntegrityError(
                        f"tokenizer: {chunk.num_documents} documents of {chunk.utf8_bytes} bytes gave {num_ends} "
                        f"end-of-text ids and {num_bytes} bytes; report the text from document {self.documents} on"
                    )
                self.documents += chunk.num_documents
                self.characters += chunk.num_chars
                self.utf8_bytes += chunk.utf8_bytes
                bar.update(chunk.num_chars)
                yield chunk.ids


def tokenize(part: Slice, raw: Path, folder: Path, out: Path, runtime: TokenizeRuntime) -> dict:
    """Tokenize one slice into `out` and its sidecar; return the sidecar."""
    manifest, tokenizer = read_manifest(raw), load_tokenizer(folder)
    tally = Tally(tokenizer)

    def describe() -> dict:
        return {
            "documents": tally.documents,
            "characters": tally.characters,
            "utf8_bytes": tally.utf8_bytes,
            "surprisal_bits": surprisal_bits(raw, part),
            "tokenizer": {
                "kind": tokenizer.meta["kind"],
                "vocab_size": tokenizer.vocab_size,
                "eot_id": tokenizer.eot_id,
                "sha256": tokenizer.sha256,
            },
            "slice": dataclasses.asdict(part),
            "source": {"name": manifest["source"], "manifest_sha256": sha256_file(raw / "manifest.json")},
        }

    total = part.num_chars or manifest["splits"].get(part.split, {}).get("characters", 0) - part.start_char
    ids = tally.ids_of(encode_slice(raw, folder, part, runtime), total)
    return write_tokens(out, ids, tokenizer.meta["dtype"], describe)


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
    with output_lock(out):
        meta = tokenize(part, raw, folder, out, runtime)
    print(f"{out}: {meta['tokens']:,} tokens, {meta['utf8_bytes'] / meta['tokens']:.2f} bytes a token")


if __name__ == "__main__":
    sys.exit(main())

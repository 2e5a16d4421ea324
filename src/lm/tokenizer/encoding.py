"""Encode chunks of documents in their order, a few at a time: in a thread, in processes, or in the calling thread."""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from lm.core.errors import EnvironmentFailure
from lm.text.documents import Chunk
from lm.tokenizer.gigatoken_encoder import Gigatoken
from lm.tokenizer.load import Tokenizer
from lm.tokenizer.round_trip import RoundTrip, check_ids, count_losses

Encoded = Iterator[tuple[Chunk, np.ndarray]]
CHUNKS_AHEAD = 4  # enough to keep the thread busy while the caller waits for a disk


def encode_with_gigatoken(chunks: Iterable[Chunk], gigatoken: Gigatoken) -> Encoded:
    """Yield each chunk with its ids, in order, from a thread."""
    # One thread keeps up with the caller, which reads and writes. Each thread needs memory for gigatoken's cache of
    # words.
    with ThreadPoolExecutor(1) as pool:
        yield from map_in_order(pool, gigatoken.encode, chunks, CHUNKS_AHEAD)


def encode_in_processes(chunks: Iterable[Chunk], tokenizer: Tokenizer, num_processes: int) -> Encoded:
    """Yield each chunk with the tokenizer's own ids, in order, from processes. Raise EnvironmentFailure if one dies."""
    from concurrent.futures import ProcessPoolExecutor  # slow to import
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(num_processes, get_context("spawn"), _start_worker, (tokenizer,)) as pool:
            for chunk, (ids, losses) in map_in_order(pool, _encode_in_worker, chunks, 2 * num_processes):
                yield chunk._replace(**losses._asdict()), ids
    except BrokenExecutor:
        raise EnvironmentFailure(
            "a tokenizing process was killed, most likely for lack of memory; "
            "lower tokenize.num_processes in runtime.yaml"
        ) from None


def encode_here(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Encoded:
    """Yield each chunk with the tokenizer's own ids, in order, in this process."""
    for chunk in chunks:
        ids, losses = encode_chunk(chunk, tokenizer)
        yield chunk._replace(**losses._asdict()), ids


def encode_chunk(chunk: Chunk, tokenizer: Tokenizer) -> tuple[np.ndarray, RoundTrip]:
    """Return the tokenizer's own ids (N,) of a chunk's documents, each followed by eot_id, and their losses."""
    texts = chunk.texts.to_pylist()
    ids, _ = tokenizer.encode_documents(texts)
    check_ids(ids, chunk, tokenizer)
    return ids, count_losses(ids, texts, tokenizer)


def show_progress(encoded: Encoded, total_chars: float) -> Encoded:
    """Yield each chunk and its ids, and show a bar of the characters so far."""
    with tqdm(total=total_chars, unit="char", unit_scale=True, desc="tokenize", disable=None) as bar:
        for chunk, ids in encoded:
            bar.update(chunk.characters)
            yield chunk, ids


def map_in_order(pool: Executor, work: Callable, items: Iterable, max_in_flight: int) -> Iterator[tuple]:
    """Yield (item, work(item)) in the order of `items`, with at most `max_in_flight` items submitted."""
    items = iter(items)
    pending = deque()
    while True:
        for item in itertools.islice(items, max_in_flight - len(pending)):
            pending.append((item, pool.submit(work, item)))
        if not pending:
            return
        first, future = pending.popleft()
        yield first, future.result()


_tokenizer: Tokenizer | None = None


def _start_worker(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this process when its parent is gone: a killed parent cannot stop its workers."""
    from multiprocessing import parent_process

    if parent := parent_process():
        parent.join()
        os._exit(1)


def _encode_in_worker(chunk: Chunk) -> tuple[np.ndarray, RoundTrip]:
    assert _tokenizer is not None, "the worker was not given its tokenizer"
    return encode_chunk(chunk, _tokenizer)

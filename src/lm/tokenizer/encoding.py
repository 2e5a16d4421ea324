"""Chunks of documents → ids, in order and beside what the caller does with them: in a thread, or in processes.

Text is streamed: a bounded number of chunks is in flight, so memory does not grow with the corpus.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from lm.core.errors import EnvironmentFailure
from lm.text.documents import Chunk
from lm.tokenizer.engine import Engine, encode_exactly
from lm.tokenizer.load import Tokenizer

Encoded = Iterator[tuple[Chunk, np.ndarray]]
CHUNKS_AHEAD = 4  # one that is encoded, and what keeps the thread busy while this one waits for a disk


def encode_in_thread(chunks: Iterable[Chunk], engine: Engine) -> Encoded:
    """Yield each chunk with its ids, in order; raises EngineDifference.

    The thread is about as fast as this one, which reads, compares and writes; two would share out the
    words that gigatoken has met to two memories.
    """
    with ThreadPoolExecutor(1) as pool:
        for chunk, ids in map_in_order(pool, engine.encode, chunks, CHUNKS_AHEAD):
            engine.compare_sample(chunk, ids)
            yield chunk, ids


def encode_in_processes(chunks: Iterable[Chunk], tokenizer: Tokenizer, num_processes: int) -> Encoded:
    """Yield each chunk with its ids, in order, from processes that each load the tokenizer.

    Raises EnvironmentFailure if one of them is killed.
    """
    from concurrent.futures import ProcessPoolExecutor  # takes a while to import
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(num_processes, get_context("spawn"), _start_worker, (tokenizer,)) as pool:
            yield from map_in_order(pool, _encode, chunks, 2 * num_processes)
    except BrokenExecutor:
        raise EnvironmentFailure(
            "a tokenizing process was killed, most likely for want of memory; "
            "lower tokenize.num_processes or tokenize.chunk_chars in runtime.yaml"
        ) from None


def encode_here(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Encoded:
    """Yield each chunk with the ids that the tokenizer itself gives it."""
    for chunk in chunks:
        yield chunk, encode_exactly(chunk, tokenizer)


def show_progress(encoded: Encoded, total_chars: int) -> Encoded:
    """Pass each chunk and its ids on, with a bar of the characters so far."""
    with tqdm(total=total_chars, unit="char", unit_scale=True, desc="tokenize", disable=None) as bar:
        for chunk, ids in encoded:
            bar.update(chunk.characters)
            yield chunk, ids


def map_in_order(pool: Executor, work: Callable, items: Iterable, max_in_flight: int) -> Iterator[tuple]:
    """Yield (item, work(item)) in the order of `items` with a bounded number of items in flight."""
    pending = deque()
    for item in items:
        pending.append((item, pool.submit(work, item)))
        if len(pending) >= max_in_flight:
            first, future = pending.popleft()
            yield first, future.result()
    while pending:
        first, future = pending.popleft()
        yield first, future.result()


_tokenizer: Tokenizer | None = None


def _start_worker(tokenizer: Tokenizer) -> None:
    """Keep the tokenizer, which was loaded anew for this process."""
    global _tokenizer
    _tokenizer = tokenizer
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """End this process when the one that started it is gone: a killed one cannot tell it to."""
    from multiprocessing import parent_process

    if parent := parent_process():
        parent.join()
        os._exit(1)


def _encode(chunk: Chunk) -> np.ndarray:
    """Encode one chunk in a worker process."""
    return encode_exactly(chunk, _tokenizer)

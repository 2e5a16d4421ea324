"""What 35 GB and 1 TB of text would take: measured rates, and windows out of a token file of that size.

    PYTHONPATH=src python benchmarks/large_corpus.py

The token files here are sparse: as long as real ones, without their disk. So the time of a batch is that
of finding, mapping and copying its windows; what a disk adds to a first read is its own. The rate of
tokenizing and the memory of a process are those of results/tokenizing.json. Writes
benchmarks/results/large_corpus.json and prints the table of docs/distributed.md.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil

from harness import busy_share, hardware, summary, versions
from lm.core.files import write_json
from lm.tokens.tokenfile import map_ids
from lm.tokens.windows import TokenWindows, read_windows

RESULTS = Path(__file__).resolve().parent / "results"
TEXTS = {"35 GB": 35e9, "1 TB": 1e12}  # bytes of UTF-8
BYTES_PER_TOKEN = 4  # of text; about GPT-2's for English prose
TOKEN_BYTES = 2
NUM_RANKS, NUM_CORES = 64, 16
BATCH_SIZE, SEQ_LEN, NUM_BATCHES, NUM_READ_AHEAD = 32, 1024, 200, 10
HASHED_BYTES = 1 << 28


def bytes_per_s(name: str) -> float:
    """Return how many bytes in memory one core hashes per second, the median of five times."""
    content, seconds = bytes(HASHED_BYTES), []
    for _ in range(5):
        start = time.perf_counter()
        hashlib.new(name, content, usedforsecurity=False)
        seconds.append(time.perf_counter() - start)
    return HASHED_BYTES / summary(seconds)["median"]


def estimate(text_bytes: float, ranks: int, rates: dict[str, float]) -> dict[str, float]:
    """Seconds, bytes and files of a corpus; `rates` in bytes a second: tokenize (a process), sha256, md5 (a core)."""
    token_bytes = text_bytes / BYTES_PER_TOKEN * TOKEN_BYTES
    hash_s = text_bytes / rates["sha256"] if ranks > 1 else 0.0  # a rank hashes its files first, one process meanwhile
    return {
        "ranks": ranks,
        "token_bytes": token_bytes,
        "bytes_of_a_shard": token_bytes / ranks,
        "tokenize_s": (text_bytes / rates["tokenize"] + hash_s) / ranks,
        "join_s": token_bytes / rates["sha256"] if ranks > 1 else 0.0,  # one stream, one core
        "open_s": token_bytes / rates["sha256"] / min(ranks, NUM_CORES),  # a core a shard
        "md5_s": token_bytes / rates["md5"],  # DVC's, on one core
        "memory_bytes": ranks * rates["memory_bytes"],
    }


def time_batches(folder: Path, text_bytes: float) -> dict:
    """Batches at random steps out of a sparse token file in NUM_RANKS shards."""
    tokens = int(text_bytes / BYTES_PER_TOKEN) // NUM_RANKS
    path = folder / "x.bin"
    path.mkdir()
    entries = [{"path": f"{number:05d}.bin", "tokens": tokens, "sha256": ""} for number in range(NUM_RANKS)]
    for entry in entries:
        (path / entry["path"]).touch()
        os.truncate(path / entry["path"], tokens * TOKEN_BYTES)
    start = time.perf_counter()
    ids = map_ids(path, {"dtype": "uint16", "tokens": tokens * NUM_RANKS, "shards": entries})
    mapped = time.perf_counter()
    windows = TokenWindows(ids, SEQ_LEN, BATCH_SIZE, seed=1)
    steps = np.random.default_rng(1).integers(windows.windows_per_epoch() // BATCH_SIZE, size=NUM_BATCHES)
    starts = [windows.starts(step) for step in steps.tolist()]
    ahead = seconds_of(lambda i: read_windows(ids, starts[i], SEQ_LEN + 1), range(NUM_READ_AHEAD))
    seconds = seconds_of(lambda i: windows.buffer(int(steps[i])), range(NUM_READ_AHEAD, NUM_BATCHES))
    return {
        "tokens": len(ids),
        "map_ms": (mapped - start) * 1e3,
        "batch_ms": {name: 1e3 * value for name, value in summary(seconds).items()},
        "batch_with_read_ahead_ms": {name: 1e3 * value for name, value in summary(ahead).items()},
        "resident_mb": psutil.Process().memory_info().rss / 1e6,
    }


def read_ahead_kb() -> list[int]:
    """How far Linux reads ahead, by disk."""
    return sorted(int(path.read_text()) for path in Path("/sys/block").glob("*/queue/read_ahead_kb"))


def seconds_of(work: Callable[[int], object], indices: Iterable[int]) -> list[float]:
    """How long each call takes."""
    seconds = []
    for index in indices:
        begin = time.perf_counter()
        work(index)
        seconds.append(time.perf_counter() - begin)
    return seconds


def table(estimates: dict[str, list[dict]]) -> str:
    """Return the rows of docs/distributed.md."""
    lines = []
    for name, rows in estimates.items():
        for row in rows:
            sizes = f"{row['ranks']} × {short(row['bytes_of_a_shard'] / 1e9)} GB"
            times = (row["tokenize_s"], row["join_s"], row["open_s"], row["md5_s"])
            cells = [name, sizes, *map(duration, times), f"{short(row['memory_bytes'] / 1e9)} GB"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    if seconds == 0:
        return "–"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{short(seconds / size)} {unit}"
    return f"{short(seconds)} s"


def short(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def main() -> None:
    """Measure, estimate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "large_corpus.json")
    args = parser.parse_args()
    busy = [busy_share()]
    tokenizing = json.loads((RESULTS / "tokenizing.json").read_text())
    rates = {
        "tokenize": tokenizing["mb_per_s"]["ours"]["median"] * 1e6,
        "sha256": bytes_per_s("sha256"),
        "md5": bytes_per_s("md5"),
        "memory_bytes": tokenizing["peak_mb_of_a_process"]["ours"] * 1e6,
    }
    batches = {}
    for name, text_bytes in TEXTS.items():
        with tempfile.TemporaryDirectory() as folder:
            batches[name] = time_batches(Path(folder), text_bytes)
    busy.append(busy_share())
    estimates = {name: [estimate(size, ranks, rates) for ranks in (1, NUM_RANKS)] for name, size in TEXTS.items()}
    write_json(args.out, {
        "benchmark": "large_corpus", "hardware": hardware(), "busy_shares": busy, "versions": versions("numpy"),
        "read_ahead_kb": read_ahead_kb(),
        "bytes_per_token": BYTES_PER_TOKEN, "num_cores_to_open": NUM_CORES, "rates": rates, "batches": batches,
        "estimates": estimates,
    })  # fmt: skip
    print(table(estimates))
    for name, found in batches.items():
        median = found["batch_ms"]["median"]
        ahead = found["batch_with_read_ahead_ms"]["median"]
        print(f"{name}: {found['tokens']:,} tokens, a batch in {median:.2f} ms, {ahead:.0f} if the kernel reads ahead")


if __name__ == "__main__":
    main()

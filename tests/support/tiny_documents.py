"""The stage audit on many tiny documents, in a process of its own: memory, time, space on the disk.

The documents have about 20 characters, a tenth occurs twice, a fifth is for validation; the vocabulary is one of bytes.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.files import read_json, write_json
from lm.text.documents import describe_source
from lm.text.parquet import describe_split
from lm.text.selection import describe_selection, write_selection
from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import describe_tokenizer, load_tokenizer
from lm.tokens.tokenfile import write_tokens
from support import ROOT

BATCH, VALIDATION_SHARE = 100_000, 0.2
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime)
"""


def texts_of(count: int, seed: int) -> Iterator[list[str]]:
    """Yield `count` documents in batches: two numbers and a word; one in ten repeats another of its batch."""
    draw = np.random.default_rng(seed)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        numbers = draw.integers(0, 1 << 40, size)
        numbers[draw.random(size) < 0.1] = numbers[0]
        yield [f"{number:x} is {number % 9973}" for number in numbers.tolist()]


def write_split(folder: Path, split: str, count: int, seed: int) -> None:
    """Write a split's parquet file."""
    path = folder / "raw" / split / "0000.parquet"
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        for texts in texts_of(count, seed):
            writer.write_table(pa.table({"text": texts}))


def write_token_file(folder: Path, split: str, count: int, seed: int) -> None:
    """Write a split's token file, whose ids are the bytes of the text, without tokenizing."""
    tokenizer, counts = load_tokenizer(folder / "tokenizer"), {"documents": 0, "utf8_bytes": 0}

    def chunks() -> Iterator[np.ndarray]:
        for texts in texts_of(count, seed):
            content = ("\0".join(texts) + "\0").encode()
            ids = np.frombuffer(content, np.uint8).astype("<u2")
            ids[ids == 0] = tokenizer.eot_id
            counts["documents"] += len(texts)
            counts["utf8_bytes"] += len(content) - len(texts)
            yield ids

    def describe() -> dict:
        source = describe_source(folder / "raw", read_json(folder / "raw" / "manifest.json"))
        source["selection"] = describe_selection(folder / "selection", folder / "raw")
        text_slice = {"split": split, "start_char": 0, "num_chars": None}
        described = {"characters": counts["utf8_bytes"], "surprisal_bits": None, "slice": text_slice, "source": source}
        return {**counts, **described, "tokenizer": describe_tokenizer(tokenizer)}

    write_tokens(folder / f"{split}.bin", chunks(), "uint16", describe)


def make_input(folder: Path, documents: int) -> None:
    """Write the text, a vocabulary of bytes and both token files."""
    counts = {"train": round(documents * (1 - VALIDATION_SHARE)), "validation": round(documents * VALIDATION_SHARE)}
    (folder / "tokenizer").mkdir(parents=True)
    write_byte_level(folder / "tokenizer", {bytes([byte]): byte for byte in range(256)}, "bpe")
    for seed, (split, count) in enumerate(counts.items()):
        write_split(folder, split, count, seed)
    splits = {split: describe_split(folder / "raw", split, "text") for split in counts}
    write_json(folder / "raw" / "manifest.json", {"source": "made", "column": "text", "splits": splits})
    (folder / "selection").mkdir()
    write_selection(folder / "selection", folder / "raw", None, {"selection": "none", "documents": {}})
    for seed, (split, count) in enumerate(counts.items()):
        write_token_file(folder, split, count, seed)


def bytes_below(folder: Path) -> int:
    """Return how much the files of a folder take; a file that vanishes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def measure(documents: int) -> dict:
    """Audit a number of documents; return peak memory, CPU seconds, and bytes on the disk while it runs and after."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_input(folder, documents)
        before, largest, is_over = bytes_below(folder), [0], threading.Event()

        def watch() -> None:
            while not is_over.wait(0.2):
                largest[0] = max(largest[0], bytes_below(folder) - before)

        watcher = threading.Thread(target=watch)
        watcher.start()
        inputs = ("raw", "selection", "tokenizer", "audit", "metrics")
        options = [word for each in inputs for word in (f"--{each}", str(folder / each))]
        options += ["--train", str(folder / "train.bin"), "--validation", str(folder / "validation.bin")]
        command = [sys.executable, "-c", MEASURE, sys.executable, str(ROOT / "src" / "audit.py"), *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peak, seconds = done.stdout.split()
        is_over.set()
        watcher.join()
        card = read_json(folder / "audit" / "details.json")
        return {
            "documents": documents,
            "utf8_bytes": sum(card[split]["utf8_bytes"] for split in ("train", "validation")),
            "tokens": sum(card[split]["tokens"] for split in ("train", "validation")),
            "duplicates": {split: card["duplicates"][split]["exact_within"] for split in ("train", "validation")},
            "peak_resident_bytes": int(peak) * (1 if sys.platform == "darwin" else 1024),
            "mapped_bytes": sum((folder / f"{split}.bin").stat().st_size for split in ("train", "validation")),
            "largest_disk_bytes": max(largest[0], bytes_below(folder) - before),
            "output_bytes": bytes_below(folder / "audit"),
            "cpu_seconds": float(seconds),
        }

"""Tokenize parquet files into ids: the stage as it runs beside other ways, on the same files and two cores.

    PYTHONPATH=src:benchmarks python benchmarks/speed/tokenizing.py [--megabytes 630 --rounds 5 --name tokenizing]

Each case is a process of its own, timed from its start to its end, reading, encoding and writing; ours with its checks,
hashes and sidecar. The SHA-256 of the ids of all cases must be equal. Then the stage alone runs on ever more text, for
its memory. A peer whose package is absent (requirements/bench.txt) is left out. Writes results/NAME.json.
"""

import argparse
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from harness import (
    ROOT,
    busy_share,
    change_params,
    command_of,
    interleave,
    run_measured,
    stage_folder,
    summary,
    versions,
    write_results,
)
from lm.core.files import read_json, write_json
from lm.text.compose import write_manifest, write_split
from lm.text.mixture import tag_rows
from lm.text.parquet import write_documents
from lm.text.rows import Rows, measured
from lm.tokenizer.build import download_ranks, write_byte_level
from lm.tokenizer.load import load_tokenizer

sys.path.append(str(ROOT))
from extras.stories.stories import iter_stories

NUM_FILES = 8  # of the peers: what works by whole files needs several of them
STORIES_PER_BATCH = 1000
CHECK_MEGABYTES = 2
SLOW = ("nanogpt", "datatrove", "litdata")  # minutes each: one round
PROCESSES = 2
EOT_NAME = "<|endoftext|>"


# The peers. Each reads the parquet `files` and writes ids into the empty folder `out`.


def encoding_of(folder: str):
    """Return tiktoken's encoding of a tokenizer folder, and its eot_id."""
    import tiktoken

    tokenizer = load_tokenizer(folder)
    encoding = tiktoken.Encoding(
        "peer",
        pat_str=tokenizer.meta["pattern"],
        mergeable_ranks=tokenizer.ranks,
        special_tokens={EOT_NAME: tokenizer.eot_id},
    )
    return encoding, tokenizer.eot_id


def load_files(files: list[str], out: Path):
    """Return the files as `datasets` reads them."""
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(out / "cache"))


def nanogpt(files: list[str], tokenizer: str, out: Path) -> None:
    """Run nanoGPT's data/openwebtext/prepare.py: a map over single documents, 1,024 shards into a memmap."""
    encoding, eot_id = encoding_of(tokenizer)

    def process(example):
        ids = encoding.encode_ordinary(example["text"])
        ids.append(eot_id)
        return {"ids": ids, "len": len(ids)}

    dataset = load_files(files, out)
    dataset = dataset.map(process, remove_columns=dataset.column_names, num_proc=PROCESSES)
    length = np.sum(dataset["len"], dtype=np.uint64)
    start = 0
    written = np.memmap(out / "train.bin", dtype=np.uint16, mode="w+", shape=(int(length),))
    for index in range(1024):
        batch = dataset.shard(num_shards=1024, index=index, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        written[start : start + len(ids)] = ids
        start += len(ids)
    written.flush()


def datasets_batched(files: list[str], tokenizer: str, out: Path) -> None:
    """Run a batched map with encode_to_numpy, a row of ids per document, then append the rows to the file."""
    map_batches(files, tokenizer, out, lambda parts: parts)


def datasets_joined(files: list[str], tokenizer: str, out: Path) -> None:
    """Do the same with the ids of a whole batch in one row: the fastest way through `datasets` that was found."""
    map_batches(files, tokenizer, out, lambda parts: [np.concatenate(parts)])


def map_batches(files: list[str], tokenizer: str, out: Path, rows_of: Callable) -> None:
    """Encode in batches of 1,000 documents and append the rows that `rows_of` makes of their ids."""
    import datasets

    encoding, eot_id = encoding_of(tokenizer)

    def process(batch):
        documents = []
        for text in batch["text"]:
            ids = np.append(encoding.encode_to_numpy(text, disallowed_special=()), eot_id)
            documents.append(ids.astype(np.uint16))
        return {"ids": rows_of(documents)}

    dataset = load_files(files, out)
    dataset = dataset.map(
        process,
        batched=True,
        num_proc=PROCESSES,
        remove_columns=dataset.column_names,
        features=datasets.Features({"ids": datasets.List(datasets.Value("uint16"))}),
    )
    dataset = dataset.with_format("numpy", dtype=np.uint16)
    with open(out / "train.bin", "wb") as file:
        for batch in dataset.iter(1000):
            file.write(np.concatenate(batch["ids"]).data)


def datatrove(files: list[str], tokenizer: str, out: Path) -> None:
    """Run datatrove's ParquetReader and DocumentTokenizer, a task per file."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    folder = str(Path(files[0]).parent)
    backend = str(Path(tokenizer) / "tokenizer.json")
    options = {"eos_token": EOT_NAME, "shuffle_documents": False, "local_working_dir": str(out / "working")}
    steps = [
        ParquetReader(folder, text_key="text", read_metadata=False, glob_pattern="*.parquet"),
        DocumentTokenizer(str(out / "tokens"), backend, **options),
    ]
    LocalPipelineExecutor(steps, tasks=len(files), workers=PROCESSES, logging_dir=str(out / "logs")).run()


def litdata(files: list[str], tokenizer: str, out: Path) -> None:
    """Run litdata's optimize with two workers and its TokensLoader, keeping the order of the documents."""
    import pyarrow.parquet as pq
    import torch
    from litdata import TokensLoader, optimize

    encoding, eot_id = encoding_of(tokenizer)

    def process(file):
        for batch in pq.ParquetFile(file).iter_batches(1000, columns=["text"]):
            for text in batch.column(0).to_pylist():
                yield torch.tensor([*encoding.encode_ordinary(text), eot_id], dtype=torch.uint16)

    optimize(
        process, files, str(out / "tokens"), chunk_bytes="64MB", num_workers=PROCESSES, item_loader=TokensLoader(),
        start_method="fork", verbose=False, reorder_files=False, keep_data_ordered=True,
    )  # fmt: skip


PEERS = {each.__name__: each for each in (nanogpt, datasets_batched, datasets_joined, datatrove, litdata)}
NEEDS = {"datatrove": "datatrove", "litdata": "litdata"}  # the others need datasets


def stream_of(peer: str, out: Path) -> Iterator[np.ndarray]:
    """Yield the ids that a peer wrote, uint16, in the order of the documents."""
    if peer == "datatrove":
        for path in sorted((out / "tokens").glob("*.ds")):
            yield np.fromfile(path, np.uint16)
    elif peer == "litdata":
        for path in sorted((out / "tokens").glob("*.bin"), key=chunk_numbers):
            # Its header: the number of items, and where each of them begins.
            _, first_offset = np.fromfile(path, np.uint32, count=2)
            yield np.fromfile(path, np.uint16, offset=int(first_offset))
    else:
        yield np.fromfile(out / "train.bin", np.uint16)


def chunk_numbers(path: Path) -> list[int]:
    """Return the numbers in the name of a file of litdata: chunk-WORKER-NUMBER.bin."""
    return [int(number) for number in path.stem.split("-")[1:]]


# The measurement.


def story_rows(num_documents: int) -> Iterator[Rows]:
    """Yield stories in batches, as `write_split` takes them."""
    stories = iter_stories(seed=1)
    for begin in range(0, num_documents, STORIES_PER_BATCH):
        texts = list(itertools.islice(stories, min(STORIES_PER_BATCH, num_documents - begin)))
        batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
        yield from tag_rows([measured(batch)], 0)


class Cases:
    """The ways to tokenize one text of stories, each into a folder of its own below `work`."""

    def __init__(self, work: Path, tokenizer: Path, megabytes: float):
        self.work = work
        self.tokenizer = tokenizer
        self.peak_mb = {}
        sample = list(itertools.islice(iter_stories(seed=1), STORIES_PER_BATCH))
        mean_chars = sum(map(len, sample)) / len(sample)
        num_documents = int(megabytes * 1e6 / mean_chars)

        # The text as the stage reads it.
        raw = work / "raw"
        raw.mkdir(parents=True)
        entry = write_split(raw, "train", story_rows(num_documents), ["stories"])
        write_manifest(raw, "stories", {"stories": {}}, {"train": entry}, {})
        self.utf8_bytes = entry["utf8_bytes"]

        # The same documents in the files of the peers.
        self.files = []
        per_file = math.ceil(num_documents / NUM_FILES)
        stories = iter_stories(seed=1)
        for begin in range(0, num_documents, per_file):
            path = work / "files" / f"{begin:09d}.parquet"
            write_documents(path, itertools.islice(stories, min(per_file, num_documents - begin)))
            self.files.append(str(path))

        # The folder of the stage.
        self.stage = stage_folder(work / "stage")
        whole = {"split": "train", "start_char": 0, "num_chars": None}
        change_params(self.stage, {"data.source": "benchmark", "sources.benchmark.train": whole})
        (self.stage / "data" / "raw").symlink_to(raw)
        (self.stage / "data" / "tokenizer").symlink_to(tokenizer)
        self.bin = self.stage / "data" / "processed_datasets" / "train.bin"

    def ours(self) -> None:
        """Run the stage's own command."""
        self.bin.unlink(missing_ok=True)
        self._run("ours", command_of("tokenize_train"))

    def peer(self, name: str) -> None:
        """Run a peer, without what it left behind before."""
        out = self.work / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        write_json(out / "task.json", {"files": self.files, "tokenizer": str(self.tokenizer)})
        self._run(name, [sys.executable, __file__, "--worker", name, str(out)])

    def _run(self, name: str, command: list[str]) -> None:
        """Run a command in the stage's folder and note the most memory that one of its processes took."""
        environment = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/benchmarks", "HF_HUB_OFFLINE": "1"}
        peak_mb = run_measured(command, self.work / f"{name}.log", self.stage, environment)
        self.peak_mb[name] = max(self.peak_mb.get(name, 0), peak_mb)

    def all(self, peers: Iterable[str]) -> dict[str, Callable[[], None]]:
        """Return by name what runs a case."""
        return {"ours": self.ours} | {name: functools.partial(self.peer, name) for name in peers}

    def digest(self, names: Iterable[str]) -> str:
        """Return the one SHA-256 of the ids that all cases wrote last; end the benchmark if there are several."""
        found = {}
        for name in names:
            stream = [np.fromfile(self.bin, np.uint16)] if name == "ours" else stream_of(name, self.work / name)
            digest = hashlib.sha256()
            for ids in stream:
                digest.update(ids)
            found[name] = digest.hexdigest()
        if len(set(found.values())) != 1:
            sys.exit(f"error: the ids differ: {json.dumps(found, indent=1)}")
        return found["ours"]


def measure(args: argparse.Namespace, work: Path) -> None:
    """Compare, time, and write what was found."""
    peers = args.peers or [name for name in PEERS if importlib.util.find_spec(NEEDS.get(name, "datasets"))]
    tokenizer = work / "tokenizer"
    tokenizer.mkdir()
    write_byte_level(tokenizer, download_ranks("gpt2"), "tiktoken", encoding="gpt2")

    # Compare the ids of all on a little text.
    check = Cases(work / "check", tokenizer, CHECK_MEGABYTES)
    for run in check.all(peers).values():
        run()
    check.digest(["ours", *peers])

    # Time them in turns.
    cases = Cases(work / "cases", tokenizer, args.megabytes)
    busy = [busy_share()]
    seconds = interleave(cases.all(peers), args.rounds, fewer=dict.fromkeys(SLOW, 1))
    busy.append(busy_share())
    sha256 = cases.digest(seconds)
    megabytes = cases.utf8_bytes / 1e6

    # Run the stage alone on ever more text.
    memory = []
    for size in args.memory_megabytes:
        alone = Cases(work / f"memory-{size}", tokenizer, size)
        alone.ours()
        memory.append({"text_mb": round(alone.utf8_bytes / 1e6, 1), "peak_mb_of_a_process": alone.peak_mb["ours"]})
        shutil.rmtree(alone.work)
    write_results(
        args.name,
        seconds=seconds,
        ours="ours",
        busy=busy,
        text={"name": "stories", "utf8_bytes": cases.utf8_bytes},
        vocab_size=load_tokenizer(tokenizer).vocab_size,
        sha256_of_all_ids=sha256,
        versions=versions("gigatoken", "tiktoken", "tokenizers", "datasets", *NEEDS, "pyarrow", "numpy"),
        mb_per_s={name: summary([megabytes / s for s in times]) for name, times in seconds.items()},
        peak_mb_of_a_process=cases.peak_mb,
        memory_of_ours=memory,
    )


def main() -> None:
    """Measure on two cores in a temporary folder; as a worker, run one peer."""
    parser = argparse.ArgumentParser(description="The speed of tokenizing.")
    parser.add_argument("--megabytes", type=float, default=630, help="of stories")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="those alone; else all whose package is there")
    parser.add_argument("--memory_megabytes", type=float, nargs="*", default=[20, 200, 2000], help="of stories")
    parser.add_argument("--name", default="tokenizing", help="of the file of results")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, out = args.worker
        return PEERS[name](**read_json(Path(out) / "task.json"), out=Path(out))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with TemporaryDirectory() as work:
        measure(args, Path(work).resolve())


if __name__ == "__main__":
    main()

"""Tokenize parquet files into ids: the stage as it runs beside other ways, on the same files and two cores.

    PYTHONPATH=src:benchmarks python benchmarks/speed/tokenizing.py [--megabytes 630 --rounds 5 --name tokenizing]

Each case is a process of its own, timed from its start to its end, reading, encoding and writing; ours with its checks,
hashes and sidecar. The SHA-256 of the ids of all cases must be equal. The text is that of the pipeline at the top,
again and again. Writes results/NAME.json.
"""

import argparse
import functools
import hashlib
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
import pyarrow.parquet as pq

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
from lm.text.mixture import tag_rows
from lm.text.parquet import write_documents
from lm.text.raw_files import write_manifest, write_split
from lm.text.rows import Rows, measured
from lm.tokenizer.build import download_ranks, write_byte_level
from lm.tokenizer.load import load_tokenizer

NUM_FILES = 8  # of the peers: what works by whole files needs several of them
DOCUMENTS_PER_BATCH = 100
CHECK_MEGABYTES = 2
SLOW = ("datatrove",)  # minutes: one round
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


def datasets_joined(files: list[str], tokenizer: str, out: Path) -> None:
    """Encode by `datasets` with the ids of 1,000 documents in one row: the fastest way through it that was found."""
    import datasets

    encoding, eot_id = encoding_of(tokenizer)

    def process(batch):
        documents = []
        for text in batch["text"]:
            ids = np.append(encoding.encode_to_numpy(text, disallowed_special=()), eot_id)
            documents.append(ids.astype(np.uint16))
        return {"ids": [np.concatenate(documents)]}

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


PEERS = {each.__name__: each for each in (datasets_joined, datatrove)}


def stream_of(peer: str, out: Path) -> Iterator[np.ndarray]:
    """Yield the ids that a peer wrote, uint16, in the order of the documents."""
    if peer == "datatrove":
        for path in sorted((out / "tokens").glob("*.ds")):
            yield np.fromfile(path, np.uint16)
    else:
        yield np.fromfile(out / "train.bin", np.uint16)


# The measurement.


def documents() -> Iterator[str]:
    """Yield the training documents of the pipeline at the top, again and again."""
    texts = pq.read_table(ROOT / "data" / "raw" / "train.parquet", columns=["text"])["text"].to_pylist()
    return itertools.cycle(texts)


def document_rows(num_documents: int) -> Iterator[Rows]:
    """Yield documents in batches, as `write_split` takes them."""
    texts = itertools.islice(documents(), num_documents)
    while batch := list(itertools.islice(texts, DOCUMENTS_PER_BATCH)):
        columns = pa.record_batch({"text": pa.array(batch, pa.large_string())})
        yield from tag_rows([measured(columns)], 0)


class Cases:
    """The ways to tokenize one text, each into a folder of its own below `work`."""

    def __init__(self, work: Path, tokenizer: Path, megabytes: float):
        self.work = work
        self.tokenizer = tokenizer
        self.peak_mb = {}
        # Take documents until they have the size.
        sizes = itertools.accumulate(len(text.encode()) for text in documents())
        num_documents = 1 + sum(1 for _ in itertools.takewhile(lambda size: size < megabytes * 1e6, sizes))

        # The text as the stage reads it.
        raw = work / "raw"
        raw.mkdir(parents=True)
        entry = write_split(raw, "train", document_rows(num_documents), ["repeated"])
        write_manifest(raw, "repeated", {"repeated": {}}, {"train": entry}, {})
        self.utf8_bytes = entry["utf8_bytes"]

        # The same documents in the files of the peers.
        self.files = []
        per_file = math.ceil(num_documents / NUM_FILES)
        texts = documents()
        for begin in range(0, num_documents, per_file):
            path = work / "files" / f"{begin:09d}.parquet"
            write_documents(path, itertools.islice(texts, min(per_file, num_documents - begin)))
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
    peers = args.peers
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

    write_results(
        args.name,
        seconds=seconds,
        ours="ours",
        busy=busy,
        text={"name": "train.parquet, repeated", "utf8_bytes": cases.utf8_bytes},
        vocab_size=load_tokenizer(tokenizer).vocab_size,
        sha256_of_all_ids=sha256,
        versions=versions("gigatoken", "tiktoken", "tokenizers", "datasets", "datatrove", "pyarrow", "numpy"),
        mb_per_s={name: summary([megabytes / s for s in times]) for name, times in seconds.items()},
        peak_mb_of_a_process=cases.peak_mb,
    )


def main() -> None:
    """Measure on two cores in a temporary folder; as a worker, run one peer."""
    parser = argparse.ArgumentParser(description="The speed of tokenizing.")
    parser.add_argument("--megabytes", type=float, default=630, help="of text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
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

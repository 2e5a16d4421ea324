"""Other ways from parquet files to a stream of GPT-2 ids, each run as a process of its own by tokenizing.py.

    python benchmarks/tokenizing_peers.py PEER SPECIFICATION.json

The specification names the parquet `files`, their text `column`, the `tokenizer` folder and the empty
folder `out`. `stream_of(peer, out)` then yields the ids, so that they can be compared.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

PROCESSES = 2
NEEDS = {
    "nanogpt": "datasets",
    "datasets_batched": "datasets",
    "datasets_joined": "datasets",
    "datatrove": "datatrove",
    "litdata": "litdata",
}
EOT_NAME = "<|endoftext|>"


def available() -> list[str]:
    """The peers whose package is installed."""
    return [peer for peer, package in NEEDS.items() if importlib.util.find_spec(package)]


def encoding_of(folder: str):
    """tiktoken's encoding of a tokenizer folder, and its eot_id."""
    import tiktoken

    from lm.tokenizer.load import load_tokenizer

    tokenizer = load_tokenizer(folder)
    specials = {EOT_NAME: tokenizer.eot_id}
    encoding = tiktoken.Encoding(
        "peer", pat_str=tokenizer.meta["pattern"], mergeable_ranks=tokenizer.ranks, special_tokens=specials
    )
    return encoding, tokenizer.eot_id


def load_files(specification: dict):
    """The files as `datasets` reads them."""
    import datasets

    datasets.disable_progress_bars()
    cache = str(Path(specification["out"]) / "cache")
    return datasets.load_dataset("parquet", data_files=specification["files"], split="train", cache_dir=cache)


def nanogpt(specification: dict) -> None:
    """nanoGPT's data/openwebtext/prepare.py: a map over single documents, 1,024 shards into a memmap."""
    encoding, eot_id = encoding_of(specification["tokenizer"])

    def process(example):
        ids = encoding.encode_ordinary(example[specification["column"]])
        ids.append(eot_id)
        return {"ids": ids, "len": len(ids)}

    dataset = load_files(specification)
    dataset = dataset.map(process, remove_columns=dataset.column_names, num_proc=PROCESSES)
    length, start = np.sum(dataset["len"], dtype=np.uint64), 0
    out = np.memmap(Path(specification["out"]) / "train.bin", dtype=np.uint16, mode="w+", shape=(int(length),))
    for index in range(1024):
        batch = dataset.shard(num_shards=1024, index=index, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        out[start : start + len(ids)] = ids
        start += len(ids)
    out.flush()


def datasets_batched(specification: dict) -> None:
    """A batched map with encode_to_numpy, a row of ids a document, then appended to the file."""
    map_batches(specification, lambda parts: parts)


def datasets_joined(specification: dict) -> None:
    """The same with the ids of a whole batch in one row: the fastest way through `datasets` that was found."""
    map_batches(specification, lambda parts: [np.concatenate(parts)])


def map_batches(specification: dict, rows_of: Callable) -> None:
    """Encode in batches of 1,000 documents and append the rows that `rows_of` makes of their ids."""
    import datasets

    encoding, eot_id = encoding_of(specification["tokenizer"])

    def process(batch):
        texts = batch[specification["column"]]
        parts = [np.append(encoding.encode_to_numpy(text, disallowed_special=()), eot_id) for text in texts]
        return {"ids": rows_of([part.astype(np.uint16) for part in parts])}

    dataset = load_files(specification)
    features = datasets.Features({"ids": datasets.List(datasets.Value("uint16"))})
    options = {"batched": True, "num_proc": PROCESSES, "features": features}
    dataset = dataset.map(process, remove_columns=dataset.column_names, **options).with_format("numpy", dtype=np.uint16)
    with open(Path(specification["out"]) / "train.bin", "wb") as file:
        for batch in dataset.iter(1000):
            file.write(np.concatenate(batch["ids"]).data)


def datatrove(specification: dict) -> None:
    """datatrove's ParquetReader and DocumentTokenizer, a task a file."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    out, folder = Path(specification["out"]), Path(specification["files"][0]).parent
    tokenizer = str(Path(specification["tokenizer"]) / "tokenizer.json")
    options = {"eos_token": EOT_NAME, "shuffle_documents": False, "local_working_dir": str(out / "working")}
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(str(folder), text_key=specification["column"], read_metadata=False, glob_pattern="*.parquet"),
            DocumentTokenizer(str(out / "tokens"), tokenizer, **options),
        ],
        tasks=len(specification["files"]),
        workers=PROCESSES,
        logging_dir=str(out / "logs"),
    ).run()


def litdata(specification: dict) -> None:
    """litdata's optimize with two workers and its TokensLoader, a list of documents a file."""
    import pyarrow.parquet as pq
    import torch
    from litdata import TokensLoader, optimize

    encoding, eot_id = encoding_of(specification["tokenizer"])

    def process(file):
        for batch in pq.ParquetFile(file).iter_batches(1000, columns=[specification["column"]]):
            for text in batch.column(0).to_pylist():
                yield torch.tensor([*encoding.encode_ordinary(text), eot_id], dtype=torch.uint16)

    # What keeps the documents' order is on, so that the ids can be compared.
    ordered = {"reorder_files": False, "keep_data_ordered": True}
    optimize(
        process, specification["files"], str(Path(specification["out"]) / "tokens"), chunk_bytes="64MB",
        num_workers=PROCESSES, item_loader=TokensLoader(), start_method="fork", verbose=False, **ordered,
    )  # fmt: skip


def stream_of(peer: str, out: Path) -> Iterator[np.ndarray]:
    """Yield the ids that a peer wrote, uint16, in the order of the documents."""
    if peer == "datatrove":
        for path in sorted((out / "tokens").glob("*.ds")):
            yield np.fromfile(path, np.uint16)
    elif peer == "litdata":
        for path in sorted((out / "tokens").glob("*.bin"), key=lambda path: [int(n) for n in path.stem.split("-")[1:]]):
            num_items = int(np.fromfile(path, np.uint32, count=1)[0])
            offsets = np.fromfile(path, np.uint32, count=num_items + 2)[1:]
            yield np.fromfile(path, np.uint16, offset=int(offsets[0]))
    else:
        yield np.fromfile(out / "train.bin", np.uint16)


if __name__ == "__main__":
    peers = {
        "nanogpt": nanogpt,
        "datasets_batched": datasets_batched,
        "datasets_joined": datasets_joined,
        "datatrove": datatrove,
        "litdata": litdata,
    }
    peers[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))

"""Tokenizing parquet → ids: the stage as it runs against other ways, on the same files and two cores.

    PYTHONPATH=src python benchmarks/tokenizing.py [--megabytes 630 --rounds 5]
    PYTHONPATH=src python benchmarks/tokenizing.py --raw data/raw --split text --name tokenizing_headers

Each case is a process of its own, timed from its start to its end, reading, encoding and writing; ours
with its checks, hashes and sidecar. The ids of all are compared first, on a little text, and
after the rounds by their SHA-256. Then the stage alone runs on ever more text, for its memory. A peer
whose package is absent (requirements/bench.txt) is left out. Writes benchmarks/results/NAME.json.
"""

import argparse
import hashlib
import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from harness import busy_share, interleave, ratios, run_measured, summary, versions, write_results
from lm.core.errors import command
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.text.parquet import describe_split, write_documents
from lm.text.sources.stories.grammar import mean_utf8_bytes_per_story, story
from lm.tokenizer.build import download_ranks, write_byte_level
from lm.tokenizer.engine import open_engine
from lm.tokenizer.load import load_tokenizer
from stages import change_params, run_stage, stage_folder
from tokenizing_peers import available, stream_of

BENCHMARKS = Path(__file__).resolve().parent
NUM_FILES = 8  # what works by whole files needs several of them
CHECK_MEGABYTES = 2
SLOW_ROUNDS = 1  # minutes each


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--megabytes", type=float, default=630, help="of stories, where --raw names no other text")
    add("--rounds", type=int, default=5)
    add("--raw", type=Path, help="a folder like data/raw")
    add("--split", default="train", help="of --raw")
    add("--peers", nargs="+", metavar="PEER", help="those alone; else all whose package is there")
    add("--tokenizer", type=Path, help="a byte-level tokenizer folder of at most 65,536 entries; else GPT-2's")
    add("--memory_megabytes", type=float, nargs="*", default=[20, 200, 2000], help="of stories, for the memory alone")
    add("--work", type=Path, help="an existing folder for temporary files (several times the text)")
    add("--name", default="tokenizing", help="of the file of results")
    return parser.parse_args(argv)


def make_stories(raw: Path, megabytes: float) -> Path:
    """Write a data/raw of about so much text in stories, in NUM_FILES files."""
    num_documents = int(megabytes * 1e6 / mean_utf8_bytes_per_story())
    per_file = -(-num_documents // NUM_FILES)
    for index in range(NUM_FILES):
        numbers = range(index * per_file, min((index + 1) * per_file, num_documents))
        texts, bits = itertools.tee(story(1, number) for number in numbers)
        path = raw / "train" / f"{index:04d}.parquet"
        write_documents(path, (s.text for s in texts), surprisal_bits=(s.surprisal_bits for s in bits))
    splits = {"train": describe_split(raw, "train", "text")}
    write_json(raw / "manifest.json", {"source": "stories", "column": "text", "entropy": {}, "splits": splits})
    return raw


def make_tokenizer(folder: Path) -> Path:
    """Write GPT-2's vocabulary."""
    folder.mkdir()
    write_byte_level(folder, download_ranks("gpt2"), "tiktoken", encoding="gpt2")
    return folder


class Cases:
    """The ways to tokenize one text, each into a folder of its own below `work`."""

    def __init__(self, work: Path, raw: Path, split: str, tokenizer: Path):
        manifest = read_json(raw / "manifest.json")
        files = [str((raw / entry["path"]).resolve()) for entry in manifest["splits"][split]["files"]]
        self.utf8_bytes = manifest["splits"][split]["utf8_bytes"]
        self.work, self.peak_mb = work, {}
        self.specification = {"files": files, "column": manifest["column"], "tokenizer": str(tokenizer.resolve())}
        self.stage = stage_folder(work / "stage")
        whole = {"split": split, "start_char": 0, "num_chars": None}
        change_params(self.stage, {"data.source": "benchmark", "sources.benchmark.train": whole})
        (self.stage / "data" / "raw").symlink_to(raw.resolve())
        (self.stage / "data" / "tokenizer").symlink_to(tokenizer.resolve())
        run_stage(self.stage, "select")
        self.bin = self.stage / "data" / "processed_datasets" / "train.bin"

    def ours(self) -> None:
        """The stage's own command."""
        self.bin.unlink(missing_ok=True)
        command = read_yaml(BENCHMARKS.parent / "dvc.yaml")["stages"]["tokenize_train"]["cmd"]
        self._run("ours", *shlex.split(command)[1:])

    def peer(self, name: str) -> None:
        """A peer of tokenizing_peers.py, without what it left behind before."""
        out = self.work / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        write_json(out / "specification.json", {**self.specification, "out": str(out)})
        self._run(name, str(BENCHMARKS / "tokenizing_peers.py"), name, str(out / "specification.json"))

    def _run(self, name: str, *arguments: str) -> None:
        """Run Python in the stage's folder and note the most memory that one of its processes took."""
        environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "src"), "HF_HUB_OFFLINE": "1"}
        peak_mb = run_measured([sys.executable, *arguments], self.work / f"{name}.log", cwd=self.stage, env=environment)
        self.peak_mb[name] = max(self.peak_mb.get(name, 0), peak_mb)

    def digest(self, name: str) -> str:
        """SHA-256 of the ids that a case wrote last."""
        stream = [np.fromfile(self.bin, np.uint16)] if name == "ours" else stream_of(name, self.work / name)
        digest = hashlib.sha256()
        for ids in stream:
            digest.update(ids)
        return digest.hexdigest()

    def all(self, peers: Iterable[str]) -> dict:
        """Name → what runs it."""
        return {"ours": self.ours} | {name: lambda name=name: self.peer(name) for name in peers}

    def compare(self, names: Iterable[str]) -> str:
        """The one SHA-256 of all cases' ids; ends the benchmark where there are several."""
        digests = {name: self.digest(name) for name in names}
        if len(set(digests.values())) != 1:
            sys.exit(f"error: the ids differ: {json.dumps(digests, indent=1)}")
        return digests["ours"]


def check_ids(work: Path, tokenizer: Path, peers: list[str]) -> None:
    """Run every case once on a few documents; their ids have to be the same."""
    work.mkdir()
    cases = Cases(work, make_stories(work / "raw", CHECK_MEGABYTES), "train", tokenizer)
    for run in cases.all(peers).values():
        run()
    print(f"the same ids of {CHECK_MEGABYTES} MB: sha256 {cases.compare(['ours', *peers])}", flush=True)


def measure_memory(work: Path, tokenizer: Path, megabytes: float) -> dict:
    """The stage's peak memory on so much text."""
    work.mkdir()
    cases = Cases(work, make_stories(work / "raw", megabytes), "train", tokenizer)
    cases.ours()
    shutil.rmtree(work)
    return {"text_mb": round(cases.utf8_bytes / 1e6, 1), "peak_mb_of_a_process": cases.peak_mb["ours"]}


def measure(args: argparse.Namespace, work: Path) -> None:
    """Compare, time, and write what was found."""
    peers, tokenizer = args.peers or available(), args.tokenizer or make_tokenizer(work / "tokenizer")
    check_ids(work / "check", tokenizer, peers)
    raw = args.raw or make_stories(work / "raw", args.megabytes)
    (work / "cases").mkdir()
    cases, busy = Cases(work / "cases", raw, args.split, tokenizer), [busy_share()]
    slow = {name: min(SLOW_ROUNDS, args.rounds) for name in ("nanogpt", "datatrove", "litdata")}
    seconds = interleave(cases.all(peers), args.rounds, fewer=slow)
    busy.append(busy_share())
    sha256, megabytes = cases.compare(seconds), cases.utf8_bytes / 1e6
    text = {
        "name": str(args.raw or "stories"),
        "utf8_bytes": cases.utf8_bytes,
        "files": len(cases.specification["files"]),
    }
    memory = [measure_memory(work / "memory", tokenizer, size) for size in args.memory_megabytes]
    packages = ("gigatoken", "tiktoken", "tokenizers", "datasets", "datatrove", "litdata", "pyarrow", "numpy")
    write_results(
        BENCHMARKS / "results" / f"{args.name}.json", "tokenizing", seconds=seconds, ours="ours", busy=busy,
        text=text,
        vocab_size=load_tokenizer(tokenizer).vocab_size,
        engine="gigatoken" if open_engine(load_tokenizer(tokenizer)) else "tiktoken",
        sha256_of_all_ids=sha256, versions=versions(*packages),
        mb_per_s={name: summary([megabytes / s for s in times]) for name, times in seconds.items()},
        peak_mb_of_a_process=cases.peak_mb, memory_of_ours=memory,
    )  # fmt: skip
    for name, ratio in ratios(seconds, "ours").items():
        print(f"{name}: {ratio['median']:.1f} times longer ({ratio['min']:.1f} to {ratio['max']:.1f})")


@command
def main(argv: list[str]) -> None:
    """Measure on two cores in a temporary folder."""
    args = parse(argv)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with TemporaryDirectory(dir=args.work) as work:
        measure(args, Path(work))


if __name__ == "__main__":
    sys.exit(main())

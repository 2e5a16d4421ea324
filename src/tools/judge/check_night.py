"""Check the result of a night: is HEAD better than BASE on text that no stage reads, and is its loss a real one?

    python src check_night BASE
    python src check_night BASE --seeds 3

It trains both commits with the same seeds, each in a clone without caches and without this shell's variables, and
scores them on the test split, which no stage reads. Then it compresses a part of that text with the model of HEAD, and
decompresses it: who gets a text back from few bytes has shown that the model predicts it. Exit status: 0 if HEAD is
better on the test split and the text came back, 1 if not. Each look is a row of test_reads.csv.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from evidence.differences import paired
from evidence.errors import EvidenceError
from evidence.intervals import Estimate
from evidence.judge.decision import KEEP_FROM
from evidence.judge.judgements import check_history, read_judgements
from evidence.judge.repository import Commit, commit_of_workspace, read_commit, reject_changed
from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.core.files import output_lock
from lm.core.params import read_section
from lm.core.paths import PARAMS
from tools.common.arguments import count, tool_parser
from tools.common.commands import run
from tools.common.paths import RAW
from tools.common.test_reads import TEST_READS, TestRead, read_test_reads, write_test_reads
from tools.judge.cli import DECIDES_NOTHING, MAY_CHANGE, SCORES, as_user_error

NOT_CONFIRMED = 1  # exit status
# Variables of the shell that a clone needs; others, such as PYTHONPATH, could change what runs.
KEPT_VARIABLES = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "HF_HOME", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


class Compressed(NamedTuple):
    """A text, the bytes from which the model gave it back, and whether it did."""

    text_bytes: int
    file_bytes: int
    came_back: bool


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if there are too few seeds."""
    parser = tool_parser("check_night", __doc__)
    parser.add_argument("base", metavar="BASE", help="the Git revision with which the night began")
    parser.add_argument("--seeds", type=count, default=KEEP_FROM, help=f"seeds of each side ({KEEP_FROM})")
    parser.add_argument("--bytes", type=count, default=20_000, help="of the test text, to compress (20000)")
    args = parser.parse_args(argv)
    if args.seeds < 2:
        raise ParamsError(f"--seeds is {args.seeds}; it must be at least 2, because one run does not show its noise")
    return args


def read_commits(base: str) -> tuple[Commit, Commit]:
    """Return the base and HEAD. Raise an error if the rows of the night or the files that score were edited."""
    check_history(read_judgements(), DECIDES_NOTHING)
    first = read_commit(base, DECIDES_NOTHING)
    head = read_commit("HEAD", DECIDES_NOTHING)
    if commit_of_workspace(DECIDES_NOTHING).tree != head.tree:
        raise ParamsError("the files differ from HEAD, which is what is checked; commit or undo the changes")
    if first.tree == head.tree:
        raise ParamsError(f"nothing differs between {base} and HEAD; name the commit with which the night began")
    reject_changed(first, head, MAY_CHANGE, SCORES)
    return first, head


@contextlib.contextmanager
def clean_clone(commit: Commit) -> Iterator[Path]:
    """Yield a clone with the files of a commit, which is gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run("git", "clone", "--quiet", ".", folder, folder=".")
        run("git", "checkout", "--quiet", "--detach", commit.hash, folder=folder)
        yield Path(folder)


def run_in_clone(clone: Path, *words: str, **variables: str) -> str:
    """Run a tool of a clone with its own Python, and return what it prints. Raise EnvironmentFailure if it fails."""
    own = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    environment = {**own, "PATH": path, "PYTHONNOUSERSITE": "1", **variables}
    done = subprocess.run(["python", "src", *words], cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise EnvironmentFailure(f"`python src {words[0]}` ended with status {done.returncode}, as said above")
    return done.stdout


def train_and_score(clone: Path, commit: Commit, seed: int) -> float:
    """Train in a clone with a seed; return the bits per byte of the test split, and record the look."""
    print(f"training {commit.short} ({commit.subject}) with seed {seed}", file=sys.stderr, flush=True)
    variables = {"SEED": str(seed), "LOSSES": str(clone / "losses.csv"), "REPOSITORY": os.getcwd()}
    run_in_clone(clone, "judge_run", "--compile", **variables)
    found = json.loads(run_in_clone(clone, "score_test", "--json"))
    add_looks(read_test_reads(clone / TEST_READS))
    return found["bits_per_byte"]


def add_looks(looks: list[TestRead]) -> None:
    """Add the looks of a clone to test_reads.csv here."""
    with output_lock(TEST_READS, wait=True):
        known = read_test_reads(TEST_READS)
        write_test_reads(TEST_READS, list(dict.fromkeys([*known, *looks])))


def compress_test_text(clone: Path, num_bytes: int) -> Compressed:
    """Compress the begin of the test text with the model of a clone, and decompress it."""
    texts = pq.read_table(clone / RAW / "test.parquet")["text"].to_pylist()
    start = "\n".join(texts).encode()[:num_bytes].decode("utf-8", "ignore")
    text = clone / "test.txt"
    text.write_text(start, encoding="utf-8")
    run_in_clone(clone, "compress", "test.txt", "test.rlmc")
    run_in_clone(clone, "decompress", "test.rlmc", "test.copy")
    came_back = (clone / "test.copy").read_bytes() == text.read_bytes()
    return Compressed(text.stat().st_size, (clone / "test.rlmc").stat().st_size, came_back)


def sentences(scores: dict[str, np.ndarray], difference: Estimate, compressed: Compressed) -> list[str]:
    """Return the answer for a person; `scores` has the bits per byte over seeds of each side."""
    means = " → ".join(f"{values.mean():.4f} ({name})" for name, values in scores.items())
    gain = "better" if difference.value < 0 else "not better"
    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = f", 95 % interval {difference.low:+.4f} to {difference.high:+.4f}"
    back = "came back" if compressed.came_back else "did NOT come back"
    bits = 8 * compressed.file_bytes / compressed.text_bytes
    sizes = f"{compressed.text_bytes:,} bytes of this text {back} from {compressed.file_bytes:,}"
    return [
        f"test: {means} bits per byte: {gain}",
        f"  {difference.value:+.4f}, mean of {len(scores['base'])} pairs of equal seeds{interval}",
        f"  {sizes}: {bits:.4f} bits per byte",
        f"written: {TEST_READS}; commit it",
    ]


@exit_with_status
def main(argv: list[str]) -> int:
    """Check HEAD against the base of a night; return NOT_CONFIRMED if it is no better, or no text comes back."""
    args = parse(argv)
    try:
        base, head = read_commits(args.base)
    except EvidenceError as error:
        raise as_user_error(error) from None
    first_seed = read_section(PARAMS, "train.seed", int)
    seeds = range(first_seed, first_seed + args.seeds)

    # Train and score both sides, then let the last model show what it knows.
    scores = {}
    with clean_clone(base) as clone:
        scores["base"] = np.array([train_and_score(clone, base, seed) for seed in seeds])
    with clean_clone(head) as clone:
        scores["HEAD"] = np.array([train_and_score(clone, head, seed) for seed in seeds])
        compressed = compress_test_text(clone, args.bytes)

    difference = paired(scores["HEAD"] - scores["base"])
    print("\n".join(sentences(scores, difference, compressed)))
    return 0 if difference.value < 0 and compressed.came_back else NOT_CONFIRMED

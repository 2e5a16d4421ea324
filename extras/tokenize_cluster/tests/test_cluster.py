"""Tokenizing in ranks gives the bytes of one process; a finished rank is reused only for the same inputs."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tokenize_split
from extras.tokenize_cluster import ranks as cluster_ranks
from extras.tokenize_cluster.ranks import join_ranks, plan_ranks, tokenize_rank
from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.text.mixture import tag_rows
from lm.text.raw_files import write_manifest, write_split
from lm.text.rows import keep_rows, measured
from lm.text.slices import Slice
from lm.tokenizer.build import write_trained_bpe
from support import ROOT
from support.damage import flip
from support.stages import work_in_copy
from support.tokenizer_cases import fuzzed_texts

OUT = Path("data/processed_datasets/train.bin")
TEXTS = fuzzed_texts(300, seed=6)
WHOLE = Slice("text", 0, None)
FILES = (TEXTS[:40], TEXTS[40:45], ["", ""], TEXTS[45:200], TEXTS[200:])


def write_raw(files) -> None:
    """Write data/raw with a row group for the documents of each of `files` that have text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm.text.raw_files.GROUP_CHARS", 1)
        patch.setattr("lm.text.parquet.GROUP_CHARS", 10**9)
        raw = Path("data/raw")
        raw.mkdir(parents=True, exist_ok=True)
        rows = tag_rows(map(rows_of, filter(any, files)), 0)
        entry = write_split(raw, "text", rows, ["test"])
    write_manifest(raw, "test", {"test": {}}, {"text": entry}, {})


def rows_of(texts: list[str]):
    """Return the rows of the documents that have text."""
    rows = measured(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    _, sizes = rows
    return keep_rows(rows, sizes > 0)


def set_slice(start_char: int, num_chars: int | None) -> None:
    """Set the training slice; validation is in another split."""
    slices = {
        "train": {"split": "text", "start_char": start_char, "num_chars": num_chars},
        "validation": {"split": "other", "start_char": 0, "num_chars": None},
    }
    write_json("params.yaml", {"data": {"source": "test"}})
    write_json("sources.yaml", {"sources": {"test": slices}})


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_raw(FILES)
        Path("data/tokenizer").mkdir()
        write_trained_bpe(Path("data/tokenizer"), [TEXTS], 300)
        Path("runtime.yaml").write_text("tokenize: {num_processes: 1}\n")
        set_slice(0, None)
    return folder


@pytest.fixture(autouse=True)
def project(template, tmp_path, monkeypatch):
    """A copy of the template as the working directory."""
    work_in_copy(monkeypatch, template, tmp_path / "project")


def plan(text_slice=WHOLE, num_ranks=3):
    raw = Path("data/raw")
    tokenizer = Path("data/tokenizer")
    return plan_ranks(raw, tokenizer, text_slice, Path("ranks"), num_ranks)


def run(job) -> list[int]:
    """Tokenize the unfinished ranks; return their numbers."""
    unfinished = job.unfinished()
    for rank in unfinished:
        tokenize_rank(job, rank)
    return [rank.number for rank in unfinished]


def assert_same_as_one_process() -> None:
    """Check that OUT and its sidecar equal those of the stage."""
    folders = ["--raw", "data/raw", "--tokenizer", "data/tokenizer"]
    assert tokenize_split.main(["--split", "train", *folders, "--tokens", "single.bin"]) == 0
    assert read_json(OUT.with_suffix(".json")) == read_json("single.json")
    assert OUT.read_bytes() == Path("single.bin").read_bytes()


TOTAL = sum(len(text) for text in TEXTS)
FIRST = sum(len(text) for text in FILES[0])


@pytest.mark.parametrize(
    ("start_char", "num_chars", "num_ranks"),
    [
        (FIRST - 1, 2, 100),
        (FIRST // 2, TOTAL // 2, 3),
    ],
)
def test_ranks_give_the_bytes_of_one_process(start_char, num_chars, num_ranks):
    set_slice(start_char, num_chars)
    job = plan(Slice("text", start_char, num_chars), num_ranks)

    run(job)
    join_ranks(job, OUT)

    assert len(job.ranks) <= min(num_ranks, len(FILES) - 1)
    assert_same_as_one_process()


def replace_text() -> None:
    """Write other text of the same size, so that the row groups are divided among the ranks as before."""
    write_raw([*FILES[:3], FILES[3][::-1], FILES[4]])


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda patch: replace_text(), [0, 1, 2, 3]),
        (lambda patch: patch.setattr(cluster_ranks, "CODE", ("lm/core/errors.py",)), [0, 1, 2, 3]),
        (lambda patch: Path("ranks/rank-00003.bin").unlink(), [3]),
        (lambda patch: Path("ranks/rank-00000.json").write_text("{"), [0]),
    ],
    ids=["text", "code", "missing", "record"],
)
def test_a_restart_repeats_only_what_has_changed(monkeypatch, change, again):
    run(plan(num_ranks=100))
    assert run(plan(num_ranks=100)) == []

    change(monkeypatch)
    job = plan(num_ranks=100)

    assert run(job) == again
    join_ranks(job, OUT)
    assert_same_as_one_process()


def test_a_rank_with_changed_bytes_is_not_joined():
    job = plan()
    run(job)
    flip(job.path(job.ranks[2]))

    with pytest.raises(IntegrityError, match=r"rank-00002\.bin: sha256 .* remove it"):
        join_ranks(job, OUT)
    assert not OUT.exists()


@pytest.mark.slow
def test_two_local_workers_give_the_bytes_of_one_process():
    """In a new process, because datatrove's log keeps the first stderr that it sees."""
    command = [sys.executable, ROOT / "src", "tokenize_cluster", "train", "--ranks", "100", "--workers", "2"]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "4 of 4 ranks to tokenize" in done.stdout
    assert_same_as_one_process()

"""Tokenizing in ranks gives the bytes of one process; a finished rank is reused only for the same inputs."""

import subprocess
import sys
from pathlib import Path

import pytest

import tokenize_split
from extras.tokenize_cluster import ranks as cluster_ranks
from extras.tokenize_cluster.ranks import join_ranks, plan_ranks, tokenize_rank
from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.text.slices import Slice
from lm.tokenizer.build import write_trained_bpe
from support import ROOT
from support.damage import flip
from support.mixture_cases import write_source
from support.stages import work_in_copy
from support.tokenizer_cases import fuzzed_texts

OUT = Path("data/processed_datasets/train.bin")
TEXTS = [text for text in fuzzed_texts(400, seed=6) if text][:300]
GROUP = 60  # documents of a row group
NUM_GROUPS = len(TEXTS) // GROUP
FIRST = sum(len(text) for text in TEXTS[:GROUP])
TOTAL = sum(len(text) for text in TEXTS)


def write_raw(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm.text.raw_files.GROUP_CHARS", 1)  # a row group for each file
        write_source(Path("data/raw"), "test", per_file=GROUP, text=texts)


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
        write_raw(TEXTS)
        Path("data/tokenizer").mkdir()
        write_trained_bpe(Path("data/tokenizer"), [TEXTS], 300)
        Path("runtime.yaml").write_text("tokenize: {num_processes: 1}\n")
        set_slice(0, None)
    return folder


@pytest.fixture(autouse=True)
def project(template, tmp_path, monkeypatch):
    """A copy of the template as the working directory."""
    work_in_copy(monkeypatch, template, tmp_path / "project")


def plan(start_char: int = 0, num_chars: int | None = None, num_ranks: int = 100):
    text_slice = Slice("text", start_char, num_chars)
    return plan_ranks(Path("data/raw"), Path("data/tokenizer"), text_slice, Path("ranks"), num_ranks)


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


@pytest.mark.parametrize(
    ("start_char", "num_chars", "num_ranks"),
    [
        (FIRST - 1, 2, 100),
        (FIRST // 2, TOTAL // 2, 3),
    ],
)
def test_ranks_give_the_bytes_of_one_process(start_char, num_chars, num_ranks):
    set_slice(start_char, num_chars)
    job = plan(start_char, num_chars, num_ranks)

    run(job)
    join_ranks(job, OUT)

    assert len(job.ranks) <= min(num_ranks, NUM_GROUPS)
    assert_same_as_one_process()


ALL = list(range(NUM_GROUPS))


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda patch: write_raw([*TEXTS[GROUP:], *TEXTS[:GROUP]]), ALL),
        (lambda patch: patch.setattr(cluster_ranks, "CODE", ()), ALL),
        (lambda patch: Path("ranks/rank-00003.bin").unlink(), [3]),
        (lambda patch: Path("ranks/rank-00000.json").write_text("{"), [0]),
    ],
)
def test_a_restart_repeats_only_what_has_changed(monkeypatch, change, again):
    run(plan())

    change(monkeypatch)
    job = plan()

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
    assert f"{NUM_GROUPS} of {NUM_GROUPS} ranks to tokenize" in done.stdout
    assert_same_as_one_process()

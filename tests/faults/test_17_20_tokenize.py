"""Faults 17 to 20: full disks, kills, overlapping slices, damaged vocabularies. Real disks, real SIGKILLs.

Most tests use the vocabulary of the 256 bytes (support.tokenize_cases).
"""

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import tiktoken

import fetch
from lm.core.errors import EnvironmentFailure
from lm.core.files import atomic_folder
from lm.tokenizer import build as vocabulary
from lm.tokenizer.build import write_huggingface
from lm.tokens.tokenfile import open_tokens
from support import ROOT
from support.kills import killed_before_call
from support.refusal import files_below, refused
from support.tokenize_cases import (
    ALL,
    ENVIRONMENT,
    FETCH,
    LOCAL,
    MANY,
    STAGE,
    TEXT,
    arguments,
    build_tokenizer,
    expected_ids,
    outputs,
    run_audit,
    select,
    start,
    tokenize,
    write_params,
    write_raw,
    write_runtime,
)  # fmt: skip
from support.tokenizer_cases import TIKTOKEN_CACHE, digests

LIMITED = """
import resource, sys, tokenize_split
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
sys.exit(tokenize_split.main(sys.argv[1:]))
"""


def test_17_a_failed_write_ends_with_5_and_leaves_nothing(project):
    """A limit on the size of files (EFBIG) stands in for the full disk, which needs the right to mount one."""
    write_raw(MANY)
    limited = start(LIMITED)
    refused(limited.wait(60), limited.stderr.read(), 5, "out/train.bin: File too large", "run the same command again")
    assert outputs() == []
    assert tokenize() == 0
    assert np.array_equal(np.fromfile("out/train.bin", "<u2"), expected_ids(MANY))


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A file system of `size` at `folder`, and the function that gives it another size."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs Linux and root")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fetch", "make_tokenizer", "tokenize_train"])
def test_17_a_full_disk_ends_with_5_and_freeing_space_is_enough(project, stage):
    Path("texts").mkdir()
    for i, text in enumerate(MANY):
        Path(f"texts/{i:04d}.txt").write_text(text)
    write_params(tokenizer={"kind": "bpe", "vocab_size": 1000, "pretokenizer": "gpt2"}, fetch=LOCAL)
    assert fetch.main(FETCH) == select() == 0
    stages = {
        "fetch": ["fetch", *FETCH[:2], "--raw", "out/raw"],
        "make_tokenizer": ["make_tokenizer", *TEXT, "--tokenizer", "out/tokenizer"],
        "tokenize_train": ["tokenize_split", *arguments()],
    }
    name, *rest = stages[stage]
    command = [sys.executable, str(ROOT / "src" / f"{name}.py"), *rest]

    def run() -> subprocess.CompletedProcess:
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)

    with small_disk(Path("out"), "300k" if stage != "make_tokenizer" else "40k") as resize:
        full = run()
        refused(full.returncode, full.stderr, 5, f"{rest[-1]}: No space left on device", "free some space")
        assert outputs() == []
        resize("20m")
        assert run().returncode == 0
        left = files_below(Path("out"))
    assert left
    if stage == "tokenize_train":
        assert left["train.bin"] == expected_ids(MANY).tobytes()


@pytest.mark.slow
def test_17_a_full_disk_while_importing_a_vocabulary(project, byte_vocabularies):
    """transformers writes it with a library that does not raise OSError."""
    with small_disk(Path("out"), "8k") as resize:
        sentence = "out/tokenizer: No space left on device; .* free some space"
        with pytest.raises(EnvironmentFailure, match=sentence), atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, byte_vocabularies["bytes"])
        assert outputs() == []
        resize("20m")
        with atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, byte_vocabularies["bytes"])
        assert outputs()


def test_18_killed_at_each_step_of_writing_the_bin_is_complete_or_missing(project):
    write_raw(MANY[:50])
    whole, survived = expected_ids(MANY[:50]).tobytes(), []
    for step in range(1, 20):
        killed = start(killed_before_call("tokenize_split"), str(step))
        status = killed.wait(60)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        survived.append(Path("out/train.bin").exists())
        assert not survived[-1] or Path("out/train.bin").read_bytes() == whole
    assert survived == [False] * (len(survived) - 1) + [True], "the last rename makes it appear"
    assert len(survived) >= 4
    assert outputs() == ["train.bin", "train.json"], "temporary files of the killed process are removed"
    assert Path("out/train.bin").read_bytes() == whole
    open_tokens(Path("out/train.bin"))


def living(group: int) -> list[int]:
    """Return the ids of a process group's running processes."""
    running = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                running.append(process.pid)
    return running


def partial_bytes() -> int:
    """Return the size of the unfinished token file."""
    with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
        return sum(path.stat().st_size for path in Path("out").glob(".train.bin.*.tmp"))
    return 0


def kill_at(num_bytes: int, folder: Path) -> bool:
    """SIGKILL the stage's main process after it has written `num_bytes`; return whether it was still running.

    Its workers must exit by themselves.
    """
    main = start(STAGE, folder=folder)
    while main.poll() is None and partial_bytes() < num_bytes:
        time.sleep(0.001)
    main.kill()
    in_time, deadline = main.wait() == -signal.SIGKILL, time.monotonic() + 20
    try:
        while processes := living(main.pid):
            assert time.monotonic() < deadline, f"processes {processes} outlive their parent"
            time.sleep(0.05)
    finally:
        for pid in living(main.pid):
            os.kill(pid, signal.SIGKILL)
    return in_time


@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["bytes", "imported"])  # threads, processes
def test_18_killed_at_random_moments_the_rerun_is_byte_identical(project, byte_vocabularies, kind, num_kills):
    """Each rerun uses another number of workers and another chunk size; no process is left running."""
    draw, folder = random.Random(num_kills), byte_vocabularies[kind]
    times = 10 if kind == "bytes" else 2
    write_raw(MANY * times)
    whole = expected_ids(MANY).tobytes() * times
    settings = itertools.cycle(itertools.product([1, 2, 3], [1000, 50_000, 10**9]))
    num_in_time = 0
    for _ in range(num_kills):
        write_runtime(2, 2000)
        in_time = kill_at(draw.randrange(1, len(whole)), folder)
        assert Path("out/train.bin").exists() != in_time
        num_in_time += in_time
        write_runtime(*next(settings))
        assert tokenize(folder=folder) == 0
        assert Path("out/train.bin").read_bytes() == whole
        assert outputs() == ["train.bin", "train.json"], "temporary files of the killed process are removed"
        shutil.rmtree("out")
    assert num_in_time


@pytest.mark.parametrize(
    ("train", "validation", "overlap"),
    [
        ({"num_chars": 11}, {"start_char": 10}, "10 to 11"),
        ({}, {}, "0 to inf"),
        ({}, {"start_char": 10, "num_chars": 5}, "10 to 15"),
        ({"start_char": 5, "num_chars": 5}, {"num_chars": 6}, "5 to 6"),
    ],
)
def test_19_overlapping_slices_are_refused(project, capsys, train, validation, overlap):
    write_raw(["ten chars.", "ten more.."])
    write_params(ALL | train, ALL | validation)
    sentence = f"presets.yaml: sources.mine: train and validation share characters {overlap} of split 'text'"
    refused(tokenize("validation"), capsys.readouterr().err, 2, sentence, "move validation.start_char")
    assert outputs() == []
    write_params({**ALL, "num_chars": 10}, {**ALL, "start_char": 10})
    assert tokenize("validation") == 0


def test_19_documents_in_both_splits_are_flagged_and_kept(project):
    train = ["twice in train", "twice in train", "in both, exactly", "in both,  but for\n white space", "train only"]
    validation = ["in both, exactly", "in both, but for white space ", "validation only"]
    write_raw([*train, *validation])
    length = sum(map(len, train))
    write_params({**ALL, "num_chars": length}, {**ALL, "start_char": length})
    assert tokenize("train") == tokenize("validation") == 0
    counts = run_audit()["duplicates"]
    assert counts["validation"] == {"exact_within": 0, "exact_across": 1, "folded_within": 0, "folded_across": 2}
    assert counts["train"] == {"exact_within": 1, "exact_across": 1, "folded_within": 1, "folded_across": 2}
    flags = pq.read_table("audit/duplicates.parquet").to_pylist()
    flagged = [(row["split"], row["document"]) for row in flags if row["folded_across"]]
    assert flagged == [("train", 2), ("train", 3), ("validation", 0), ("validation", 1)]
    for split, texts in (("train", train), ("validation", validation)):
        assert np.fromfile(f"out/{split}.bin", "<u2").tolist() == expected_ids(texts).tolist()


@pytest.fixture
def gpt2(project, monkeypatch):
    """Parameters that select tiktoken's GPT-2, without a network: the machine itself refuses every request."""
    write_raw(["text"])
    write_params(tokenizer={"kind": "tiktoken", "encoding": "gpt2"})
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return project


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_a_corrupt_cached_vocabulary_is_named_and_kept(gpt2, monkeypatch, capsys):
    cache = shutil.copytree(TIKTOKEN_CACHE, gpt2 / "cache", copy_function=shutil.copyfile)
    cache.chmod(0o755)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    assert build_tokenizer() == 0
    before = digests(Path("out"))
    assert before["ranks.tiktoken"] == vocabulary.RANKS_SHA256["gpt2"]
    for url, expected in vocabulary.DOWNLOADS["gpt2"].items():
        path = cache / hashlib.sha1(url.encode()).hexdigest()
        good = path.read_bytes()
        path.write_bytes(good + b"\n")
        found = hashlib.sha256(good + b"\n").hexdigest()
        sentence = f"{path}: sha256 is {found}, needed for {url}: {expected}; delete it and run again"
        refused(build_tokenizer(), capsys.readouterr().err, 4, sentence)
        assert path.read_bytes() == good + b"\n" and digests(Path("out")) == before
        path.write_bytes(good)
    assert build_tokenizer() == 0


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_a_missing_vocabulary_offline_is_named_with_its_hash(gpt2, monkeypatch, capsys):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(gpt2 / "empty"))
    named = [text for pair in vocabulary.DOWNLOADS["gpt2"].items() for text in pair]
    todo = "run again with a network, or set TIKTOKEN_CACHE_DIR"
    refused(build_tokenizer(), capsys.readouterr().err, 5, *named, todo)
    assert not Path("out").exists()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    assert build_tokenizer() == 0


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_unknown_ranks_are_refused(gpt2, monkeypatch, capsys):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    known = vocabulary.RANKS_SHA256["gpt2"]
    monkeypatch.setitem(vocabulary.RANKS_SHA256, "gpt2", "0" * 64)
    sentence = f"sha256 of its ranks is {known}, needed: {'0' * 64}"
    refused(build_tokenizer(), capsys.readouterr().err, 4, sentence)
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["ranks.tiktoken", "tokenizer.json", "tokenizer_config.json"])
def test_20_an_altered_or_missing_vocabulary_is_not_used(project, capsys, name):
    write_raw(["text"])
    path = Path("tokenizer", name)
    good = path.read_bytes()
    altered = bytes([good[0] ^ 1]) + good[1:]
    path.write_bytes(altered)
    expected = f"meta.json says {hashlib.sha256(good).hexdigest()}; run `python src verify --cache`"
    found = f"tokenizer/{name}: sha256 is {hashlib.sha256(altered).hexdigest()}"
    refused(tokenize(), capsys.readouterr().err, 4, found, expected)
    assert path.read_bytes() == altered and outputs() == []
    path.unlink()
    refused(tokenize(), capsys.readouterr().err, 4, f"tokenizer/{name}: sha256 is no file", expected)
    path.write_bytes(good)
    assert tokenize() == 0

"""Faults 12 to 20: tokenizing. Real documents of 2 and 50 MB, real full disks, real SIGKILLs, real damage.

The stages run in a temporary folder with a params.yaml of their own. Most tests use a vocabulary of the 256
bytes, whose ids are the text's UTF-8 bytes, so that what a token file must hold can be read off the text.
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

import audit
import fetch
import make_tokenizer
import tokenize_split
from lm.core.errors import EnvironmentFailure
from lm.core.files import atomic_folder, read_json, write_json
from lm.text.parquet import describe_split, write_documents
from lm.tokenizer import build as vocabulary
from lm.tokenizer.build import download_ranks, write_byte_level, write_huggingface
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from support import ROOT
from support.refusal import files_below, refused
from support.tokenizer_cases import SPECIAL, TIKTOKEN_CACHE, digests, write_bpe, write_gemma_like

BYTES = {bytes([byte]): byte for byte in range(256)}
END = 256  # the end-of-text id of a vocabulary of the bytes
ALL = {"split": "text", "start_char": 0, "num_chars": None}
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}


def write_raw(texts) -> None:
    """data/raw as fetch leaves it, with one split `text`."""
    write_documents(Path("raw/text/0000.parquet"), texts)
    splits = {"text": describe_split(Path("raw"), "text", "text")}
    write_json("raw/manifest.json", {"source": "mine", "column": "text", "splits": splits})


def write_params(train=ALL, validation=ALL, tokenizer=None) -> None:
    sources = {"mine": {"train": train, "validation": validation}}
    chosen = {"tokenizer": {"name": "t"}, "tokenizers": {"t": tokenizer or {"kind": "bpe", "vocab_size": 300}}}
    write_json("params.yaml", {"data": {"source": "mine"}, "sources": sources, **chosen})


def write_runtime(num_processes, chunk_chars) -> None:
    write_json("runtime.yaml", {"tokenize": {"num_processes": num_processes, "chunk_chars": chunk_chars}})


def arguments(which="train", folder="tokenizer") -> list[str]:
    return [which, "raw", str(folder), f"out/{which}.bin"]


def tokenize(which="train", folder="tokenizer") -> int:
    return tokenize_split.main(arguments(which, folder))


def run_audit() -> dict:
    """The data card of both splits; the flags of duplicates are in duplicates.parquet."""
    files = ["out/train.bin", "out/validation.bin", "duplicates.parquet", "overlap.parquet", "data.json"]
    assert audit.main(["raw", *files]) == 0
    return read_json("data.json")


def start(program: str, *options: str, folder="tokenizer") -> subprocess.Popen:
    """Run a Python program that is given the stage's arguments, in a process group of its own."""
    command = [sys.executable, "-c", program, *options, *arguments(folder=folder)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **pipes)


STAGE = "import sys, tokenize_split; sys.exit(tokenize_split.main(sys.argv[1:]))"


def outputs() -> list[str]:
    return sorted(files_below(Path("out")))


def expected_ids(texts) -> np.ndarray:
    return np.array([i for text in texts for i in [*text.encode("utf-8"), END]], dtype="<u2")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory: parameters, the vocabulary of bytes in tokenizer/; texts are written by each test."""
    monkeypatch.chdir(tmp_path)
    write_params()
    write_runtime(1, 1000)
    Path("tokenizer").mkdir()
    write_byte_level(Path("tokenizer"), BYTES, "bpe")
    return tmp_path


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """A folder for each kind of tokenizer: trained, of tiktoken (where its file is at hand), of Hugging Face.

    "imported" is the vocabulary of the bytes as one of Hugging Face's: the same ids in another way.
    """
    made = {kind: tmp_path_factory.mktemp(kind) for kind in ("bytes", "bpe", "gpt2", "huggingface", "imported")}
    write_byte_level(made["bytes"], BYTES, "bpe")
    write_huggingface(made["imported"], made["bytes"])
    write_bpe(made["bpe"])
    write_huggingface(made["huggingface"], write_gemma_like(tmp_path_factory.mktemp("source")))
    if TIKTOKEN_CACHE.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
            write_byte_level(made["gpt2"], download_ranks("gpt2"), "tiktoken", encoding="gpt2")
    return made


@pytest.fixture(scope="module", params=["bpe", "gpt2", "huggingface"])
def tokenizer_folder(request, tokenizers):
    if request.param == "gpt2" and not TIKTOKEN_CACHE.exists():
        pytest.skip(f"{TIKTOKEN_CACHE} is absent: GPT-2's vocabulary would have to be downloaded")
    return tokenizers[request.param]


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"start_char": 18}, "sources.mine: start_char is 18, but split 'text' has 18 characters; lower it"),
        ({"start_char": 10**9}, "start_char is 1000000000, but split 'text' has 18 characters; lower it"),
        ({"start_char": 5, "num_chars": 20}, "has 18 characters; the slice from 5 asks for 20, 7 too many"),
        ({"start_char": 1, "num_chars": 4}, "no document of split 'text' begins in characters 1 to 5"),
        ({"split": "train"}, "sources.mine has no split 'train'; its splits are text"),
    ],
)
@pytest.mark.parametrize("stage", ["make_tokenizer", "tokenize_train"])
def test_12_a_slice_that_is_not_there_gives_no_file(project, capsys, stage, part, sentence):
    write_raw(["twelve chars", "six ch"])
    run = tokenize if stage == "tokenize_train" else lambda: make_tokenizer.main(["raw", "out"])
    write_params(train=ALL | part)
    refused(run(), capsys.readouterr().err, 3, sentence)
    assert outputs() == []
    write_params()
    assert run() == 0
    assert outputs()


def test_12_an_empty_corpus_is_refused_where_it_is_fetched_and_where_it_is_read(project, capsys):
    fetch_section = {"kind": "local", "include": "**/*", "column": "text", "separator": None}
    source = {"fetch": fetch_section | {"validation_fraction": None}}
    params = {"data": {"source": "mine"}, "sources": {"mine": source}, "local": {"path": "texts"}}
    write_json("params.yaml", params)
    Path("texts").mkdir()
    sentence = "texts: no file matches '**/*' (sources.local.fetch.include); put text there"
    refused(fetch.main(["raw"]), capsys.readouterr().err, 3, sentence)
    Path("texts/a.txt").write_text("")
    sentence = "texts: split 'text' has no document, only 0 null and 1 empty rows; at least one is needed"
    refused(fetch.main(["raw"]), capsys.readouterr().err, 3, sentence)
    assert not Path("raw").exists()

    write_raw(["text"])  # as if made by hand
    manifest = read_json("raw/manifest.json")
    manifest["splits"]["text"] |= {"files": [], "documents": 0, "characters": 0}
    write_json("raw/manifest.json", manifest)
    write_params()
    refused(tokenize(), capsys.readouterr().err, 3, "start_char is 0, but split 'text' has 0 characters")
    assert outputs() == []


LONG = {"2 MB of one character": "é" * 1_000_000, "a million spaces": " " * 1_000_000 + "x", "short": "short"}


NAMES = [name for name in SPECIAL if name != "▁"]  # a character of its own, which Gemma decodes to a space
NAMED = [*NAMES, *(f"x{name}{name} y" for name in NAMES), "".join(NAMES), "\n".join(NAMES)]


@pytest.fixture(scope="module")
def tokenized(tokenizer_folder, tmp_path_factory):
    """LONG and NAMED after the stage: the token file and the tokenizer's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tokenized"))
        write_params()
        write_runtime(1, 1000)
        write_raw([*LONG.values(), *NAMED])
        assert tokenize(folder=tokenizer_folder) == 0
        return open_tokens(Path("out/train.bin").absolute()), tokenizer_folder


def documents_of(tokens, folder) -> list[str]:
    """The documents of a token file, decoded; behind each stands one separator."""
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode(tokens.ids[begin : end - 1].tolist()) for begin, end in document_spans(tokens)]


def test_13_documents_that_break_tokenizers_go_through_whole(tokenized):
    assert documents_of(*tokenized)[: len(LONG)] == list(LONG.values())


def test_13_a_vocabulary_can_be_trained_on_them(project):
    """In seconds: the trainer left to itself would take hours for each."""
    write_raw(LONG.values())
    program = "import sys, make_tokenizer; sys.exit(make_tokenizer.main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", program, "raw", "out"], env=ENVIRONMENT, check=True, timeout=60)
    assert load_tokenizer("out").decode(load_tokenizer("out").encode(LONG["a million spaces"])).endswith(" x")


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_13_a_document_of_50_mb_takes_at_most_a_gibibyte_a_process(project, tokenizers, kind):
    """At worst, one token a byte. (A Hugging Face tokenizer takes 0.1 to 0.2 GB for each MB of one document.)"""
    text = "int main(void) { return 0; } // the quick brown fox, é\n" * 910_000
    write_raw([text, "short"])
    folder = tokenizers["bpe"] if kind == "bpe" else "tokenizer"
    command = [sys.executable, "-c", MEASURE, sys.executable, "-c", STAGE, *arguments(folder=folder)]
    measured = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(measured) / (1 << 20 if sys.platform != "darwin" else 1 << 30) < 1.0
    assert documents_of(open_tokens("out/train.bin"), folder) == [text, "short"]


def test_14_one_policy_for_what_is_no_utf_8(project):
    """Bytes that are not UTF-8 and lone surrogates become U+FFFD, counted; NUL is a character; the ids say so."""
    Path("texts").mkdir()
    Path("texts/a.txt").write_bytes(b"long enough to be a text, one bad \xff byte, a true \xef\xbf\xbd, NUL \x00 kept")
    Path("texts/b.jsonl").write_bytes(b'{"text": "bad \xc3 and lone \\ud800, paired \\ud83d\\ude00"}\n')
    texts = [
        "long enough to be a text, one bad \ufffd byte, a true \ufffd, NUL \0 kept",
        "bad \ufffd and lone \ufffd, paired \N{GRINNING FACE}",
    ]
    fetch_section = {"kind": "local", "include": "**/*", "column": "text", "separator": None}
    source = {"fetch": fetch_section | {"validation_fraction": None}}
    source |= {"train": {**ALL, "num_chars": 10}, "validation": {**ALL, "start_char": 10}}
    params = {"data": {"source": "mine"}, "sources": {"mine": source}, "local": {"path": "texts"}}
    write_json("params.yaml", params)
    assert fetch.main(["raw"]) == tokenize("train") == tokenize("validation") == 0
    for which, text in zip(("train", "validation"), texts, strict=True):
        assert np.fromfile(f"out/{which}.bin", "<u2").tolist() == expected_ids([text]).tolist()
    assert run_audit()["replaced_characters"] == 3


def test_14_a_lone_surrogate_is_the_replacement_character_to_every_tokenizer(tokenizer_folder):
    tokenizer = load_tokenizer(tokenizer_folder)
    assert tokenizer.encode("a\ud800b\udfff \ud83d\ude00") == tokenizer.encode("a\ufffdb\ufffd \N{GRINNING FACE}")
    assert tokenizer.encode_documents(["\udc00"])[0].tolist()[:-1] == tokenizer.encode("\ufffd")
    assert tokenizer.decode(tokenizer.encode("\0a\0")) == "\0a\0"


def test_15_special_strings_in_a_document_are_ordinary_text(tokenized):
    tokens, folder = tokenized
    assert documents_of(*tokenized)[len(LONG) :] == NAMED
    assert np.count_nonzero(tokens.ids == tokens.eot_id) == tokens.meta["documents"] == len(LONG) + len(NAMED)
    special_ids = load_tokenizer(folder).meta["special_tokens"].values()
    assert set(special_ids) & set(tokens.ids.tolist()) == {tokens.eot_id}


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_16_the_dtype_follows_the_vocabulary(project, vocab_size, dtype):
    pairs = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    tokens = [*BYTES, *pairs][: vocab_size - 1]
    Path("wide").mkdir()
    write_byte_level(Path("wide"), {token: rank for rank, token in enumerate(tokens)}, "bpe")
    write_raw(["ab", "\x01\x02"])
    assert tokenize(folder="wide") == 0
    opened = open_tokens(Path("out/train.bin"))
    assert opened.ids.dtype.name == opened.meta["dtype"] == dtype
    assert opened.ids.tolist() == [256 + 256 * 97 + 98, vocab_size - 1, 256 + 256 + 2, vocab_size - 1]
    assert opened.path.stat().st_size == 4 * opened.ids.itemsize


@pytest.mark.parametrize("kind", ["bytes", "imported"])
def test_16_an_id_outside_the_vocabulary_is_never_written(project, capsys, tokenizers, kind):
    """The recorded size is too small for what the vocabulary gives."""
    folder = shutil.copytree(tokenizers[kind], "altered")
    tokenizer = load_tokenizer(folder)
    beyond = max(tokenizer.encode("hello world"))
    write_json(Path(folder, "meta.json"), {**tokenizer.meta, "vocab_size": beyond, "eot_id": 0})
    write_raw(["hello world"])
    sentence = f"altered: text gave the id {beyond}, but meta.json says {beyond} entries; run `dvc repro -f"
    refused(tokenize(folder=folder), capsys.readouterr().err, 4, sentence)
    assert outputs() == []
    assert tokenize(folder=tokenizers[kind]) == 0


LIMITED = """
import resource, sys, tokenize_split
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
sys.exit(tokenize_split.main(sys.argv[1:]))
"""
MANY = [f"document {i}: {i * 7919} and {i * 104729}.\n" * 10 for i in range(1000)]  # 800 kB of tokens


def test_17_a_write_that_fails_ends_with_5_and_leaves_nothing(project):
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
def test_17_a_full_disk_ends_with_5_and_room_is_all_it_needs(project, stage):
    Path("texts").mkdir()
    for i, text in enumerate(MANY):
        Path(f"texts/{i:04d}.txt").write_text(text)
    fetch_section = {"kind": "local", "include": "**/*", "column": "text", "separator": None}
    source = {"fetch": fetch_section | {"validation_fraction": None}, "train": ALL, "validation": ALL}
    params = {"data": {"source": "mine"}, "sources": {"mine": source}, "local": {"path": "texts"}}
    params |= {"tokenizer": {"name": "t"}, "tokenizers": {"t": {"kind": "bpe", "vocab_size": 1000}}}
    write_json("params.yaml", params)
    assert fetch.main(["raw"]) == 0
    stages = {
        "fetch": ["fetch", "out/raw"],
        "make_tokenizer": ["make_tokenizer", "raw", "out/tokenizer"],
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
def test_17_a_disk_too_full_for_an_imported_vocabulary(project, tokenizers):
    """transformers writes it, through a library that raises no OSError."""
    with small_disk(Path("out"), "8k") as resize:
        sentence = "out/tokenizer: No space left on device; .* free some space"
        with pytest.raises(EnvironmentFailure, match=sentence), atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, tokenizers["bytes"])
        assert outputs() == []
        resize("20m")
        with atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, tokenizers["bytes"])
        assert outputs()


# Kills itself before call number argv[1] of those that make a file last: fsync and rename.
KILLED = """
import os, signal, sys, tokenize_split
left = int(sys.argv.pop(1))
def counted(call):
    def wrapped(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapped
os.fsync, os.replace = counted(os.fsync), counted(os.replace)
sys.exit(tokenize_split.main(sys.argv[1:]))
"""


def test_18_killed_at_each_step_of_writing_there_is_no_bin_or_all_of_it(project):
    write_raw(MANY[:50])
    whole, survived = expected_ids(MANY[:50]).tobytes(), []
    for step in range(1, 20):
        killed = start(KILLED, str(step))
        status = killed.wait(60)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        survived.append(Path("out/train.bin").exists())
        assert not survived[-1] or Path("out/train.bin").read_bytes() == whole
    assert survived == [False] * (len(survived) - 1) + [True], "it appears by the last rename"
    assert len(survived) >= 4
    assert outputs() == ["train.bin", "train.json"], "what the killed left is gone"
    assert Path("out/train.bin").read_bytes() == whole
    open_tokens(Path("out/train.bin"))


def living(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                found.append(process.pid)
    return found


def partial_bytes() -> int:
    """The size of the token file in the making."""
    with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
        return sum(path.stat().st_size for path in Path("out").glob(".train.bin.*.tmp"))
    return 0


def kill_at(num_bytes: int, folder: Path) -> bool:
    """SIGKILL the stage's main process once it has written so much; whether that was in time.

    What it had started, workers and all, leaves by itself.
    """
    main = start(STAGE, folder=folder)
    while main.poll() is None and partial_bytes() < num_bytes:
        time.sleep(0.001)
    main.kill()
    in_time, deadline = main.wait() == -signal.SIGKILL, time.monotonic() + 20
    try:
        while processes := living(main.pid):
            assert time.monotonic() < deadline, f"processes {processes} outlive the one that started them"
            time.sleep(0.05)
    finally:
        for pid in living(main.pid):
            os.kill(pid, signal.SIGKILL)
    return in_time


@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["bytes", "imported"])  # threads, processes
def test_18_killed_at_random_moments_the_rerun_is_byte_identical(project, tokenizers, kind, num_kills):
    """With another number of workers and other chunks each time; no process is left behind."""
    draw, folder = random.Random(num_kills), tokenizers[kind]
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
        assert outputs() == ["train.bin", "train.json"], "what the killed one left is gone"
        shutil.rmtree("out")
    assert num_in_time


@pytest.mark.parametrize(
    ("train", "validation", "shared"),
    [
        ({"num_chars": 11}, {"start_char": 10}, "10 to 11"),
        ({}, {}, "0 to inf"),
        ({}, {"start_char": 10, "num_chars": 5}, "10 to 15"),
        ({"start_char": 5, "num_chars": 5}, {"num_chars": 6}, "5 to 6"),
    ],
)
def test_19_slices_that_overlap_are_refused(project, capsys, train, validation, shared):
    write_raw(["ten chars.", "ten more.."])
    write_params(ALL | train, ALL | validation)
    sentence = f"params.yaml: sources.mine: train and validation share characters {shared} of split 'text'"
    refused(tokenize("validation"), capsys.readouterr().err, 2, sentence, "move validation.start_char")
    assert outputs() == []
    write_params({**ALL, "num_chars": 10}, {**ALL, "start_char": 10})
    assert tokenize("validation") == 0


def test_19_documents_in_both_splits_are_flagged_and_counted_and_never_removed(project):
    train = ["twice in train", "twice in train", "in both, exactly", "in both,  but for\n white space", "train only"]
    validation = ["in both, exactly", "in both, but for white space ", "validation only"]
    write_raw([*train, *validation])
    length = sum(map(len, train))
    write_params({**ALL, "num_chars": length}, {**ALL, "start_char": length})
    assert tokenize("train") == tokenize("validation") == 0
    counts = run_audit()["duplicates"]
    assert counts["validation"] == {"exact_within": 0, "exact_across": 1, "folded_within": 0, "folded_across": 2}
    assert counts["train"] == {"exact_within": 1, "exact_across": 1, "folded_within": 1, "folded_across": 2}
    flags = pq.read_table("duplicates.parquet").to_pylist()
    flagged = [(row["split"], row["document"]) for row in flags if row["folded_across"]]
    assert flagged == [("train", 2), ("train", 3), ("validation", 0), ("validation", 1)]
    for which, texts in (("train", train), ("validation", validation)):
        assert np.fromfile(f"out/{which}.bin", "<u2").tolist() == expected_ids(texts).tolist()


@pytest.fixture
def gpt2(project, monkeypatch):
    """Parameters that ask for tiktoken's GPT-2; no network: every request is refused by the machine itself."""
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
    assert make_tokenizer.main(["raw", "out"]) == 0
    before = digests(Path("out"))
    assert before["ranks.tiktoken"] == vocabulary.RANKS_SHA256["gpt2"]
    for url, expected in vocabulary.DOWNLOADS["gpt2"].items():
        path = cache / hashlib.sha1(url.encode()).hexdigest()
        good = path.read_bytes()
        path.write_bytes(good + b"\n")
        found = hashlib.sha256(good + b"\n").hexdigest()
        sentence = f"{path}: sha256 is {found}, needed for {url}: {expected}; delete it and run again"
        refused(make_tokenizer.main(["raw", "out"]), capsys.readouterr().err, 4, sentence)
        assert path.read_bytes() == good + b"\n" and digests(Path("out")) == before
        path.write_bytes(good)
    assert make_tokenizer.main(["raw", "out"]) == 0


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_an_absent_vocabulary_offline_is_named_with_its_hash(gpt2, monkeypatch, capsys):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(gpt2 / "empty"))
    named = [text for pair in vocabulary.DOWNLOADS["gpt2"].items() for text in pair]
    todo = "run again with a network, or set TIKTOKEN_CACHE_DIR"
    refused(make_tokenizer.main(["raw", "out"]), capsys.readouterr().err, 5, *named, todo)
    assert not Path("out").exists()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    assert make_tokenizer.main(["raw", "out"]) == 0


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_ranks_that_are_not_the_known_ones_are_refused(gpt2, monkeypatch, capsys):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    known = vocabulary.RANKS_SHA256["gpt2"]
    monkeypatch.setitem(vocabulary.RANKS_SHA256, "gpt2", "0" * 64)
    sentence = f"sha256 of its ranks is {known}, needed: {'0' * 64}"
    refused(make_tokenizer.main(["raw", "out"]), capsys.readouterr().err, 4, sentence)
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["ranks.tiktoken", "tokenizer.json", "tokenizer_config.json"])
def test_20_a_vocabulary_that_was_altered_or_lost_is_never_tokenized_with(project, capsys, name):
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

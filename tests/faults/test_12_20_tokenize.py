"""Faults 12 to 20: documents, slices and vocabularies that are difficult to tokenize, full disks, kills.

Most tests use the vocabulary of the 256 bytes (support.tokenize_cases). test_tables.py has the kills at each call.
"""

import contextlib
import hashlib
import itertools
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
from lm.core.files import atomic_folder, write_json
from lm.tokenizer import build as vocabulary
from lm.tokenizer.build import write_byte_level, write_huggingface
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from support.memory import MEASURE
from support.refusal import refused
from support.tokenize_cases import (
    ALL,
    BYTES,
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
    start,
    tokenize,
    write_params,
    write_raw,
    write_runtime,
)
from support.tokenizer_cases import SPECIAL, TIKTOKEN_CACHE, digests, write_bpe, write_gemma_like, write_gpt2


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory, byte_vocabularies):
    """A folder for each kind of tokenizer: trained, tiktoken's (if its file is cached), Hugging Face's.

    "imported" is the vocabulary of bytes in Hugging Face's form, which gives the same ids.
    """
    made = {kind: tmp_path_factory.mktemp(kind) for kind in ("bpe", "gpt2", "huggingface")}
    write_bpe(made["bpe"])
    write_huggingface(made["huggingface"], write_gemma_like(tmp_path_factory.mktemp("source")))
    if TIKTOKEN_CACHE.exists():
        write_gpt2(made["gpt2"])
    return made | byte_vocabularies


@pytest.fixture(scope="module", params=["bpe", "gpt2", "huggingface"])
def tokenizer_folder(request, tokenizers):
    if request.param == "gpt2" and not TIKTOKEN_CACHE.exists():
        pytest.skip(f"{TIKTOKEN_CACHE} is absent: GPT-2's vocabulary would have to be downloaded")
    return tokenizers[request.param]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"start_char": 18}, "sources.mine: start_char is 18, but split 'text' has 18 characters; lower it"),
        ({"start_char": 10**9}, "start_char is 1000000000, but split 'text' has 18 characters; lower it"),
        ({"start_char": 5, "num_chars": 20}, "has 18 characters; the slice from 5 asks for 20, 7 too many"),
        ({"start_char": 1, "num_chars": 4}, "no document of split 'text' begins in characters 1 to 5"),
        ({"split": "train"}, "sources.mine has no split 'train'; its splits are text"),
    ],
)
def test_12_a_slice_outside_the_text_leaves_no_file(project, capsys, changed, sentence):
    write_raw(["twelve chars", "six ch"])
    write_params(train=ALL | changed)
    for run in (tokenize, build_tokenizer):
        refused(run(), capsys.readouterr().err, 3, sentence)
        assert outputs() == []


def test_12_an_empty_corpus_is_refused_by_fetch_and_by_tokenize(project, capsys):
    write_params(fetch=LOCAL)
    Path("texts").mkdir()
    sentence = "texts: no file matches '**/*' (sources.local.fetch.include); put text there"
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, sentence)
    Path("texts/a.txt").write_text("")
    sentence = "texts: split 'text' has no document, only 0 null and 1 empty rows; at least one is needed"
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, sentence)
    assert not Path("raw").exists()


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
    """The documents of a token file, decoded; one separator follows each."""
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode(tokens.ids[begin : end - 1].tolist()) for begin, end in document_spans(tokens)]


def test_13_documents_that_break_tokenizers_are_encoded_completely(tokenized):
    assert documents_of(*tokenized)[: len(LONG)] == list(LONG.values())


def test_13_a_vocabulary_is_trained_on_them_in_seconds(project):
    """Without cutting long words the trainer would take hours for each."""
    write_raw([*LONG.values()])
    program = "import sys, make_tokenizer; sys.exit(make_tokenizer.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *TEXT, "--tokenizer", "out"]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=60)
    assert load_tokenizer("out").decode(load_tokenizer("out").encode(LONG["a million spaces"])).endswith(" x")


@pytest.mark.slow
def test_13_a_document_of_50_mb_takes_at_most_a_gibibyte_per_process(project, tokenizers):
    """A Hugging Face tokenizer takes 0.1 to 0.2 GB for each MB of one document."""
    text = "int main(void) { return 0; } // the quick brown fox, é\n" * 910_000
    write_raw([text, "short"])
    folder = tokenizers["bpe"]
    command = [sys.executable, "-c", MEASURE, sys.executable, "-c", STAGE, *arguments(folder=folder)]
    measured = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(measured) / (1 << 20 if sys.platform != "darwin" else 1 << 30) < 1.0
    assert documents_of(open_tokens("out/train.bin"), folder) == [text, "short"]


def test_14_invalid_utf_8_is_replaced_and_counted(project):
    """Bytes that are not UTF-8 and lone surrogates become U+FFFD; NUL is kept as a character."""
    Path("texts").mkdir()
    Path("texts/a.txt").write_bytes(b"long enough to be a text, one bad \xff byte, a true \xef\xbf\xbd")
    Path("texts/b.jsonl").write_bytes(b'{"text": "bad \xc3, lone \\ud800, paired \\ud83d\\ude00, NUL \\u0000"}\n')
    texts = [
        "long enough to be a text, one bad \ufffd byte, a true \ufffd",
        "bad \ufffd, lone \ufffd, paired \N{GRINNING FACE}, NUL \0",
    ]
    write_params({**ALL, "num_chars": 10}, {**ALL, "start_char": 10}, fetch=LOCAL)
    assert fetch.main(FETCH) == tokenize("train") == tokenize("validation") == 0
    for split, text in zip(("train", "validation"), texts, strict=True):
        assert np.fromfile(f"out/{split}.bin", "<u2").tolist() == expected_ids([text]).tolist()
    assert run_audit()["replaced_characters"] == 3


def test_14_every_tokenizer_replaces_a_lone_surrogate(tokenizer_folder):
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


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("bytes", "altered/ranks.tiktoken: meta.json has another eot_id, vocab_size or special token than "),
        ("imported", "altered: text gave the id {beyond}, but meta.json says {beyond} entries; run `dvc repro -f"),
    ],
)
def test_16_an_id_outside_the_vocabulary_is_not_written(project, capsys, tokenizers, kind, sentence):
    """meta.json records fewer entries than the vocabulary has."""
    folder = shutil.copytree(tokenizers[kind], "altered")
    tokenizer = load_tokenizer(folder)
    beyond = max(tokenizer.encode("hello world"))
    write_json(Path(folder, "meta.json"), {**tokenizer.meta, "vocab_size": beyond, "eot_id": 0})
    write_raw(["hello world"])
    refused(tokenize(folder=folder), capsys.readouterr().err, 4, sentence.format(beyond=beyond))
    assert outputs() == []
    assert tokenize(folder=tokenizers[kind]) == 0


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
def test_17_a_full_disk_ends_with_5_and_freeing_space_is_enough(project, capsys):
    write_raw(MANY)
    with small_disk(Path("out"), "300k") as resize:
        sentence = "out/train.bin: No space left on device"
        refused(tokenize(), capsys.readouterr().err, 5, sentence, "free some space")
        assert outputs() == []
        resize("20m")
        assert tokenize() == 0
        assert Path("out/train.bin").read_bytes() == expected_ids(MANY).tobytes()


@pytest.mark.slow
def test_17_a_full_disk_while_importing_a_vocabulary(project, byte_vocabularies):
    """transformers writes it with a library that does not raise OSError."""
    with small_disk(Path("out"), "8k") as resize:
        sentence = "out/tokenizer: No space left on device; free some space"
        with pytest.raises(EnvironmentFailure, match=sentence), atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, byte_vocabularies["bytes"])
        assert outputs() == []
        resize("20m")
        with atomic_folder("out/tokenizer") as folder:
            write_huggingface(folder, byte_vocabularies["bytes"])


def unfinished_bytes() -> int:
    """Return the size of the unfinished token file."""
    with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
        return sum(path.stat().st_size for path in Path("out").glob(".train.bin.*.tmp"))
    return 0


def kill_at(num_bytes: int, folder: Path) -> bool:
    """SIGKILL the stage's main process after it has written `num_bytes`; return whether it was still running.

    Its workers must exit by themselves.
    """
    main, workers = start(STAGE, folder=folder), []
    while main.poll() is None and unfinished_bytes() < num_bytes:
        workers = psutil.Process(main.pid).children(recursive=True)
        time.sleep(0.001)
    main.kill()
    in_time = main.wait() == -signal.SIGKILL
    _, left = psutil.wait_procs(workers, 20)
    for process in left:
        process.kill()
    assert left == [], "they outlive their parent"
    return in_time


def test_18_killed_workers_end_and_the_rerun_is_byte_identical(project, byte_vocabularies):
    """Each rerun uses another number of worker processes and another chunk size."""
    draw, folder, in_time = random.Random(0), byte_vocabularies["imported"], []
    write_raw(MANY * 2)
    whole = expected_ids(MANY).tobytes() * 2
    for settings in ((1, 50_000), (3, 1000)):
        write_runtime(2, 2000)
        in_time.append(kill_at(draw.randrange(1, len(whole)), folder))
        assert Path("out/train.bin").exists() != in_time[-1]
        write_runtime(*settings)
        assert tokenize(folder=folder) == 0
        assert Path("out/train.bin").read_bytes() == whole
        assert outputs() == ["train.bin", "train.json"], "temporary files of the killed process are removed"
        shutil.rmtree("out")
    assert any(in_time)


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
    sentence = f"sources.yaml: sources.mine: train and validation share characters {overlap} of split 'text'"
    refused(tokenize("validation"), capsys.readouterr().err, 2, sentence, "move validation.start_char")
    assert outputs() == []
    write_params({**ALL, "num_chars": 10}, {**ALL, "start_char": 10})
    assert tokenize("validation") == 0


def test_19_documents_in_both_splits_are_flagged_and_kept(project):
    train, validation = ["twice", "twice", "in  both", "train only"], ["in both", "validation only"]
    write_raw([*train, *validation])
    length = sum(map(len, train))
    write_params({**ALL, "num_chars": length}, {**ALL, "start_char": length})
    assert tokenize("train") == tokenize("validation") == 0
    run_audit()
    flags = pq.read_table("audit/duplicates.parquet").to_pylist()
    flagged = [(row["split"], row["document"]) for row in flags if row["folded_across"]]
    assert flagged == [("train", 2), ("validation", 0)]
    for split, texts in (("train", train), ("validation", validation)):
        assert np.fromfile(f"out/{split}.bin", "<u2").tolist() == expected_ids(texts).tolist()


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_20_a_vocabulary_that_is_corrupt_missing_or_unknown_is_named_with_its_hash(project, monkeypatch, capsys):
    """tiktoken's GPT-2 from its cache, without a network: the machine itself refuses every request."""
    write_raw(["text"])
    write_params(tokenizer={"kind": "tiktoken", "encoding": "gpt2"})
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(project / "empty"))
    named = [text for pair in vocabulary.DOWNLOADS["gpt2"].items() for text in pair]
    todo = "run again with a network, or set TIKTOKEN_CACHE_DIR"
    refused(build_tokenizer(), capsys.readouterr().err, 5, *named, todo)

    cache = shutil.copytree(TIKTOKEN_CACHE, project / "cache", copy_function=shutil.copyfile)
    cache.chmod(0o755)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    for url, expected in vocabulary.DOWNLOADS["gpt2"].items():
        path = cache / hashlib.sha1(url.encode()).hexdigest()
        good, damaged = path.read_bytes(), path.read_bytes() + b"\n"
        path.write_bytes(damaged)
        sentence = f"{path}: sha256 is {hashlib.sha256(damaged).hexdigest()}, needed for {url}: {expected}; delete it"
        refused(build_tokenizer(), capsys.readouterr().err, 4, sentence)
        assert path.read_bytes() == damaged
        path.write_bytes(good)

    with monkeypatch.context() as patch:
        known = vocabulary.RANKS_SHA256["gpt2"]
        patch.setitem(vocabulary.RANKS_SHA256, "gpt2", "0" * 64)
        sentence = f"sha256 of its ranks is {known}, needed: {'0' * 64}"
        refused(build_tokenizer(), capsys.readouterr().err, 4, sentence)
    assert not Path("out").exists()
    assert build_tokenizer() == 0
    assert digests(Path("out"))["ranks.tiktoken"] == known

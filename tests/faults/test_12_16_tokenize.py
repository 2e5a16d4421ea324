"""Faults 12 to 16: documents, slices and vocabularies that are difficult to tokenize.

Most tests use the vocabulary of the 256 bytes (support.tokenize_cases).
"""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fetch
from lm.core.files import read_json, write_json
from lm.tokenizer.build import write_byte_level, write_huggingface
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from support.refusal import refused
from support.selections import make_selection
from support.tokenize_cases import (
    ALL,
    BYTES,
    ENVIRONMENT,
    FETCH,
    LOCAL,
    STAGE,
    TEXT,
    arguments,
    build_tokenizer,
    expected_ids,
    outputs,
    run_audit,
    select,
    tokenize,
    write_params,
    write_raw,
    write_runtime,
)  # fmt: skip
from support.tokenizer_cases import SPECIAL, TIKTOKEN_CACHE, write_bpe, write_gemma_like, write_gpt2


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
@pytest.mark.parametrize("stage", ["make_tokenizer", "tokenize_train"])
def test_12_a_slice_outside_the_text_leaves_no_file(project, capsys, stage, changed, sentence):
    write_raw(["twelve chars", "six ch"])
    run = tokenize if stage == "tokenize_train" else build_tokenizer
    write_params(train=ALL | changed)
    refused(run(), capsys.readouterr().err, 3, sentence)
    assert outputs() == []
    write_params()
    assert run() == 0
    assert outputs()


def test_12_an_empty_corpus_is_refused_by_fetch_and_by_tokenize(project, capsys):
    write_params(fetch=LOCAL)
    Path("texts").mkdir()
    sentence = "texts: no file matches '**/*' (sources.local.fetch.include); put text there"
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, sentence)
    Path("texts/a.txt").write_text("")
    sentence = "texts: split 'text' has no document, only 0 null and 1 empty rows; at least one is needed"
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, sentence)
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
    """The documents of a token file, decoded; one separator follows each."""
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode(tokens.ids[begin : end - 1].tolist()) for begin, end in document_spans(tokens)]


def test_13_documents_that_break_tokenizers_are_encoded_completely(tokenized):
    assert documents_of(*tokenized)[: len(LONG)] == list(LONG.values())


def test_13_a_vocabulary_is_trained_on_them_in_seconds(project):
    """Without cutting long words the trainer would take hours for each."""
    write_raw(LONG.values())
    program = "import sys, make_tokenizer; sys.exit(make_tokenizer.main(sys.argv[1:]))"
    assert select() == 0
    command = [sys.executable, "-c", program, *TEXT, "--tokenizer", "out"]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=60)
    assert load_tokenizer("out").decode(load_tokenizer("out").encode(LONG["a million spaces"])).endswith(" x")


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_13_a_document_of_50_mb_takes_at_most_a_gibibyte_per_process(project, tokenizers, kind):
    """At worst, one token a byte. (A Hugging Face tokenizer takes 0.1 to 0.2 GB for each MB of one document.)"""
    text = "int main(void) { return 0; } // the quick brown fox, é\n" * 910_000
    write_raw([text, "short"])
    make_selection("selection", "raw")
    folder = tokenizers["bpe"] if kind == "bpe" else "tokenizer"
    command = [sys.executable, "-c", MEASURE, sys.executable, "-c", STAGE, *arguments(folder=folder)]
    measured = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(measured) / (1 << 20 if sys.platform != "darwin" else 1 << 30) < 1.0
    assert documents_of(open_tokens("out/train.bin"), folder) == [text, "short"]


def test_14_invalid_utf_8_is_replaced_and_counted(project):
    """Bytes that are not UTF-8 and lone surrogates become U+FFFD; NUL is kept as a character."""
    Path("texts").mkdir()
    Path("texts/a.txt").write_bytes(b"long enough to be a text, one bad \xff byte, a true \xef\xbf\xbd, NUL \x00 kept")
    Path("texts/b.jsonl").write_bytes(b'{"text": "bad \xc3 and lone \\ud800, paired \\ud83d\\ude00"}\n')
    texts = [
        "long enough to be a text, one bad \ufffd byte, a true \ufffd, NUL \0 kept",
        "bad \ufffd and lone \ufffd, paired \N{GRINNING FACE}",
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

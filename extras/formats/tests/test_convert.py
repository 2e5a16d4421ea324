"""Conversions are lossless, refuse what does not fit, and leave no unfinished file."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from extras.formats import stream
from extras.formats.convert import main
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import check_tokenizer, open_tokens, write_tokens
from support.dump_cases import write_foreign
from support.refusal import files_below, refused

TEXTS = [
    "the theory of the thing",
    "déjà vu \N{GRINNING FACE} it's the 2nd",
    "x",
    "while (true) { the(); }\n" * 9,
]
VOCAB_SIZE = 300
EOT = 299


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    code = "for (int i = 0; i < n; i++) { sum += a[i]; }"
    write_trained_bpe(folder, [TEXTS * 3, [code] * 2], VOCAB_SIZE)
    return load_tokenizer(folder)


@pytest.fixture(autouse=True)
def small_blocks(tmp_path, monkeypatch):
    """Work in an empty folder; read 16 tokens at a time, and write two samples in a dump."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stream, "BLOCK_TOKENS", 16)
    monkeypatch.setattr("extras.formats.convert.SAMPLES_PER_DUMP", 2)


def convert(*arguments) -> int:
    return main([str(argument) for argument in arguments])


def write_bin(tokenizer, ids, dtype="uint16"):
    """Write a.bin with a full sidecar, as tokenize_split does."""
    meta = {
        "documents": 3,
        "characters": 100,
        "utf8_bytes": 101,
        "tokenizer": tokenizer.sidecar_entry(),
        "slice": {"split": "é", "start_char": 0, "num_chars": None},
        "source": {"name": "s", "text_sha256": "ab"},
    }
    write_tokens(Path("a.bin"), [np.array(ids, dtype)], dtype, lambda: meta)


def stream_ids(num_tokens):
    """Return ids of the whole vocabulary, end-of-text among them."""
    return (np.arange(num_tokens) ** 3 + EOT) % VOCAB_SIZE


@pytest.mark.parametrize("num_tokens", [1, 65])
@pytest.mark.parametrize(
    ("dtype", "name", "option"),
    [
        ("uint32", "b.npy", "--row_length=8"),
        ("uint16", "b", "--seq_len=7"),
    ],
)
def test_a_round_trip_gives_the_same_bytes_and_sidecar(tokenizer, dtype, num_tokens, name, option):
    write_bin(tokenizer, stream_ids(num_tokens), dtype)

    assert convert("a.bin", name, option) == 0
    assert convert(name, "c.bin") == 0

    assert Path("c.bin").read_bytes() == Path("a.bin").read_bytes()
    assert Path("c.json").read_bytes() == Path("a.json").read_bytes()


def test_the_last_sample_is_padded_with_ends_of_text(tokenizer):
    write_bin(tokenizer, [1, 2, 3, 4, 5])

    assert convert("a.bin", "b", "--seq_len", 4) == 0

    assert pickle.loads(Path("b/dump-0.pkl").read_bytes()) == [[1, 2, 3, 4], [5, EOT, EOT, EOT]]


def test_a_foreign_npy_becomes_a_token_file(tokenizer):
    ids = stream_ids(60)
    np.save("a.npy", np.asfortranarray(ids.astype(">i8").reshape(6, 10)))

    assert convert("a.npy", "b.bin", "--tokenizer", tokenizer.folder) == 0

    assert open_tokens("b.bin").ids.tolist() == ids.tolist()


def test_a_created_sidecar_has_the_counts_of_tokenizing_and_training_accepts_it(tokenizer):
    """The last document lacks its end."""
    ids, _ = tokenizer.encode_documents(TEXTS)
    np.save("a.npy", ids[:-1])

    assert convert("a.npy", "b.bin", "--tokenizer", tokenizer.folder) == 0

    tokens = open_tokens("b.bin")
    check_tokenizer(tokens, tokenizer.sha256)
    assert tokens.meta["documents"] == len(TEXTS)
    assert tokens.meta["characters"] == sum(len(text) for text in TEXTS)
    assert tokens.meta["utf8_bytes"] == sum(len(text.encode()) for text in TEXTS)


@pytest.mark.parametrize(
    ("pad_token", "ids"),
    [
        (9, [1, 2, 9, 3, 4, 5, 6, 7, 8]),  # the 9 that begins a row is a token
        (-1, [1, 2, 9, 9, 9, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_padding_of_foreign_dumps_is_removed_only_if_it_is_named(tokenizer, pad_token, ids):
    write_foreign(Path("a"), [[1, 2, 9, 9], [9, 3, 4, 5], [6, 7, 8, 9]])

    assert convert("a", "b.bin", "--tokenizer", tokenizer.folder, "--input_pad_token", pad_token) == 0

    assert open_tokens("b.bin").ids.tolist() == ids


def test_mistakes_give_one_sentence_and_leave_no_file(tokenizer, capsys):
    write_bin(tokenizer, stream_ids(21))
    write_foreign(Path("theirs"), [[1, 2, 9, 9]])
    np.save("bare.npy", np.arange(9))
    np.save("wide.npy", [1] * 16 + [2**16 + 1])  # would be 1 as uint16
    Path("full").mkdir()
    Path("full/thesis.txt").touch()
    before = files_below(Path())

    for arguments, code, *parts in (
        (["none.bin", "b.npy"], 2, "none.bin", "no such file"),
        (["a.bin", "a.bin"], 2, "a.bin", "is the input"),
        (["a.bin", "b"], 2, "b", "--seq_len"),
        (["a.bin", "full", "--seq_len", 4], 2, "full", "thesis.txt", "another folder"),
        (["full", "b.bin"], 4, "full", "dump-meta_data.json"),
        (["bare.npy", "b.bin"], 2, "bare.npy", "--tokenizer"),
        (["theirs", "b.bin"], 2, "theirs", "--input_pad_token"),
        (["wide.npy", "b.bin", "--tokenizer", tokenizer.folder], 4, "wide.npy", "token 65537 at position 16"),
    ):
        status = convert(*arguments)

        refused(status, capsys.readouterr().err, code, *parts)
        assert files_below(Path()) == before

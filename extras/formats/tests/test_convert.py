"""Conversions are lossless, refuse what does not fit, and leave no unfinished file."""

import pickle

import numpy as np
import pytest

from extras.formats import stream as formats_stream
from extras.formats.convert import main as convert
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


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Convert with names inside a temporary folder; return the last line printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = convert([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out.strip().splitlines()[-1]

    return run


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys):
    """Check that a conversion ends with a status and one sentence that contains all `parts`."""
    monkeypatch.chdir(tmp_path)

    def refuse(arguments, code, *parts):
        status = convert([str(argument) for argument in arguments])
        refused(status, capsys.readouterr().err, code, *parts)

    return refuse


def write_bin(path, tokenizer, ids, dtype="uint16"):
    """Write a token file with a full sidecar, as tokenize_split does."""
    meta = {
        "documents": 3,
        "characters": 100,
        "utf8_bytes": 101,
        "tokenizer": tokenizer.sidecar_entry(),
        "slice": {"split": "é", "start_char": 0, "num_chars": None},
        "source": {"name": "s", "text_sha256": "ab"},
    }
    write_tokens(path, [np.array(ids, dtype)], dtype, lambda: meta)


def stream_ids(num_tokens):
    """Return ids of the whole vocabulary, the end of a text among them."""
    return (np.arange(num_tokens) ** 3 + EOT) % VOCAB_SIZE


def ids_of(path):
    return open_tokens(path).ids.tolist()


def contents(path):
    """Return the bytes of a file, or of each file of a folder."""
    if path.is_dir():
        return files_below(path)
    return path.read_bytes()


@pytest.fixture
def small_blocks(monkeypatch):
    """Read 16 tokens at a time, and write two samples in a dump."""
    monkeypatch.setattr(formats_stream, "BLOCK_TOKENS", 16)
    monkeypatch.setattr("extras.formats.convert.SAMPLES_PER_DUMP", 2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("num_tokens", [1, 65])
@pytest.mark.parametrize(
    ("dtype", "name", "options"),
    [
        ("uint32", "b.npy", ["--row_length", 8]),
        ("uint16", "b", ["--seq_len", 7]),
    ],
)
def test_a_round_trip_gives_the_same_bytes_and_sidecar(tmp_path, run, tokenizer, dtype, num_tokens, name, options):
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(num_tokens), dtype)
    run("a.bin", name, *options)

    run(name, "c.bin")

    assert contents(tmp_path / "c.bin") == contents(tmp_path / "a.bin")
    assert contents(tmp_path / "c.json") == contents(tmp_path / "a.json")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("shape", "dtype", "order"),
    [
        ((60,), "int32", "C"),
        ((6, 10), ">i8", "F"),
    ],
)
def test_a_foreign_npy_becomes_a_token_file(tmp_path, run, tokenizer, shape, dtype, order):
    ids = stream_ids(60)
    array = ids.astype(dtype).reshape(shape)
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))

    run("a.npy", "b.bin", "--tokenizer", tokenizer.folder)

    assert ids_of(tmp_path / "b.bin") == ids.tolist()


def test_a_created_sidecar_has_the_counts_of_tokenizing_and_training_accepts_it(tmp_path, run, tokenizer):
    """The last document lacks its end."""
    ids, _ = tokenizer.encode_documents(TEXTS)
    np.save(tmp_path / "a.npy", ids[:-1].astype(np.int64))

    run("a.npy", "b.bin", "--tokenizer", tokenizer.folder)

    tokens = open_tokens(tmp_path / "b.bin")
    check_tokenizer(tokens, tokenizer.sha256)
    assert tokens.meta["documents"] == len(TEXTS)
    assert tokens.meta["characters"] == sum(len(text) for text in TEXTS)
    assert tokens.meta["utf8_bytes"] == sum(len(text.encode()) for text in TEXTS)


def test_the_last_row_is_padded_with_ends_of_text(tmp_path, run, tokenizer):
    write_bin(tmp_path / "a.bin", tokenizer, [1, 2, 3, 4, 5])

    assert "3 of padding" in run("a.bin", "b.npy", "--row_length", 4)
    run("a.bin", "b", "--seq_len", 4)

    expected = [[1, 2, 3, 4], [5, EOT, EOT, EOT]]
    assert np.load(tmp_path / "b.npy").tolist() == expected
    assert pickle.loads((tmp_path / "b" / "dump-0.pkl").read_bytes()) == expected


@pytest.mark.parametrize(
    ("pad_token", "ids"),
    [
        (9, [1, 2, 9, 3, 4, 5, 6, 7, 8]),  # the 9 that begins a row is a token
        (-1, [1, 2, 9, 9, 9, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_padding_of_foreign_dumps_is_removed_only_if_it_is_named(tmp_path, run, tokenizer, pad_token, ids):
    write_foreign(tmp_path / "a", [[1, 2, 9, 9], [9, 3, 4, 5], [6, 7, 8, 9]])

    run("a", "b.bin", "--tokenizer", tokenizer.folder, "--input_pad_token", pad_token)

    assert ids_of(tmp_path / "b.bin") == ids


@pytest.fixture
def folder_of_mistakes(tmp_path, run, tokenizer):
    """A token file, an array without a sidecar, dumps of another program, a folder that holds none."""
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(21))
    write_foreign(tmp_path / "theirs", [[1, 2, 9, 9]])
    np.save(tmp_path / "bare.npy", np.arange(9))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["none.bin", "b.npy"], 2, ["none.bin", "no such file"]),
        (["a.bin", "a.bin"], 2, ["a.bin", "is the input"]),
        (["a.bin", "b"], 2, ["b", "--seq_len"]),
        (["a.bin", "full", "--seq_len", "4"], 2, ["full", "thesis.txt", "another folder"]),
        (["full", "b.bin"], 4, ["full", "dump-meta_data.json"]),
        (["bare.npy", "b.bin"], 2, ["bare.npy", "--tokenizer"]),
        (["theirs", "b.bin"], 2, ["theirs", "--input_pad_token"]),
    ],
)
def test_mistakes_give_one_sentence_and_leave_no_file(folder_of_mistakes, refuse, arguments, code, parts):
    before = files_below(folder_of_mistakes)

    refuse(arguments, code, *parts)

    assert files_below(folder_of_mistakes) == before


@pytest.mark.parametrize(
    ("ids", "token", "position"),
    [
        ([1, 2, 3, 300], 300, 3),  # in the second block
        ([2**16 + 1], 65537, 0),  # would be 1 as uint16
    ],
)
def test_an_id_outside_the_vocabulary_is_refused(tmp_path, refuse, tokenizer, monkeypatch, ids, token, position):
    monkeypatch.setattr(formats_stream, "BLOCK_TOKENS", 2)
    np.save(tmp_path / "c.npy", ids)

    arguments = ["c.npy", "c.bin", "--tokenizer", tokenizer.folder]

    refuse(arguments, 4, "c.npy", f"token {token} at position {position}", f"vocabulary of {VOCAB_SIZE}")

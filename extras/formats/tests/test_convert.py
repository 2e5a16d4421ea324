"""Conversions are lossless, refuse what does not fit, and leave no unfinished file."""

import pickle

import numpy as np
import pytest

from extras.formats import stream as formats_stream
from extras.formats.convert import main as convert
from extras.formats.dumps import PROVENANCE
from lm.core.files import write_json
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import check_tokenizer, open_tokens, write_tokens
from lm.tokens.windows import TokenWindows
from support.dump_cases import write_foreign

TEXTS = ["the theory of the thing", "déjà vu \N{GRINNING FACE} it's the 2nd", "x", "while (true) { the(); }\n" * 9]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_trained_bpe(folder, [TEXTS * 3, ["for (int i = 0; i < n; i++) { sum += a[i]; }"] * 2], 300)
    return load_tokenizer(folder)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Convert with names inside a temporary folder; return the last line printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, expect=0):
        assert convert([str(argument) for argument in arguments]) == expect, capsys.readouterr().err
        captured = capsys.readouterr()
        return (captured.err if expect else captured.out).strip().splitlines()[-1]

    return run


def write_bin(path, tokenizer, ids, dtype=None):
    """A token file with a full sidecar, as tokenize_split writes it."""
    dtype = dtype or tokenizer.meta["dtype"]
    meta = {
        "documents": 3, "characters": 100, "utf8_bytes": 101,
        "tokenizer": tokenizer.sidecar_entry(),
        "slice": {"split": "é", "start_char": 0, "num_chars": None}, "source": {"name": "s", "text_sha256": "ab"},
    }  # fmt: skip
    write_tokens(path, [np.array(ids, dtype)], dtype, lambda: meta)
    return path


def stream_ids(num_tokens):
    """Ids of the vocabulary's 300 entries, the end-of-text id 299 among them."""
    return (np.arange(num_tokens) ** 3 + 299) % 300


def contents(path):
    """The bytes of a file, or of each file of a folder."""
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else path.read_bytes()


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("num_tokens", [1, 64, 65])
@pytest.mark.parametrize(
    ("name", "options"),
    [("b.npy", []), ("b.npy", ["--row_length", 8]), ("b.npy", ["--row_length", 7]), ("b", ["--seq_len", 7])],
)
def test_a_round_trip_gives_the_same_bytes_and_sidecar(
    tmp_path, run, tokenizer, monkeypatch, dtype, num_tokens, name, options
):
    monkeypatch.setattr(formats_stream, "BLOCK_TOKENS", 16)
    monkeypatch.setattr("extras.formats.convert.SAMPLES_PER_DUMP", 2)
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(num_tokens), dtype)
    run("a.bin", name, *options)
    run(name, "c.bin")
    assert contents(tmp_path / "c.bin") == contents(tmp_path / "a.bin")
    assert contents(tmp_path / "c.json") == contents(tmp_path / "a.json")
    run("c.bin", "again" + name[1:], *options)
    assert contents(tmp_path / ("again" + name[1:])) == contents(tmp_path / name)
    assert open_tokens(tmp_path / "c.bin").ids.tolist() == stream_ids(num_tokens).tolist()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["int32", ">i8"])
@pytest.mark.parametrize("shape", [(60,), (6, 10), (60, 1), (1, 60)])
def test_a_foreign_npy_becomes_a_token_file(tmp_path, run, tokenizer, monkeypatch, shape, dtype, order):
    monkeypatch.setattr(formats_stream, "BLOCK_TOKENS", 16)
    ids = stream_ids(60).astype(dtype).reshape(shape)
    np.save(tmp_path / "a.npy", np.asarray(ids, order=order))
    run("a.npy", "b.bin", "--tokenizer", tokenizer.folder)
    assert open_tokens(tmp_path / "b.bin").ids.tolist() == ids.ravel().tolist()


def test_a_created_sidecar_equals_that_of_tokenizing_and_training_accepts_it(tmp_path, run, tokenizer):
    ids, _ = tokenizer.encode_documents(TEXTS)
    np.save(tmp_path / "a.npy", ids.astype(np.int64))
    assert run("a.npy", "b.bin", "--tokenizer", tokenizer.folder) == f"b.bin: {len(ids)} tokens"
    tokens = open_tokens(tmp_path / "b.bin")
    assert tokens.ids.tolist() == ids.tolist() and tokens.ids.dtype == np.uint16
    wanted = {
        "documents": len(TEXTS), "characters": sum(map(len, TEXTS)),
        "utf8_bytes": sum(len(text.encode()) for text in TEXTS),
        "tokenizer": tokenizer.sidecar_entry(), "slice": None,
    }  # fmt: skip
    assert wanted.items() <= tokens.meta.items()
    check_tokenizer(tokens, tokenizer.sha256)
    x, y = TokenWindows(tokens.ids, 16, 2, seed=1).batch(0)
    assert x.shape == (2, 16) and (x[:, 1:] == y[:, :-1]).all()


def test_a_last_document_without_its_end_counts(tmp_path, run, tokenizer):
    ids, _ = tokenizer.encode_documents(TEXTS)
    for length, expected in ((len(ids), 4), (len(ids) - 1, 4), (len(ids) + 1, 5)):
        np.save(tmp_path / "a.npy", np.resize(ids, length).astype(np.int64))
        run("a.npy", "b.bin", "--tokenizer", tokenizer.folder)
        assert open_tokens(tmp_path / "b.bin").meta["documents"] == expected


def test_padding_is_the_end_of_text_and_is_said(tmp_path, run, tokenizer):
    write_bin(tmp_path / "a.bin", tokenizer, [1, 2, 3, 4, 5])
    assert run("a.bin", "b.npy", "--row_length", 4) == "b.npy: 5 tokens and 3 of padding"
    assert np.load(tmp_path / "b.npy").tolist() == [[1, 2, 3, 4], [5, 299, 299, 299]]
    assert run("a.bin", "b", "--seq_len", 4) == "b: 5 tokens and 3 of padding"
    with open(tmp_path / "b" / "dump-0.pkl", "rb") as file:
        assert pickle.load(file) == [[1, 2, 3, 4], [5, 299, 299, 299]]


def test_padding_of_foreign_files_is_removed_only_if_it_is_named(tmp_path, run, tokenizer):
    rows = [[1, 2, 9, 9], [9, 3, 4, 5], [6, 7, 8, 9]]
    write_foreign(tmp_path / "a", rows)
    np.save(tmp_path / "a.npy", np.array(rows))
    options = ["--tokenizer", tokenizer.folder]
    assert "a does not name its padding token; give --input_pad_token" in run("a", "b.bin", *options, expect=2)
    for source in ("a", "a.npy"):
        run(source, "b.bin", *options, "--input_pad_token", 9)
        assert open_tokens(tmp_path / "b.bin").ids.tolist() == [1, 2, 9, 3, 4, 5, 6, 7, 8]
        run(source, "c.bin", *options, "--input_pad_token", -1)
        assert open_tokens(tmp_path / "c.bin").ids.tolist() == [token for row in rows for token in row]
    np.save(tmp_path / "flat.npy", np.array([1, 9, 9, 2]))
    assert "2-D" in run("flat.npy", "d.bin", *options, "--input_pad_token", 9, expect=2)
    assert "has a record of it" in run("b.bin", "d.npy", "--input_pad_token", 9, expect=2)
    run("b.bin", "own", "--seq_len", 4)
    assert "has a record of it" in run("own", "d.bin", "--input_pad_token", 9, expect=2)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["none.bin", "b.npy"], 2, "none.bin: there is no such file"),
        (["a.bin", "a.bin"], 2, "a.bin: is the input"),
        (["a.bin", "b.txt"], 2, "b.txt: is neither"),
        (["a.bin", "b"], 2, "needs --seq_len"),
        (["a.bin", "b", "--seq_len", "0"], 2, "--seq_len is 0"),
        (["a.bin", "b.npy", "--seq_len", "4"], 2, "--seq_len is for dumps outputs"),
        (["a.bin", "full", "--seq_len", "4"], 2, "full: holds thesis.txt"),
        (["full", "b.bin"], 4, "full: has no dump-meta_data.json"),
        (["bare.npy", "b.bin"], 2, "bare.npy: has no sidecar; give --tokenizer"),
    ],
)
def test_mistakes_give_one_line_and_leave_no_file(tmp_path, run, tokenizer, arguments, status, sentence):
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(21))
    np.save(tmp_path / "bare.npy", np.arange(9))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    (tmp_path / "x").mkdir()
    before = visible(tmp_path)
    line = run(*arguments, expect=status)
    assert line.startswith("error: ") and sentence in line
    assert visible(tmp_path) == before and visible(tmp_path / "full") == ["thesis.txt"]


def test_ids_outside_the_vocabulary_and_another_tokenizer_are_refused(tmp_path, run, tokenizer, monkeypatch):
    monkeypatch.setattr(formats_stream, "BLOCK_TOKENS", 2)
    for ids, found in (
        ([1, 2, 3, 300], "token 300 at position 3"),
        ([1, -1], "token -1"),
        ([2**16 + 1], "token 65537"),
    ):
        np.save(tmp_path / "c.npy", ids)  # the last one would wrap to 1
        line = run("c.npy", "c.bin", "--tokenizer", tokenizer.folder, expect=4)
        assert found in line and "is outside the vocabulary of 300" in line
    (tmp_path / "other").mkdir()
    write_trained_bpe(tmp_path / "other", [["only this"]], 280)
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(21))
    assert "made with tokenizer" in run("a.bin", "b.npy", "--tokenizer", "other", expect=4)


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("source", "damage"),
    [
        ("a.bin", lambda folder: flip(folder / "a.bin")),
        ("b.npy", lambda folder: flip(folder / "b.npy", -2)),
        ("c", lambda folder: flip(folder / "c" / "dump-0.pkl", -3)),
        ("c", lambda folder: write_json(folder / "c" / PROVENANCE, {"files": {}})),
        ("b.npy", lambda folder: write_json(folder / "b.npy.json", {"tokens": 21})),
    ],
)
def test_an_altered_input_is_refused_and_the_old_output_is_kept(tmp_path, run, tokenizer, source, damage):
    write_bin(tmp_path / "a.bin", tokenizer, stream_ids(21))
    run("a.bin", "b.npy")
    run("a.bin", "c", "--seq_len", 7)
    run("a.bin", "out.npy")
    run("a.bin", "out", "--seq_len", 5)
    before = {name: contents(tmp_path / name) for name in ("out.npy", "out.npy.json", "out")}
    damage(tmp_path)
    run(source, "out.npy", expect=4)
    run(source, "out", "--seq_len", 6, expect=4)
    assert {name: contents(tmp_path / name) for name in before} == before
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]

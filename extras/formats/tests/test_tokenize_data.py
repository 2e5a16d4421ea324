"""The command line of the original tokenize_data.py: nothing lost, documents and padding separate."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extras.formats.convert import main as convert
from extras.formats.dumps import META, PROVENANCE, dumps_stream, open_dumps
from extras.formats.tokenize_data import main as tokenize
from lm.core.files import read_json
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens

DOCUMENTS = [
    f"int f{i}(void) {{ return {i * i}; }} // <|endoftext|> é\N{GRINNING FACE}\n" * (i % 5 + 1) for i in range(60)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_trained_bpe(folder, [DOCUMENTS], 400)
    return load_tokenizer(folder)


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "train-00000-of-00257.parquet"
    rows = [*DOCUMENTS[:30], None, "", *DOCUMENTS[30:]]
    pq.write_table(pa.table({"content": pa.array(rows, pa.string()), "size": range(62)}), path, row_group_size=25)
    return path


@pytest.fixture
def run(tmp_path, data_file, tokenizer, capsys):
    """Tokenize into a folder of tmp_path; return it, or with `expect` the last line on stderr."""

    def run(*options, folder="out", expect=0, base=None):
        folder = tmp_path / folder
        arguments = ["--data_file", data_file, "--tokenization_folder", folder]
        arguments += ["--tokenizer_base", base or tokenizer.folder, *options]
        status = tokenize([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert status == expect, captured.err
        return captured.err.strip().splitlines()[-1] if expect else folder

    return run


def samples_of(folder):
    """Every sample as plain Python reads it, in numeric order."""
    paths = [path for path, _, _ in open_dumps(folder).dumps]
    return [sample for path in paths for sample in pickle.loads(path.read_bytes())]


def stream_of(folder):
    """The ids without padding."""
    return np.concatenate(list(dumps_stream(folder, None).blocks())).tolist()


def texts_of(folder, tokenizer):
    """Return the documents of a folder, decoded."""
    ids = np.array(stream_of(folder))
    ends = np.flatnonzero(ids == tokenizer.eot_id)
    return [tokenizer.decode(document[:-1]) for document in np.split(ids, ends + 1)[:-1]]


@pytest.mark.parametrize(("seq_length", "chunk_size"), [(2, 10_000_000), (100, 1), (10_000, 10_000_000)])
def test_every_document_is_decoded_whole_and_separately(run, tokenizer, seq_length, chunk_size):
    folder = run("--seq_length", seq_length, "--chunk_size", chunk_size, "--max_dump_size", 7)
    wanted = tokenizer.encode_documents(DOCUMENTS)[0].tolist()
    assert stream_of(folder) == wanted and texts_of(folder, tokenizer) == DOCUMENTS
    samples = samples_of(folder)
    assert {len(sample) for sample in samples} == {seq_length} and len(samples) == -(-len(wanted) // seq_length)
    entries = read_json(folder / META)
    assert [entries[f"dump-{i}.pkl"]["num_samples"] for i in range(len(entries) - 1)] == [7] * (len(entries) - 1)
    assert sum(entry["num_tokens"] for entry in entries.values()) == len(wanted)


def test_adjacent_ranges_hold_every_document_once(run, tokenizer):
    num_chars = sum(map(len, DOCUMENTS))
    for cut in (1, 700, num_chars - 1000):
        folders = [
            run("--seq_length", 64, "--chars_to_tokenize", cut, folder="train"),
            run("--seq_length", 32, "--starting_character", cut, folder="validation"),
        ]
        assert [text for folder in folders for text in texts_of(folder, tokenizer)] == DOCUMENTS


def test_the_last_sample_is_padded_or_left_out(run, tokenizer):
    ids = tokenizer.encode_documents(DOCUMENTS)[0].tolist()
    seq_length = next(n for n in range(50, 90) if len(ids) % n > 2)
    rest = len(ids) % seq_length
    for pad_token in (None, 7):
        options = [] if pad_token is None else ["--pad_token", pad_token]
        last = samples_of(run("--seq_length", seq_length, *options))[-1]
        expected = tokenizer.eot_id if pad_token is None else pad_token
        assert last == ids[-rest:] + [expected] * (seq_length - rest)
    for least, is_kept in ((rest, True), (rest + 1, False)):
        folder = run("--seq_length", seq_length, "--min_sample_length", least)
        found = samples_of(folder)
        assert len(found) == len(ids) // seq_length + is_kept
        assert read_json(folder / PROVENANCE)["left_out_tokens"] == (0 if is_kept else rest)


def test_an_overlapping_range_is_refused_on_request(run, tmp_path, data_file):
    train = run("--chars_to_tokenize", 1000, folder="train")
    begin = ["--starting_character", 999]
    disjoint = ["--disjoint_from", train]
    assert "holds characters 999 to 1000 of the same file too" in run(*begin, *disjoint, folder="b", expect=2)
    assert not (tmp_path / "b").exists()
    run(*begin, folder="b")
    run("--starting_character", 1000, *disjoint, folder="b")
    rest = run("--starting_character", 1500, folder="rest")
    assert "to the end of the same file" in run("--starting_character", 3000, "--disjoint_from", train, rest, expect=2)
    pq.write_table(pa.table({"content": DOCUMENTS[::-1]}), data_file)
    run(*begin, *disjoint, folder="b")  # another file cannot overlap
    (train / PROVENANCE).unlink()
    assert "names no range" in run(*begin, *disjoint, folder="b", expect=4)


def test_the_folder_becomes_a_token_file_of_the_same_stream(run, tmp_path, tokenizer):
    folder = run("--seq_length", 50)
    assert convert([str(folder), str(tmp_path / "a.bin")]) == 0
    tokens = open_tokens(tmp_path / "a.bin")
    assert tokens.ids.tolist() == tokenizer.encode_documents(DOCUMENTS)[0].tolist()
    assert tokens.meta["utf8_bytes"] == sum(len(text.encode()) for text in DOCUMENTS)
    assert tokens.meta["tokenizer"]["sha256"] == tokenizer.sha256 == load_tokenizer(folder / "tokenizer").sha256
    assert tokens.meta["slice"] == {"split": "train", "start_char": 0, "num_chars": None}

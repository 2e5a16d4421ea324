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
from support.refusal import refused


def document(number):
    line = f"int f{number}(void) {{ return {number**2}; }} // <|endoftext|> é\N{GRINNING FACE}\n"
    num_lines = number % 5 + 1
    return line * num_lines


DOCUMENTS = [document(number) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_trained_bpe(folder, [DOCUMENTS], 400)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def expected_ids(tokenizer):
    ids, _ = tokenizer.encode_documents(DOCUMENTS)
    return ids.tolist()


@pytest.fixture
def data_file(tmp_path):
    """DOCUMENTS in groups of rows, with a missing and an empty one between them."""
    path = tmp_path / "train-00000-of-00257.parquet"
    rows = [*DOCUMENTS[:30], None, "", *DOCUMENTS[30:]]
    table = pa.table({"content": pa.array(rows, pa.string()), "size": range(62)})
    pq.write_table(table, path, row_group_size=25)
    return path


@pytest.fixture
def arguments(tmp_path, data_file, tokenizer):
    """Return the function that gives the command line that tokenizes into a folder of tmp_path."""

    def arguments(folder, *options):
        required = [
            *("--data_file", data_file),
            *("--tokenization_folder", tmp_path / folder),
            *("--tokenizer_base", tokenizer.folder),
        ]
        return [str(argument) for argument in [*required, *options]]

    return arguments


@pytest.fixture
def run(tmp_path, arguments, capsys):
    """Tokenize into a folder of tmp_path; return it."""

    def run(*options, folder="out"):
        status = tokenize(arguments(folder, *options))
        assert status == 0, capsys.readouterr().err
        return tmp_path / folder

    return run


@pytest.fixture
def refuse(arguments, capsys):
    """Check that tokenizing into the folder `out` ends with a status and a sentence that contains all `parts`."""

    def refuse(options, code, *parts):
        status = tokenize(arguments("out", *options))
        refused(status, capsys.readouterr().err, code, *parts)

    return refuse


def samples_of(folder):
    """Return every sample as plain Python reads it, in numeric order."""
    samples = []
    for path, _, _ in open_dumps(folder).dumps:
        samples += pickle.loads(path.read_bytes())
    return samples


def ids_of(folder):
    """Return the ids without padding."""
    blocks = dumps_stream(folder, None).blocks()
    return np.concatenate(list(blocks))


def texts_of(folder, tokenizer):
    """Return the documents of a folder, decoded."""
    ids = ids_of(folder)
    after_ends = np.flatnonzero(ids == tokenizer.eot_id) + 1
    *documents, rest = np.split(ids, after_ends)
    assert len(rest) == 0
    return [tokenizer.decode(document[:-1]) for document in documents]


@pytest.mark.parametrize(
    ("seq_length", "chunk_size"),
    [
        (64, 10_000_000),
        (100, 1),
        (10_000, 10_000_000),
    ],
)
def test_every_document_is_encoded_whole_and_separately(run, tokenizer, expected_ids, seq_length, chunk_size):
    folder = run("--seq_length", seq_length, "--chunk_size", chunk_size)

    assert ids_of(folder).tolist() == expected_ids
    assert texts_of(folder, tokenizer) == DOCUMENTS


def test_dumps_hold_samples_of_one_length(run, expected_ids):
    folder = run("--seq_length", 100, "--max_dump_size", 7)

    samples = samples_of(folder)
    assert {len(sample) for sample in samples} == {100}
    assert len(samples) == -(-len(expected_ids) // 100)
    entries = read_json(folder / META)
    sizes = [entries[f"dump-{number}.pkl"]["num_samples"] for number in range(len(entries))]
    assert set(sizes[:-1]) == {7}
    assert sum(entry["num_tokens"] for entry in entries.values()) == len(expected_ids)


@pytest.mark.parametrize("cut", [1, 700, 3000])
def test_adjacent_ranges_hold_every_document_once(run, tokenizer, cut):
    train = run("--chars_to_tokenize", cut, folder="train")
    validation = run("--starting_character", cut, folder="validation")

    texts = texts_of(train, tokenizer) + texts_of(validation, tokenizer)

    assert texts == DOCUMENTS


@pytest.fixture
def uneven(expected_ids):
    """Return a length of samples and the number of tokens, three or more, of the last one."""
    num_tokens = len(expected_ids)
    for seq_length in range(50, 90):
        if num_tokens % seq_length > 2:
            return seq_length, num_tokens % seq_length
    raise AssertionError(num_tokens)


@pytest.mark.parametrize("pad_token", [None, 7])
def test_the_last_sample_is_padded(run, tokenizer, expected_ids, uneven, pad_token):
    seq_length, rest = uneven
    options = [] if pad_token is None else ["--pad_token", pad_token]

    folder = run("--seq_length", seq_length, *options)

    last = samples_of(folder)[-1]
    padding = tokenizer.eot_id if pad_token is None else pad_token
    assert last[:rest] == expected_ids[-rest:]
    assert last[rest:] == [padding] * (seq_length - rest)


@pytest.mark.parametrize("is_long_enough", [True, False])
def test_a_short_last_sample_is_left_out_on_request(run, expected_ids, uneven, is_long_enough):
    seq_length, rest = uneven
    shortest = rest if is_long_enough else rest + 1

    folder = run("--seq_length", seq_length, "--min_sample_length", shortest)

    num_whole = len(expected_ids) // seq_length
    left_out = read_json(folder / PROVENANCE)["left_out_tokens"]
    if is_long_enough:
        assert len(samples_of(folder)) == num_whole + 1
        assert left_out == 0
    else:
        assert len(samples_of(folder)) == num_whole
        assert left_out == rest


def test_an_overlapping_range_is_refused(run, refuse, tmp_path):
    train = run("--chars_to_tokenize", 1000, folder="train")

    overlapping = ["--starting_character", 999, "--disjoint_from", train]

    refuse(overlapping, 2, str(train), "characters 999 to 1000", "--starting_character")
    assert not (tmp_path / "out").exists()


def test_an_overlap_with_any_of_several_folders_is_refused(run, refuse):
    train = run("--chars_to_tokenize", 1000, folder="train")
    rest = run("--starting_character", 1500, folder="rest")

    overlapping = ["--starting_character", 3000, "--disjoint_from", train, rest]

    refuse(overlapping, 2, str(rest), "to the end of the same file")


def test_an_adjacent_range_is_disjoint(run):
    train = run("--chars_to_tokenize", 1000, folder="train")

    folder = run("--starting_character", 1000, "--disjoint_from", train)

    assert len(ids_of(folder)) > 0


def test_ranges_of_different_files_are_disjoint(run, data_file):
    train = run("--chars_to_tokenize", 1000, folder="train")
    pq.write_table(pa.table({"content": DOCUMENTS[::-1]}), data_file)

    folder = run("--starting_character", 999, "--disjoint_from", train)

    assert len(ids_of(folder)) > 0


def test_a_folder_that_names_no_range_cannot_be_compared(run, refuse):
    train = run("--chars_to_tokenize", 1000, folder="train")
    (train / PROVENANCE).unlink()

    refuse(["--disjoint_from", train], 4, str(train), "no range", "tokenize it again")


def test_the_folder_becomes_a_token_file_of_the_same_stream(run, tmp_path, tokenizer, expected_ids):
    folder = run("--seq_length", 50)

    assert convert([str(folder), str(tmp_path / "a.bin")]) == 0

    tokens = open_tokens(tmp_path / "a.bin")
    assert tokens.ids.tolist() == expected_ids
    assert tokens.meta["utf8_bytes"] == sum(len(text.encode()) for text in DOCUMENTS)
    assert tokens.meta["slice"] == {"split": "train", "start_char": 0, "num_chars": None}


def test_the_folder_has_the_tokenizer(run, tokenizer):
    folder = run("--seq_length", 50)

    assert load_tokenizer(folder / "tokenizer").sha256 == tokenizer.sha256

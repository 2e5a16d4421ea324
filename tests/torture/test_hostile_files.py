"""One test for each check that refuses a hostile input; hostile_files.py tries thousands of inputs."""

import json
import os
import threading
import zipfile

import hostile_files
import pytest
import torch
from hostile_files import READERS

from lm.core.errors import DataError, IntegrityError, ParamsError
from lm.core.files import check_types, read_json, sha256_file
from lm.core.params import read_yaml
from lm.model.archives import check_archive, check_pickle
from lm.model.weights import load_tensors
from lm.tokenizer.load import load_tokenizer
from tools.common.hugging_face import read_config

READER = {reader.name: reader for reader in READERS}


@pytest.fixture
def good(tmp_path):
    """Return a function that writes the good example of a reader, and returns its folder."""

    def write(name: str):
        READER[name].write(tmp_path)
        return tmp_path

    return write


def change(path, alter):
    """Apply `alter` to a JSON file."""
    content = json.loads(path.read_text())
    alter(content)
    path.write_text(json.dumps(content))


def test_each_reader_reads_or_refuses_changed_files(tmp_path, monkeypatch):
    for reader in READERS:
        counts, wrong = hostile_files.run_reader(reader, 8)
        assert sum(counts.values()) == 8 and wrong == []
    monkeypatch.setattr(hostile_files, "mutate", lambda folder, outside, rng: (outside / "new").mkdir() or folder)
    assert hostile_files.run_reader(READERS[0], 1)[1] == ["0 code ran, or a file was written outside"]


@pytest.mark.parametrize("read", [read_json, sha256_file, read_yaml])
def test_a_pipe_is_refused_without_waiting_for_bytes(tmp_path, read):
    os.mkfifo(tmp_path / "x")
    end = os.open(tmp_path / "x", os.O_RDWR | os.O_NONBLOCK)
    closing = threading.Timer(2, os.close, [end])  # after which a broken reader ends
    closing.start()
    with pytest.raises(IntegrityError, match="is a pipe or a device"):
        read(tmp_path / "x")
    closing.cancel()
    os.close(end)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', '{"a": -Infinity}'])
def test_json_that_is_too_deep_or_not_a_number_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(IntegrityError, match="not valid JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"n": -1, "files": []}, "n is -1"), ({"n": True, "files": []}, "n is True"),
        ({"n": 2**63, "files": []}, "n is 9"),
        ({"files": []}, "n is missing"), ({"n": 1, "files": {}}, "files is {}"),
        ({"n": 1, "files": [{"a": 5}]}, r"files\[0\].a is 5"),
    ],
)  # fmt: skip
def test_the_place_of_a_wrong_value_is_named(tmp_path, value, problem):
    with pytest.raises(IntegrityError, match=f"x.json: {problem}"):
        check_types(tmp_path / "x.json", value, {"n": int, "files": [{str: str}]}, "write it again")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_a_file_of_a_manifest_is_inside_data_raw(good, name):
    folder = good("text and selection")
    change(folder / "raw" / "manifest.json", lambda manifest: manifest["splits"]["train"]["files"][0].update(path=name))
    READER["text and selection"].renew(folder)
    with pytest.raises(IntegrityError, match="needed: a path inside"):
        READER["text and selection"].read(folder)


def test_aliases_in_yaml_are_read_unless_they_stand_for_too_much(tmp_path):
    path, rows = tmp_path / "x.yaml", ["a0: &a0 [1, 2]"]
    path.write_text("a: &a [1]\nb: [*a, *a]\n")
    assert read_yaml(path) == {"a": [1], "b": [[1], [1]]}
    rows += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)]
    for text in ("\n".join(rows), "a: &a [*a]"):
        path.write_text(text)
        with pytest.raises(ParamsError, match=r"its aliases \(\*name\) stand for more than 100,000 values"):
            read_yaml(path)


def test_a_date_that_cannot_be_is_no_traceback(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 2001-13-45\n")
    with pytest.raises(ParamsError, match="not valid YAML"):
        read_yaml(tmp_path / "x.yaml")


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "a.pt")
    check_archive(tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(IntegrityError, match="it is compressed"):
        load_tensors(tmp_path / "b.pt", None)


def test_a_pickle_that_asks_for_a_bytearray_is_refused():
    with pytest.raises(ValueError, match="it asks for builtins bytearray"):
        check_pickle(b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.")


def test_a_pickle_whose_key_takes_for_ever_to_hash_is_refused():
    with pytest.raises(ValueError, match="it repeats 60 tuples"):
        check_pickle(b"\x80\x02}K\x01\x85" + b"q\0h\0\x86" * 60 + b"K\x01s.")


def test_a_shape_larger_than_its_weights_takes_no_memory(good):
    folder = good("model.json and .pt")
    change(folder / "model.json", lambda record: record["config"].update(vocab_size=2**31 - 1))
    with pytest.raises(IntegrityError, match=r"does not fit model.json: at most \d+ weights found"):
        READER["model.json and .pt"].read(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_labels"])
def test_a_huge_number_in_a_config_takes_no_memory(good, key):
    path = good("exported folder") / "config.json"
    change(path, lambda config: config.update({key: 10**9}))
    if key == "num_labels":  # transformers would make a dict of that many names; it is not read
        assert read_config(path).n_layer == 1
    else:
        with pytest.raises(DataError, match="num_hidden_layers is 1000000000, needed: 1 to"):
            read_config(path)


@pytest.mark.parametrize(("at", "line"), [(-1, b"aW50 0"), (-1, b"aW50 300"), (0, b"Kio= 0")])
def test_ranks_with_a_gap_a_repeat_or_without_a_byte_are_refused(good, at, line):
    folder = good("ranks")
    lines = (folder / "ranks.tiktoken").read_bytes().splitlines()
    lines[at] = line
    (folder / "ranks.tiktoken").write_bytes(b"\n".join(lines))
    READER["ranks"].renew(folder)
    with pytest.raises(IntegrityError, match="its ranks do not number every byte"):
        load_tokenizer(folder)


def test_a_vocabulary_larger_than_its_file_is_refused(good):
    folder = good("tokenizer.json")
    change(folder / "meta.json", lambda meta: meta.update(vocab_size=2**40, dtype="uint32"))
    with pytest.raises(IntegrityError, match="has room for"):
        load_tokenizer(folder)


def test_documents_that_do_not_ascend_are_refused(good, monkeypatch):
    monkeypatch.setattr("lm.text.selection.np.argsort", lambda numbers: range(len(numbers))[::-1])
    folder = good("text and selection")
    with pytest.raises(IntegrityError, match="do not ascend"):
        READER["text and selection"].read(folder)

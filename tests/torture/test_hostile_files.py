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
from tools.common.hugging_face import read_config

READER = {reader.name: reader for reader in READERS}


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


def test_aliases_in_yaml_are_read_unless_they_stand_for_too_much(tmp_path):
    path, rows = tmp_path / "x.yaml", ["a0: &a0 [1, 2]"]
    path.write_text("a: &a [1]\nb: [*a, *a]\n")
    assert read_yaml(path) == {"a": [1], "b": [[1], [1]]}
    rows += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)]
    too_much = r"its aliases \(\*name\) stand for more than 100,000 values"
    for text, sentence in (("\n".join(rows), too_much), ("a: &a [*a]", too_much), ("a: 2001-13-45", "not valid YAML")):
        path.write_text(text)
        with pytest.raises(ParamsError, match=sentence):
            read_yaml(path)


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


def test_a_pickle_that_asks_for_a_bytearray_or_whose_key_takes_for_ever_to_hash_is_refused():
    with pytest.raises(ValueError, match="it asks for builtins bytearray"):
        check_pickle(b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.")
    with pytest.raises(ValueError, match="it repeats 60 tuples"):
        check_pickle(b"\x80\x02}K\x01\x85" + b"q\0h\0\x86" * 60 + b"K\x01s.")


def change(name, *path, **values):
    """Return a damage: this object inside a JSON file gets these values."""

    def damage(folder):
        entry = content = json.loads((folder / name).read_text())
        for key in path:
            entry = entry[key]
        entry.update(values)
        (folder / name).write_text(json.dumps(content))

    return damage


def change_line(at, line):
    """Return a damage: this line of the ranks is another one."""

    def damage(folder):
        lines = (folder / "ranks.tiktoken").read_bytes().splitlines()
        lines[at] = line
        (folder / "ranks.tiktoken").write_bytes(b"\n".join(lines))

    return damage


FIRST_FILE = ("raw/manifest.json", "splits", "train", "files", 0)


@pytest.mark.parametrize(
    ("reader", "damage", "sentence"),
    [
        ("text and selection", change(*FIRST_FILE, path="../outside"), "needed: a path inside"),
        ("text and selection", change(*FIRST_FILE, path="/etc/passwd"), "needed: a path inside"),
        ("model.json and .pt", change("model.json", "config", vocab_size=2**31 - 1), r"at most \d+ weights found"),
        ("exported folder", change("config.json", num_hidden_layers=10**9), "num_hidden_layers is 1000000000, needed:"),
        ("ranks", change_line(-1, b"aW50 0"), "its ranks do not number every byte"),
        ("ranks", change_line(-1, b"aW50 300"), "its ranks do not number every byte"),
        ("ranks", change_line(0, b"Kio= 0"), "its ranks do not number every byte"),
        ("tokenizer.json", change("meta.json", vocab_size=2**40, dtype="uint32"), "has room for"),
    ],
)
def test_a_value_that_leads_outside_or_would_take_much_memory_is_refused(tmp_path, reader, damage, sentence):
    reader = READER[reader]
    reader.write(tmp_path)
    damage(tmp_path)
    reader.renew(tmp_path)
    with pytest.raises((DataError, IntegrityError), match=sentence):
        reader.read(tmp_path)


def test_a_huge_number_that_is_not_read_takes_no_memory(tmp_path):
    """transformers would make a dict of that many names."""
    READER["exported folder"].write(tmp_path)
    change("config.json", num_labels=10**9)(tmp_path)
    assert read_config(tmp_path / "config.json").n_layer == 1


def test_documents_that_do_not_ascend_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.selection.np.argsort", lambda numbers: range(len(numbers))[::-1])
    READER["text and selection"].write(tmp_path)
    with pytest.raises(IntegrityError, match="do not ascend"):
        READER["text and selection"].read(tmp_path)

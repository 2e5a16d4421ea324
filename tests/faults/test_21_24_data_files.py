"""Faults 21 to 24: token files that differ from their record are refused, and no file is ever executed."""

import ctypes
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import train as train_stage
from extras.formats.datasets import NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import META
from extras.formats.npy import open_npy
from lm.core.errors import exit_with_status
from lm.core.files import sha256_file
from support.damage import flip
from support.dump_cases import T, write_foreign
from support.refusal import refused
from support.train_cases import ARGUMENTS, clear, restored, run_stage, write_ids

FILES = ["train.bin", "train.json", "validation.bin", "validation.json"]


@pytest.fixture
def workspace(template, monkeypatch):
    """The working directory, in which the stage train runs."""
    monkeypatch.chdir(template.folder)
    clear()
    with restored(*FILES):
        yield template


def read_with(read, *arguments) -> int:
    """Return the exit status of a command that only calls `read`."""
    return exit_with_status(lambda _: read(*arguments))([])


# ---------------------------------------------------------------- 21: .bin and its sidecar


def change_sidecar(path, **values):
    meta = json.loads(path.with_suffix(".json").read_text()) | values
    kept = {name: value for name, value in meta.items() if value is not None}
    path.with_suffix(".json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("damage", "sentences"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), ["1399 bytes", "700 tokens of uint16 = 1400 bytes"]),
        (lambda path: path.write_bytes(path.read_bytes()[:700]), ["700 bytes", "700 tokens of uint16 = 1400 bytes"]),
        (lambda path: path.write_bytes(b""), ["0 bytes", "700 tokens of uint16 = 1400 bytes"]),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0\0"), ["1402 bytes", "= 1400 bytes"]),
        (lambda path: change_sidecar(path, dtype="uint32"), ["1400 bytes", "700 tokens of uint32 = 2800 bytes"]),
        (lambda path: change_sidecar(path, dtype="uint32", tokens=350), ["position 0 is outside the vocabulary"]),
        (flip, ["sha256 is", "its sidecar says"]),
        (lambda path: change_sidecar(path, sha256="ab" * 32), ["sha256 is", f"its sidecar says {'ab' * 32}"]),
        (lambda path: path.unlink(), ["missing"]),
        (lambda path: path.with_suffix(".json").unlink(), ["validation.json: missing"]),
        (lambda path: path.with_suffix(".json").write_text("{"), ["validation.json: not valid JSON"]),
        (lambda path: path.with_suffix(".json").write_text("[]"), ["validation.json: holds a list"]),
        (lambda path: change_sidecar(path, format_version=2), ["validation.json: format_version 2", "needed: 1"]),
        (lambda path: change_sidecar(path, tokens=None), ["validation.json: ", "tokens"]),
    ],
)  # fmt: skip
def test_21_a_token_file_that_differs_from_its_sidecar(workspace, capsys, damage, sentences):
    damage(Path("validation.bin"))
    refused(train_stage.main(ARGUMENTS), capsys.readouterr().err, 4, "error: validation.", *sentences)
    assert not Path("data/models").exists()


# ---------------------------------------------------------------- 22: what the tokens are


@pytest.mark.parametrize(
    ("name", "count", "top", "status", "sentence"),
    [
        ("train.bin", 100, 50, 4, "train.bin: token 50 at position 99 is outside the vocabulary of 50"),
        ("train.bin", 100, 65535, 4, "train.bin: token 65535 at position 99 is outside the vocabulary of 50"),
        ("validation.bin", 100, 50, 4, "validation.bin: token 50 at position 99 is outside the vocabulary of 50"),
        ("train.bin", 32, None, 3, "has 32 tokens, one window of train.seq_len 32 needs 33"),
        ("validation.bin", 32, None, 3, "validation.bin: 32 tokens, one window of train.seq_len needs 33"),
        ("train.bin", 1, None, 3, "has 1 tokens, one window of train.seq_len 32 needs 33"),
    ],
)
def test_22_tokens_that_cannot_be_trained_on(workspace, capsys, name, count, top, status, sentence):
    write_ids(name, count, top=top)
    refused(train_stage.main(ARGUMENTS), capsys.readouterr().err, status, sentence)


def test_22_exactly_one_window_is_enough(workspace):
    write_ids("train.bin", 33)
    write_ids("validation.bin", 33)
    assert train_stage.main(ARGUMENTS) == 0


# ---------------------------------------------------------------- 23: .npy and dump-*.pkl


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_23_a_npy_of_anything_other_than_ids_is_refused_and_its_objects_never_run(tmp_path, capsys):
    path, marker = tmp_path / "a.npy", tmp_path / "ran"
    for array in (
        np.zeros((2, 3, 4), int), np.zeros(()), np.zeros(9), np.zeros(9, bool), np.zeros(9, "datetime64[s]"),
        np.zeros(9, [("a", "i4")]), np.array(["1", "2"]), np.array([Payload(marker)], object),
    ):  # fmt: skip
        np.save(path, array, allow_pickle=True)
        refused(read_with(NpyTokensDataset, path, T), capsys.readouterr().err, 4, f"error: {path}: ")
        assert not marker.exists()
    np.load(path, allow_pickle=True)
    assert marker.exists()  # the payload works


def test_23_a_truncated_or_changed_npy(tmp_path, capsys):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    content = path.read_bytes()
    for damaged in (b"", content[:5], content[:60], content[:130], content[:-1], content + b"\0", b"junk" * 99):
        path.write_bytes(damaged)
        refused(read_with(NpyTokensDataset, path, T), capsys.readouterr().err, 4, f"error: {path}: ")
    for place in range(118):  # the header, of which spaces alone may change
        for byte in (b"(", b"}", b"9", b"\xff"):
            path.write_bytes(content[:place] + byte + content[place + 1 :])
            assert read_with(NpyTokensDataset, path, T) in (0, 4)
    np.save(path, np.zeros((0, 5), int))
    assert read_with(open_npy, path) == 3


def hostile_pickles(marker):
    """Yield pickles that create `marker` when pickle.load reads them."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps([[1, 2, 3, Payload(marker)]], protocol)
    yield b"(S'%s'\nios\nmkdir\n." % str(marker).encode()  # INST
    yield b"(cos\nmkdir\nS'%s'\no." % str(marker).encode()  # OBJ


def test_23_a_hostile_pickle_never_runs(tmp_path, capsys):
    marker = tmp_path / "ran"
    folder = write_foreign(tmp_path / "a", [[1, 2, 3, 4]])
    for content in hostile_pickles(marker):
        (folder / "dump-0.pkl").write_bytes(content)
        status, parts = read_with(PickledTrainerDataset, folder), ("dump-0.pkl: ", "it asks for ")
        refused(status, capsys.readouterr().err, 4, *parts)
        assert not marker.exists()
    pickle.loads(content)
    assert marker.exists()  # the payload works


OTHERS = [
    [[1, 2], [3]], [[1.5, 2.0]], [["1", "2"]], [[True, False]], [1, 2], [], [[]], [[-1, 2]], [[2**32, 1]], [[2**70, 1]],
    [[None, 1]], {"a": [1]}, 5, "text", [[[1, 2], [3, 4]]],
]  # fmt: skip


def test_23_a_dump_that_is_damaged_or_holds_anything_other_than_samples(tmp_path, capsys):
    folder = write_foreign(tmp_path / "a", [[i, i + 300] for i in range(200)])
    path = folder / "dump-0.pkl"
    good = path.read_bytes()
    damaged = (b"", good[:-1], good[: len(good) // 2], good + b"x", b"\xff" + good[1:])
    for content in (*damaged, *map(pickle.dumps, OTHERS)):
        path.write_bytes(content)
        refused(read_with(PickledTrainerDataset, folder), capsys.readouterr().err, 4, "dump-0.pkl")


def change_meta(folder, change):
    entries = json.loads((folder / META).read_text())
    change(entries)
    (folder / META).write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: change_meta(f, lambda m: m["dump-0.pkl"].update(num_samples=3)), "holds 2 samples of 4"),
        (lambda f: change_meta(f, lambda m: m["dump-0.pkl"].update(num_tokens=9)), "2 samples with 9 tokens"),
        (lambda f: change_meta(f, lambda m: m["dump-0.pkl"].pop("num_tokens")), "no num_samples and num_tokens"),
        (lambda f: (f / "dump-1.pkl").rename(f / "dump-2.pkl"), "differ in dump-1.pkl, dump-2.pkl"),
        (lambda f: (f / META).unlink(), "has no dump-meta_data.json"),
        (lambda f: (f / META).write_text("{"), "not valid JSON"),
    ],
)
def test_23_a_meta_file_that_disagrees_with_the_dumps(tmp_path, capsys, damage, sentence):
    folder = write_foreign(tmp_path / "a", [[1] * T] * 2, [[2] * T] * 2)
    damage(folder)
    refused(read_with(PickledTrainerDataset, folder), capsys.readouterr().err, 4, sentence)


# ---------------------------------------------------------------- 24: read-only links into the cache


@pytest.fixture
def cached(workspace):
    """Make the token files read-only hard links, as DVC's cache does; yield the folder of the other links."""
    folder = Path("cached")
    folder.mkdir()
    for name in FILES:
        Path(name).chmod(0o444)
        os.link(name, folder / name)
    yield folder
    shutil.rmtree(folder)
    for name in FILES:
        Path(name).chmod(0o644)


def no_privileges():
    """Drop root's capabilities, so that this process cannot write read-only files either."""
    if not os.geteuid():
        ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    with pytest.raises(PermissionError):
        os.truncate("train.bin", 0)


@pytest.mark.skipif(sys.platform != "linux" and not os.geteuid(), reason="root may write read-only files")
def test_24_training_reads_read_only_files(cached):
    before = [(sha256_file(path), path.stat().st_mtime_ns) for path in map(Path, FILES)]
    ended = run_stage(no_privileges)
    assert ended.code == 0, ended.err
    assert [(sha256_file(path), path.stat().st_mtime_ns) for path in map(Path, FILES)] == before
    assert all(os.path.samefile(name, cached / name) for name in FILES)

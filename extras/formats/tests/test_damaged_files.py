"""Damaged and hostile .npy files and dumps are refused by name, and nothing in them is executed."""

import json
import os
import pickle

import numpy as np
import pytest

from extras.formats.datasets import NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import META
from lm.core.errors import IntegrityError
from support.dump_cases import T, write_foreign


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_objects_in_a_npy_never_run(tmp_path):
    path = tmp_path / "a.npy"
    marker = tmp_path / "ran"
    np.save(path, np.array([Payload(marker)], object), allow_pickle=True)
    with pytest.raises(IntegrityError, match=str(path)):
        NpyTokensDataset(path, T)
    assert not marker.exists()
    np.load(path, allow_pickle=True)
    assert marker.exists()  # the payload works


@pytest.mark.parametrize("array", [np.zeros((2, 3, 4), int), np.zeros(9), np.zeros(9, bool), np.array(["1", "2"])])
def test_a_npy_of_anything_other_than_ids_is_refused(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(IntegrityError, match=r"a\.npy: "):
        NpyTokensDataset(tmp_path / "a.npy", T)


def test_a_damaged_npy_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    content = path.read_bytes()
    for damaged in (b"", content[:60], content[:-1], content + b"\0", b"junk" * 99, b"\xff" + content[1:]):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"a\.npy: "):
            NpyTokensDataset(path, T)


def test_a_hostile_dump_never_runs(tmp_path):
    folder = write_foreign(tmp_path / "a", [[1, 2, 3, 4]])
    marker = tmp_path / "ran"
    written = [pickle.dumps([[1, 2, 3, Payload(marker)]], protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    instructions = [b"(S'%s'\nios\nmkdir\n.", b"(cos\nmkdir\nS'%s'\no."]
    by_hand = [instruction % str(marker).encode() for instruction in instructions]
    for content in [*written, *by_hand]:
        (folder / "dump-0.pkl").write_bytes(content)
        with pytest.raises(IntegrityError, match=r"dump-0\.pkl: .*it asks for "):
            PickledTrainerDataset(folder)
        assert not marker.exists()
    pickle.loads(content)
    assert marker.exists()  # the payload works


OTHERS = [[[1.5, 2.0]], [["1", "2"]], [[True, False]], [1, 2], [], [[-1, 2]], [[2**32, 1]], [[None, 1]], {"a": [1]}, 5]


def test_a_dump_that_is_damaged_or_holds_anything_other_than_samples_is_refused(tmp_path):
    folder = write_foreign(tmp_path / "a", [[i, i + 300] for i in range(200)])
    path = folder / "dump-0.pkl"
    good = path.read_bytes()
    damaged = (b"", good[:-1], good[: len(good) // 2], good + b"x", b"\xff" + good[1:])
    for content in (*damaged, *map(pickle.dumps, OTHERS)):
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match=r"dump-0\.pkl"):
            PickledTrainerDataset(folder)


@pytest.fixture
def two_dumps(tmp_path):
    """A folder of two dumps, each of two samples of T tokens."""
    return write_foreign(tmp_path / "a", [[1] * T] * 2, [[2] * T] * 2)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"num_samples": 3, "num_tokens": 2 * T}, "holds 2 samples of 4"),
        ({"num_samples": 2, "num_tokens": 9}, "2 samples with 9 tokens"),
        ({"num_samples": 2}, "no num_samples and num_tokens"),
    ],
)
def test_metadata_that_disagrees_with_a_dump_is_refused(two_dumps, entry, sentence):
    entries = json.loads((two_dumps / META).read_text())
    entries["dump-0.pkl"] = entry
    (two_dumps / META).write_text(json.dumps(entries))
    with pytest.raises(IntegrityError, match=sentence):
        PickledTrainerDataset(two_dumps)


@pytest.mark.parametrize(("name", "sentence"), [("dump-1.pkl", "differ in dump-1.pkl"), (META, f"has no {META}")])
def test_a_missing_file_is_refused(two_dumps, name, sentence):
    (two_dumps / name).unlink()
    with pytest.raises(IntegrityError, match=sentence):
        PickledTrainerDataset(two_dumps)


def test_metadata_that_is_not_json_is_refused(two_dumps):
    (two_dumps / META).write_text("{")
    with pytest.raises(IntegrityError, match="not valid JSON"):
        PickledTrainerDataset(two_dumps)

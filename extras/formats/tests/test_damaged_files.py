"""Damaged and hostile .npy files and dumps are refused by name, and nothing in them is executed."""

import json
import os
import pickle

import numpy as np
import pytest

from extras.formats.datasets import NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import META
from lm.core.errors import IntegrityError
from support.damage import extend, truncate
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
    assert marker.exists(), "the payload works"


def test_a_npy_of_anything_other_than_ids_is_refused(tmp_path):
    for array in (np.zeros((2, 3, 4), int), np.zeros(9, float)):
        np.save(tmp_path / "a.npy", array)

        with pytest.raises(IntegrityError, match=r"a\.npy"):
            NpyTokensDataset(tmp_path / "a.npy", T)


@pytest.mark.parametrize("damage", [truncate, extend])
def test_a_damaged_file_is_refused(tmp_path, damage):
    array = tmp_path / "a.npy"
    np.save(array, np.arange(1000))
    dump = write_foreign(tmp_path / "a", [[i, i + 300] for i in range(200)]) / "dump-0.pkl"
    damage(array)
    damage(dump)

    with pytest.raises(IntegrityError, match=r"a\.npy"):
        NpyTokensDataset(array, T)
    with pytest.raises(IntegrityError, match=r"dump-0\.pkl"):
        PickledTrainerDataset(dump.parent)


def hostile_pickle(kind, marker):
    """Return a pickle that makes the folder `marker`, by a protocol or as somebody could write it."""
    if isinstance(kind, int):
        return pickle.dumps([[1, 2, 3, Payload(marker)]], protocol=kind)
    return kind % str(marker).encode()


@pytest.mark.parametrize("kind", [pickle.HIGHEST_PROTOCOL, b"(S'%s'\nios\nmkdir\n.", b"(cos\nmkdir\nS'%s'\no."])
def test_a_hostile_dump_never_runs(tmp_path, kind):
    folder = write_foreign(tmp_path / "a", [[1, 2, 3, 4]])
    marker = tmp_path / "ran"
    content = hostile_pickle(kind, marker)
    (folder / "dump-0.pkl").write_bytes(content)

    with pytest.raises(IntegrityError, match=r"dump-0\.pkl.*mkdir"):
        PickledTrainerDataset(folder)
    assert not marker.exists()

    pickle.loads(content)
    assert marker.exists(), "the payload works"


def test_a_dump_of_anything_other_than_samples_is_refused(tmp_path):
    dump = write_foreign(tmp_path / "a", [[1, 2]]) / "dump-0.pkl"
    no_ids = [[1.5, 2.0]], [["1", "2"]], [[True, False]], [[-1, 2]], [[2**32, 1]]
    no_samples = [1, 2], [], [[1, 2], [3]], 5
    for content in [*no_ids, *no_samples]:
        dump.write_bytes(pickle.dumps(content))

        with pytest.raises(IntegrityError, match=r"dump-0\.pkl"):
            PickledTrainerDataset(dump.parent)


def test_metadata_that_disagrees_with_a_dump_is_refused(tmp_path):
    folder = write_foreign(tmp_path / "a", [[1] * T, [1] * T], [[2] * T, [2] * T])
    entries = json.loads((folder / META).read_text())

    for entry, sentence in (
        ({"num_samples": 3, "num_tokens": 2 * T}, "holds 2 samples of 4.* says 3 samples"),
        ({"num_samples": 2, "num_tokens": 9}, "holds 2 samples of 4.* with 9 tokens"),
        ({"num_samples": 2}, "num_tokens"),
    ):
        (folder / META).write_text(json.dumps(entries | {"dump-0.pkl": entry}))
        with pytest.raises(IntegrityError, match=sentence):
            PickledTrainerDataset(folder)

    (folder / META).write_text(json.dumps(entries))
    (folder / "dump-1.pkl").unlink()
    with pytest.raises(IntegrityError, match=r"dump-1\.pkl"):
        PickledTrainerDataset(folder)

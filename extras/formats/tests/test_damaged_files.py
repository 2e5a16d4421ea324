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


@pytest.mark.parametrize("kind", ["global", "inst"])
def test_a_hostile_dump_never_runs(tmp_path, kind):
    folder = write_foreign(tmp_path / "a", [[1, 2, 3, 4]])
    marker = tmp_path / "ran"
    content = (
        pickle.dumps([[1, 2, 3, Payload(marker)]]) if kind == "global" else b"(S'%s'\nios\nmkdir\n." % bytes(marker)
    )
    (folder / "dump-0.pkl").write_bytes(content)

    with pytest.raises(IntegrityError, match=r"dump-0\.pkl.*mkdir"):
        PickledTrainerDataset(folder)
    assert not marker.exists()

    pickle.loads(content)
    assert marker.exists(), "the payload works"


def test_a_npy_of_anything_other_than_ids_is_refused(tmp_path):
    for array in (np.zeros((2, 3, 4), int), np.zeros(9, float), np.array([Payload("")], object)):
        np.save(tmp_path / "a.npy", array, allow_pickle=True)

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


def test_a_dump_of_anything_other_than_samples_is_refused(tmp_path):
    dump = write_foreign(tmp_path / "a", [[1, 2]]) / "dump-0.pkl"
    no_ids = [[1.5, 2.0]], [["1", "2"]], [[True, False]], [[-1, 2]], [[2**32, 1]]
    no_samples = [1, 2], [], [[1, 2], [3]]
    for content in [*no_ids, *no_samples]:
        dump.write_bytes(pickle.dumps(content))

        with pytest.raises(IntegrityError, match=r"dump-0\.pkl"):
            PickledTrainerDataset(dump.parent)


def test_metadata_that_disagrees_with_a_dump_is_refused(tmp_path):
    folder = write_foreign(tmp_path / "a", [[1] * T, [1] * T], [[2] * T])
    entries = json.loads((folder / META).read_text())

    for change, sentence in (
        ({"dump-0.pkl": {"num_samples": 3, "num_tokens": 2 * T}}, "holds 2 samples of 4.* says 3 samples"),
        ({"dump-0.pkl": {"num_samples": 2, "num_tokens": 9}}, "holds 2 samples of 4.* with 9 tokens"),
        ({"dump-0.pkl": {"num_samples": 2}}, "num_tokens"),
        ({"dump-2.pkl": {"num_samples": 1, "num_tokens": T}}, r"dump-2\.pkl"),
    ):
        (folder / META).write_text(json.dumps(entries | change))

        with pytest.raises(IntegrityError, match=sentence):
            PickledTrainerDataset(folder)

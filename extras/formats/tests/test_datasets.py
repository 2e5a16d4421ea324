"""Datasets give every window and sample once, shifted and masked."""

import json
import os
import pickle

import numpy as np
import pytest
from torch.utils.data import DataLoader

from extras.formats.datasets import DEEPSEEK_PAD_TOKEN, IGNORED, NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import write_dumps
from extras.formats.npy import npy_sidecar_path, write_npy
from lm.core.errors import DataError, IntegrityError
from support.damage import flip
from support.dump_cases import T, write_foreign

PAD = 9


def inputs_of(dataset):
    return [x.tolist() for x, _ in dataset]


def targets_of(dataset):
    return [y.tolist() for _, y in dataset]


def labels_of(dataset):
    return [sample["labels"].tolist() for sample in dataset]


# Windows of a .npy


@pytest.mark.parametrize("dtype", ["uint64", ">u2"])
def test_sequential_windows_follow_each_other_and_end_with_the_last_whole_one(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.arange(13).astype(dtype))

    dataset = NpyTokensDataset(tmp_path / "a.npy", T)

    assert inputs_of(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert targets_of(dataset) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    with pytest.raises(IndexError):
        dataset[3]


def test_random_windows_come_once_each_and_then_in_another_order(tmp_path):
    """Also to the workers of a loader."""
    np.save(tmp_path / "a.npy", np.arange(40))
    in_order = list(range(40 - T))

    def starts_of_two_epochs(seed):
        dataset = NpyTokensDataset(tmp_path / "a.npy", T, seed=seed, length=2 * len(in_order))
        loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
        starts = [window[0] for x, _ in loader for window in x.tolist()]
        return starts[: len(in_order)], starts[len(in_order) :]

    first, second = starts_of_two_epochs(seed=3)

    assert sorted(first) == sorted(second) == in_order
    assert first != in_order
    assert first != second
    assert starts_of_two_epochs(seed=4)[0] != first


def test_an_array_without_a_window_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(40))

    with pytest.raises(DataError, match=r"40 tokens .* needs 41"):
        NpyTokensDataset(tmp_path / "a.npy", 40)


def write_padded(path, num_tokens):
    """Write the ids 1 to num_tokens in rows of five, the last one padded."""
    ids = np.arange(1, num_tokens + 1, dtype=np.uint16)
    meta = {"tokens": num_tokens, "dtype": "uint16", "tokenizer": {"eot_id": 999}}
    write_npy(path, [ids], meta, row_length=5)


def test_padding_after_the_last_token_is_ignored(tmp_path):
    path = tmp_path / "a.npy"

    write_padded(path, 12)
    dataset = NpyTokensDataset(path, T)

    assert inputs_of(dataset) == [[1, 2, 3, 4], [6, 7, 8, 9], [11, 12, 999, 999]]
    assert targets_of(dataset) == [[2, 3, 4, 5], [7, 8, 9, 10], [12, IGNORED, IGNORED, IGNORED]]

    npy_sidecar_path(path).write_text(json.dumps({"tokens": 10}))
    with pytest.raises(IntegrityError, match=r"a\.npy.*\(3, 5\).* 10 tokens"):
        NpyTokensDataset(path, T)


@pytest.mark.parametrize(
    ("num_tokens", "seq_len", "seed", "num_windows"),
    [
        (11, 4, None, 2),  # the last row is one token without a target
        (12, 2, 1, 3 + 3 + 1),
        (11, 2, 1, 3 + 3),
    ],
)
def test_a_window_without_a_target_does_not_count(tmp_path, num_tokens, seq_len, seed, num_windows):
    path = tmp_path / "a.npy"
    write_padded(path, num_tokens)

    dataset = NpyTokensDataset(path, seq_len, seed=seed)

    assert dataset.num_windows == num_windows


# Samples of dumps


def test_samples_come_in_the_order_of_the_folders_and_the_numeric_order_of_the_dumps(tmp_path):
    dumps = [[[number] * T] for number in range(12)]
    first = write_foreign(tmp_path / "b", *dumps)
    second = write_foreign(tmp_path / "a", [[50] * T])

    dataset = PickledTrainerDataset([first, second])

    assert labels_of(dataset) == [[number] * T for number in [*range(12), 50]]


def test_padding_of_foreign_dumps_is_the_run_at_the_end_of_a_sample(tmp_path):
    samples = [
        [PAD, PAD, 1, 2],
        [1, PAD, 2, PAD],
        [PAD, PAD, PAD, PAD],  # nothing but padding: left out
        [3, 4, PAD, PAD],
    ]
    folder = write_foreign(tmp_path / "a", samples)
    assert DEEPSEEK_PAD_TOKEN == 32014  # of the original script

    dataset = PickledTrainerDataset(folder, pad_token=PAD)

    assert labels_of(dataset) == [
        [PAD, PAD, 1, 2],
        [1, PAD, 2, IGNORED],
        [3, 4, IGNORED, IGNORED],
    ]
    last = dataset[-1]
    assert last["input_ids"].tolist() == [3, 4, PAD, PAD]
    assert last["attention_mask"].tolist() == [1, 1, 0, 0]


def read_as_the_original(folder):
    """Return the samples as the format's first reader does: any .json is the meta file, pickle.load."""
    (meta_name,) = [name for name in os.listdir(folder) if name.endswith(".json")]
    meta = json.loads((folder / meta_name).read_text())
    samples = []
    for number in range(len(meta)):
        name = f"dump-{number}.pkl"
        dump = pickle.loads((folder / name).read_bytes())
        assert len(dump) == meta[name]["num_samples"] <= 2
        samples += dump
    return samples


@pytest.mark.parametrize("num_tokens", [2, 9, 22])
def test_written_dumps_have_every_token_once_also_for_the_original_reader(tmp_path, num_tokens):
    """The padding id is a token too."""
    ids = np.array([PAD if i % 3 == 2 else i for i in range(num_tokens)], np.uint16)
    sizes = {"seq_len": T, "max_dump_size": 2, "pad_token": PAD}
    write_dumps(tmp_path, np.array_split(ids, 3), "uint16", dict, **sizes)

    dataset = PickledTrainerDataset(tmp_path)

    labels = np.concatenate(labels_of(dataset))
    has_lonely_end = num_tokens % T == 1  # a last sample without a target is left out
    expected = ids[:-1] if has_lonely_end else ids
    assert labels[labels != IGNORED].tolist() == expected.tolist()
    samples = read_as_the_original(tmp_path)
    assert {len(sample) for sample in samples} == {T}
    assert np.concatenate(samples).tolist() == [*ids, *[PAD] * (-num_tokens % T)]

    flip(tmp_path / "dump-0.pkl")
    with pytest.raises(IntegrityError, match=r"dump-0\.pkl.*sha256"):
        PickledTrainerDataset(tmp_path)

"""Datasets give every window and sample once, shifted and masked, and never execute a file."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from extras.formats.datasets import IGNORED, NpyTokensDataset, PickledTrainerDataset
from extras.formats.dumps import META, replace_dumps, write_dumps
from extras.formats.npy import open_npy, write_npy
from lm.core.errors import IntegrityError
from support.dump_cases import T, write_foreign

INTEGERS = ["uint8", "int16", ">u2", "int32", "uint64"]


def save(path, ids):
    np.save(path, ids)
    return path


def write_own(folder, ids, max_dump_size=2):
    """Write ids as dumps; return what the writer says of their origin."""
    chunks = np.array_split(np.array(ids, np.uint16), 3)
    with replace_dumps(folder) as temporary:
        return write_dumps(temporary, chunks, "uint16", dict, seq_len=T, max_dump_size=max_dump_size, pad_token=9)


def items(dataset):
    """Return the dataset as a list of (x, y) lists."""
    return [(x.tolist(), y.tolist()) for x, y in dataset]


def sidecar(ids):
    return {"tokens": len(ids), "dtype": "uint16", "tokenizer": {"vocab_size": 1000, "eot_id": 999}}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", [(20,), (4, 5)])
def test_targets_are_the_inputs_one_token_later_in_any_integer_dtype(tmp_path, dtype, shape):
    path = save(tmp_path / "a.npy", np.arange(20).astype(dtype).reshape(shape))
    x, y = NpyTokensDataset(path, T)[0]
    assert x.dtype == y.dtype == torch.int64
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_sequential_windows_follow_each_other_and_end_with_the_last_whole_one(tmp_path):
    dataset = NpyTokensDataset(save(tmp_path / "a.npy", np.arange(13)), T)
    assert [x for x, _ in items(dataset)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert dataset[-1][1].tolist() == [9, 10, 11, 12]
    with pytest.raises(IndexError):
        dataset[3]


def test_random_windows_come_once_each_and_then_in_another_order(tmp_path):
    path = save(tmp_path / "a.npy", np.arange(40))
    num_windows = 40 - T
    starts = [x[0] for x, _ in items(NpyTokensDataset(path, T, seed=3, length=3 * num_windows))]
    epochs = [starts[i * num_windows : (i + 1) * num_windows] for i in range(3)]
    assert all(sorted(epoch) == list(range(num_windows)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != sorted(epochs[0])
    other = [x[0] for x, _ in items(NpyTokensDataset(path, T, seed=4, length=num_windows))]
    assert other != epochs[0]
    strided = NpyTokensDataset(path, T, seed=3, stride=T, length=9)
    assert sorted(x[0] for x, _ in items(strided)) == list(range(0, 36, T))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_same_data_for_any_number_of_workers(tmp_path, method):
    dataset = NpyTokensDataset(save(tmp_path / "a.npy", np.arange(3000, dtype=np.uint16)), T, seed=7, length=64)
    wanted = [torch.stack([pair[side] for pair in dataset]).tolist() for side in (0, 1)]
    for num_workers in [0, 2] if method == "fork" else [1]:
        workers = {"persistent_workers": True, "prefetch_factor": 2, "multiprocessing_context": method}
        loader = DataLoader(dataset, 8, num_workers=num_workers, pin_memory=torch.cuda.is_available(),
                            **workers if num_workers else {})  # fmt: skip
        for _ in range(2):
            batches = list(loader)
            assert [torch.cat([batch[side] for batch in batches]).tolist() for side in (0, 1)] == wanted


def test_padding_after_the_last_token_is_ignored(tmp_path):
    ids = np.arange(1, 13, dtype=np.uint16)
    path = tmp_path / "a.npy"
    assert write_npy(path, [ids], sidecar(ids), 5) == 3
    assert open_npy(path)[-1].tolist() == [11, 12, 999, 999, 999]
    dataset = NpyTokensDataset(path, T)
    assert len(dataset) == 3
    assert items(dataset)[1:] == [([6, 7, 8, 9], [7, 8, 9, 10]), ([11, 12, 999, 999], [12] + [IGNORED] * 3)]
    # A window without a target does not count: the last row has only the 11th token.
    write_npy(path, [ids[:11]], sidecar(ids[:11]), 5)
    assert len(NpyTokensDataset(path, T)) == 2
    assert len(NpyTokensDataset(path, 2, stride=1)) == 2 * 3
    write_npy(path, [ids[:12]], sidecar(ids[:12]), 5)
    assert len(NpyTokensDataset(path, 2, stride=1)) == 2 * 3 + 1
    path.with_name("a.npy.json").write_text(json.dumps({"tokens": 10}))
    with pytest.raises(IntegrityError, match=r"shape \(3, 5\), a\.npy\.json says 10 tokens"):
        NpyTokensDataset(path, T)


def original_reader(folder):
    """Read as the format's first reader does, apart from the order: any .json is the meta file, pickle.load."""
    (meta_name,) = [name for name in os.listdir(folder) if name.endswith(".json")]
    meta = json.loads((folder / meta_name).read_text())
    names = [name for name in os.listdir(folder) if name.endswith("pkl")]
    dumps = {name: pickle.loads((folder / name).read_bytes()) for name in names}
    assert {name: len(samples) for name, samples in dumps.items()} == {n: e["num_samples"] for n, e in meta.items()}
    return [sample for i in range(len(dumps)) for sample in dumps[f"dump-{i}.pkl"]]


def test_samples_come_in_the_numeric_order_of_the_dumps(tmp_path):
    dataset = PickledTrainerDataset([write_foreign(tmp_path / "a", *([[i] * T] for i in range(12)))])
    assert [sample["input_ids"][0].item() for sample in dataset] == list(range(12))
    both = PickledTrainerDataset([tmp_path / "a", write_foreign(tmp_path / "b", [[7] * T])])
    assert len(both) == 13 and both[12]["labels"].tolist() == both[-1]["labels"].tolist() == [7] * T
    assert repr(dataset) == "PickledTrainerDataset(12 samples of 4, 48 tokens)"


def test_padding_of_foreign_dumps_is_the_run_at_a_samples_end(tmp_path):
    folder = write_foreign(tmp_path / "a", [[9, 9, 1, 2], [1, 9, 2, 9], [9, 9, 9, 9], [3, 4, 9, 9]])
    samples = list(PickledTrainerDataset(folder, pad_token=9))
    assert [sample["labels"].tolist() for sample in samples] == [
        [9, 9, 1, 2],
        [1, 9, 2, IGNORED],
        [3, 4, IGNORED, IGNORED],  # the sample that is nothing but padding is left out
    ]
    assert samples[2]["input_ids"].tolist() == [3, 4, 9, 9]
    assert samples[2]["attention_mask"].tolist() == [1, 1, 0, 0]
    default = PickledTrainerDataset(write_foreign(tmp_path / "b", [[1, 2, 32014, 32014], [1, 2, 9, 9]]))
    assert [sample["labels"].tolist() for sample in default] == [[1, 2, IGNORED, IGNORED], [1, 2, 9, 9]]


@pytest.mark.parametrize("num_tokens", (2, 5, 8, 9, 22))
def test_written_dumps_are_read_here_and_by_the_original_reader(tmp_path, num_tokens):
    ids = [9 if i % 3 == 2 else i for i in range(num_tokens)]  # the padding id is a token too
    provenance = write_own(tmp_path / "a", ids)
    dataset = PickledTrainerDataset(tmp_path / "a", pad_token=9)  # ignored: the provenance records the padding
    labels = [token for sample in dataset for token in sample["labels"].tolist() if token != IGNORED]
    single = num_tokens % T == 1  # a last sample without a target
    assert labels == (ids[:-1] if single else ids)
    rows = original_reader(tmp_path / "a")
    assert {len(row) for row in rows} == {T}
    assert [token for row in rows for token in row] == ids + [9] * provenance["padding_tokens"]
    meta = json.loads((tmp_path / "a" / META).read_text())
    assert sum(entry["num_tokens"] for entry in meta.values()) == num_tokens == provenance["stream"]["tokens"]
    assert all(entry["num_samples"] <= 2 for entry in meta.values())


def test_a_dump_with_another_id_is_refused(tmp_path):
    write_own(tmp_path / "a", range(8))
    path = tmp_path / "a" / "dump-0.pkl"
    samples = pickle.loads(path.read_bytes())
    samples[0][1] = 5
    path.write_bytes(pickle.dumps(samples, protocol=2))
    with pytest.raises(IntegrityError, match=r"dump-0\.pkl: its sha256 is not the one in dump-provenance\.yaml"):
        PickledTrainerDataset(tmp_path / "a")


def test_the_trainer_learns_from_the_samples(tmp_path):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Trainer, TrainingArguments, set_seed

    write_own(tmp_path / "a", [1, 2, 3, 4, 5, 6, 7, 8] * 40 + [1, 2, 3], max_dump_size=30)
    dataset = PickledTrainerDataset([tmp_path / "a"])
    set_seed(0)
    config = Gemma3TextConfig(
        vocab_size=10, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, sliding_window=8, max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=20, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Gemma3ForCausalLM(config), arguments, train_dataset=dataset, eval_dataset=dataset)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 20 and before > 2
    assert trainer.evaluate()["eval_loss"] < 0.7 * before

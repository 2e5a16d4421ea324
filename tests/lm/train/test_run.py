"""A run reads the same files for every tool, is built as its parameters say, and continues what it has saved."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.errors import DataError, IntegrityError
from lm.model import machine
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import save_models
from lm.tokenizer.build import write_trained_bpe
from lm.tokens.windows import TokenWindows
from lm.train.config import read_params
from lm.train.ranks import SINGLE_PROCESS
from lm.train.run import Run, RunFiles, choose_dtype
from lm.train.step import sampling_weights, uniform_draws
from support.stages import change_params, stage_folder
from support.train_cases import TOKENIZER, write_ids
from support.workspace import SMALL

FILES = RunFiles(Path("train.bin"), Path("validation.bin"), tokenizer=None)
CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current directory: a small run of 20 steps of 16 sequences of 32 tokens, and its token files."""
    folder = stage_folder(tmp_path / "repository")
    change_params(folder, SMALL | {"train.ngram_buckets": None})
    monkeypatch.chdir(folder)
    write_ids("train.bin", 3000)
    write_ids("validation.bin", 700)
    return folder


def read_run(**changes) -> Run:
    """Read the run of the current directory, with other values in the section `train`."""
    change_params(Path(), {f"train.{name}": value for name, value in changes.items()})
    return Run.read(FILES, read_params())


# What a run reads.


def test_files_of_different_tokenizers_are_refused():
    write_ids("train.bin", 100, TOKENIZER | {"sha256": "cd" * 32})

    with pytest.raises(IntegrityError, match=r"^train\.bin and validation\.bin were made with different tokenizers"):
        read_run()


@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_a_file_that_is_shorter_than_a_window_is_refused(name):
    write_ids(name, 32)

    with pytest.raises(DataError, match=f"^{name}: 32 tokens, one window of train.seq_len needs 33"):
        read_run()


def write_start(seed: int) -> dict[str, torch.Tensor]:
    """Write the folder `start`, from which a run may start, and return its weights."""
    config = read_run().config
    model = Gemma3Model(config, "exact")
    model.init_weights(torch.Generator().manual_seed(seed))
    weights = model.state_dict()
    record = {
        "config": dataclasses.asdict(config),
        "attend_across_documents": True,
        "tokenizer_sha256": TOKENIZER["sha256"],
        "best": {},
        "last": {},
    }
    save_models(Path("start"), weights, weights, record)
    return weights


def test_a_start_gives_its_weights_and_computes_in_the_numerics_of_the_run():
    numerics = "fast"
    wanted = write_start(seed=7)

    run = read_run(init_from="start", numerics=numerics)
    model = run.start(SINGLE_PROCESS, CPU).state.model

    assert model.numerics == numerics
    assert all(torch.equal(weight, wanted[name]) for name, weight in model.state_dict().items())


def test_other_weights_to_start_from_are_another_run():
    write_start(seed=7)
    first = read_run(init_from="start").fingerprint
    assert read_run(init_from="start").fingerprint == first

    write_start(seed=8)

    assert read_run(init_from="start").fingerprint != first


def test_spelling_needs_the_tokenizer_of_the_tokens(folder):
    change_params(folder, {"train.ngram_buckets": 64})
    (folder / "tokenizer").mkdir()
    write_trained_bpe(folder / "tokenizer", [["a text"]], 257)
    files = dataclasses.replace(FILES, tokenizer=folder / "tokenizer")

    with pytest.raises(IntegrityError, match=r"^train\.bin: made with tokenizer abababababab…, data/tokenizer is "):
        Run.read(files, read_params())


# Its folder.


def test_a_run_has_a_folder_of_the_main_repository(monkeypatch, tmp_path):
    """A queued experiment runs in a copy, for which DVC sets DVC_ROOT. Elsewhere it is that of another pipeline."""
    run = read_run()
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))

    assert run.folder == Path(".runs", run.fingerprint)

    copy = tmp_path / ".dvc/tmp/exps/tmp1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    assert run.folder == tmp_path / ".runs" / run.fingerprint


# What it builds.


def test_weights_and_windows_are_those_of_the_seed_and_odds_those_of_the_file():
    seed = 11
    run = read_run(seed=seed, sampled_vocab_size=25)

    training = run.start(SINGLE_PROCESS, CPU)

    drawn = Gemma3Model(run.config, "exact")
    drawn.init_weights(torch.Generator().manual_seed(seed))
    model = training.state.model
    assert all(torch.equal(p, wanted) for p, wanted in zip(model.parameters(), drawn.parameters(), strict=True))
    windows = TokenWindows(run.train.ids, seq_len=32, batch_size=16, seed=seed)
    assert np.array_equal(training.windows.starts(0), windows.starts(0))
    assert torch.equal(model.sampling_weights, sampling_weights(run.train.ids, 50))
    assert not torch.equal(uniform_draws(0, run.params), uniform_draws(1, run.params))


def test_exact_numerics_compute_in_float32_whatever_the_device_has(monkeypatch):
    monkeypatch.setattr(machine, "has_bfloat16", lambda device: True)
    fast = read_run(numerics="fast", dtype="auto").params
    exact = read_run(numerics="exact", dtype="auto").params

    assert choose_dtype(fast, GPU) == torch.bfloat16
    assert choose_dtype(exact, GPU) == torch.float32


# What it continues.


def test_a_checkpoint_that_does_not_fit_is_refused():
    run = read_run()
    training = run.start(SINGLE_PROCESS, CPU)
    saved = training.state.as_dict()
    del saved["optimizers"]

    with pytest.raises(IntegrityError, match=r"its newest checkpoint does not fit: .*; delete the folder to train"):
        training.resume(saved)

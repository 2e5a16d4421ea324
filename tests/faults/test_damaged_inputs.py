"""Every input of every stage, damaged: the stage names the file, keeps it as it is, and writes nothing.

With the right file again, the same command has the same outputs as before.
"""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lm.train.checkpoints import load_newest_checkpoint, save_checkpoint
from support.damage import DAMAGES, empty, extend, flip, remove, truncate, with_ids, with_values
from support.refusal import files_below, refused
from support.stages import STAGES, module_and_arguments, outputs_of, run_here, work_in_copy
from support.train_cases import die_at, in_state, only_run, run_stage

RAW = "data/raw"
TOKENIZER = "data/tokenizer"
TRAIN = "data/processed_datasets/train"
VALIDATION = "data/processed_datasets/validation"
MODELS = "data/models"


def files() -> dict[str, bytes]:
    """Return path → content of the working directory without the folders of runs."""
    return {name: content for name, content in files_below(Path()).items() if not name.startswith(".runs/")}


def restore(good: dict[str, bytes]) -> None:
    """Give the files of the working directory these contents again."""
    damaged = files()
    for name, content in good.items():
        if damaged.get(name) != content:
            Path(name).unlink(missing_ok=True)  # a link, which must not be written through
            Path(name).write_bytes(content)


# Every kind of input, with every damage.


def change_a_size(path: Path) -> None:
    """Flip a bit of a number in a table, which only the checksum of its page shows."""
    size = pq.read_table(path)["utf8_bytes"][0].as_py()
    content = bytearray(path.read_bytes())
    content[content.index(np.int64(size).tobytes())] ^= 1
    path.write_bytes(content)


# A flipped bit may give another record or table; DVC has their hashes, and `python src verify` reads them.
DAMAGES_OF_A_RECORD = (truncate, extend, empty, remove)
OTHER_ID = with_ids(lambda ids: [*ids, 300])
# stage → file → its damages. A file of which a record holds the SHA-256 has all of them. Where a reader has been shown
# once, one damage shows that the stage uses it.
INPUTS = {
    "make_tokenizer": {
        f"{RAW}/train.parquet": DAMAGES,
        f"{RAW}/manifest.json": DAMAGES_OF_A_RECORD,
    },
    "tokenize_train": {
        f"{RAW}/train.parquet": [flip],
        f"{RAW}/manifest.json": [truncate],
        f"{TOKENIZER}/ranks.tiktoken": DAMAGES,
        f"{TOKENIZER}/meta.json": [*DAMAGES_OF_A_RECORD, with_values(vocab_size=200)],
        f"{TOKENIZER}/tokenizer_config.json": [flip],
    },
    "tokenize_val": {f"{RAW}/validation.parquet": [flip]},
    "audit": {
        f"{RAW}/train.parquet": [flip],
        f"{RAW}/validation.parquet": [flip],
        f"{TOKENIZER}/tokenizer.json": [flip],
        f"{TRAIN}.bin": [flip],
        f"{VALIDATION}.json": [truncate],
    },
    "train": {
        f"{TRAIN}.bin": [*DAMAGES, OTHER_ID],
        f"{TRAIN}.json": DAMAGES_OF_A_RECORD,
        f"{VALIDATION}.bin": [flip],
        f"{VALIDATION}.json": [with_values(tokens=None)],
    },
    "eval": {
        f"{TRAIN}.bin": [flip],
        f"{VALIDATION}.bin": [flip],
        f"{TOKENIZER}/meta.json": [truncate],
        f"{MODELS}/best_model_params.pt": DAMAGES,
        f"{MODELS}/model.json": DAMAGES_OF_A_RECORD,
        "data/audit/contamination.parquet": [*DAMAGES_OF_A_RECORD, change_a_size],
    },
    "plot": {
        "data/evaluation/document_losses.parquet": [*DAMAGES_OF_A_RECORD, change_a_size],
        "plots/loss_by_position.csv": [extend, empty, remove],  # a truncated table of numbers is a table
    },
}


@pytest.mark.parametrize("stage", INPUTS)
def test_a_damaged_file_is_refused_and_the_right_one_gives_the_same_outputs(project, capsys, stage):
    good = files()
    shutil.rmtree(".runs")  # a finished run needs no tokens

    for name, damages in INPUTS[stage].items():
        for damage in damages:
            damage(Path(name))
            damaged = files()
            status = run_here(stage)
            sentence = refused(status, capsys.readouterr().err, 4)
            assert files() == damaged
            stream_of_sidecar = Path(name).with_suffix(".bin").name
            assert Path(name).name in sentence or stream_of_sidecar in sentence
            restore(good)

    overwrite_outputs(stage)
    assert run_here(stage) == 0
    assert files() == good


def overwrite_outputs(stage: str) -> None:
    """Put something else into all files that a stage writes."""
    for name in files():
        if any(Path(name).is_relative_to(output) for output in outputs_of(stage)):
            Path(name).write_text("old")


def test_no_stage_writes_through_a_link_into_the_cache(project, tmp_path):
    """DVC links the data into its cache, read-only: all outputs and inputs keep the cached bytes."""
    cache = tmp_path / "cache"
    shutil.copytree(project, cache, symlinks=True)
    cached = files_below(cache)
    for name in cached:
        if name.startswith(("data/", "metrics/", "plots/")):
            Path(name).unlink()
            os.link(cache / name, name)
            Path(name).chmod(0o444)
    shutil.rmtree(".runs")

    for stage in STAGES:
        assert run_here(stage) == 0, stage

    assert files_below(cache) == cached


# Checkpoints, finished runs, and models to begin with.


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def hostile(tensors: dict) -> dict:
    return tensors | {"payload": Payload()}


@pytest.fixture(scope="module")
def stopped(pipeline, tmp_path_factory):
    """The folder `pipeline` with a run that was killed after the checkpoints of two of its three steps."""
    folder = tmp_path_factory.mktemp("stopped") / "made"
    shutil.copytree(pipeline, folder, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.rmtree(".runs")
        killed = run_stage(in_state, 3, die_at, "torch.save", 1, "before", command=module_and_arguments("train"))
        assert killed.code == -signal.SIGKILL, killed.err
    return folder


@pytest.fixture
def resumable(stopped, tmp_path, monkeypatch):
    """The working directory: a copy of `stopped`; and the folder of the run."""
    work_in_copy(monkeypatch, stopped, tmp_path / "project")
    return only_run()


@pytest.mark.parametrize("damage", [flip, remove])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(resumable, pipeline, capsys, damage):
    newest = max(resumable.glob("checkpoint-*.pt"))
    damage(newest)

    assert run_here("train") == 0

    said = capsys.readouterr()
    assert "resumed at step 1 " in said.out
    assert "warning: " in said.err
    assert newest.name in said.err
    assert files_below(Path("data/models")) == files_below(pipeline / "data/models")


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("checkpoint-*.pt", flip),
        ("checkpoint-*.json", truncate),
    ],
)
def test_without_an_intact_checkpoint_nothing_starts_from_scratch(resumable, capsys, pattern, damage):
    for path in resumable.glob(pattern):
        damage(path)

    status = run_here("train")

    refused(status, capsys.readouterr().err, 4, f"{resumable}: none of 2 checkpoints is intact; delete")


def test_a_hostile_checkpoint_never_runs(resumable, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    state = load_newest_checkpoint(resumable)
    for step in (1, 2):
        save_checkpoint(resumable, step, hostile(state))

    status = run_here("train")

    said = capsys.readouterr().err
    refused(status, said, 4, "none of 2 checkpoints is intact")
    assert "weights_only=True" in said
    assert not Path("ran").exists()

    # It would run if it was unpickled.
    newest = max(resumable.glob("checkpoint-*.pt"))
    torch.load(newest, weights_only=False)
    assert Path("ran").exists()


def test_each_file_of_a_finished_run_is_checked_before_it_is_published(project, capsys):
    run = only_run()
    before = files()
    finished = [path for path in (run / "done").rglob("*") if path.is_file()]
    assert len(finished) == 8  # four of the model, the metrics, two curves, and the hashes

    for path in finished:
        good = path.read_bytes()
        flip(path)
        status = run_here("train")
        refused(status, capsys.readouterr().err, 4, f"delete {run} to train from scratch")
        assert files() == before
        path.write_bytes(good)

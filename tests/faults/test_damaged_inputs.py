"""Every input of every stage, damaged: the stage names the file, keeps it as it is, and writes nothing.

With the right file again, the same command has the same outputs as before.
"""

import gzip
import io
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lm.core.files import read_json, write_json
from lm.model.weights import save_tensors
from lm.train.checkpoints import load_newest_checkpoint, save_checkpoint
from support.damage import DAMAGES, empty, extend, flip, remove, replaced_by, truncate, with_ids, with_values
from support.refusal import files_below, refused
from support.stages import STAGES, module_and_arguments, outputs_of, run_here, work_in_copy
from support.train_cases import die_at, in_state, only_run, run_stage

RAW = "data/raw"
TOKENIZER = "data/tokenizer"
TRAIN = "data/processed_datasets/train"
VALIDATION = "data/processed_datasets/validation"
DOCUMENT = "data/local/more"

# Of these files a record holds the SHA-256, so that every damage is seen.
HASHED = [
    ("make_tokenizer", f"{RAW}/train.parquet"),
    ("tokenize_train", f"{RAW}/train.parquet"),
    ("tokenize_train", f"{TOKENIZER}/ranks.tiktoken"),
    ("tokenize_train", f"{TOKENIZER}/tokenizer_config.json"),
    ("tokenize_val", f"{RAW}/validation.parquet"),
    ("audit", f"{RAW}/train.parquet"),
    ("audit", f"{RAW}/validation.parquet"),
    ("audit", f"{TOKENIZER}/tokenizer.json"),
    ("audit", f"{TRAIN}.bin"),
    ("train", f"{TRAIN}.bin"),
    ("train", f"{VALIDATION}.bin"),
    ("eval", f"{TRAIN}.bin"),
    ("eval", f"{VALIDATION}.bin"),
    ("eval", "data/models/best_model_params.pt"),
]
# Of these a flipped bit may give another record or table; DVC has their hashes, and `python src verify` reads them.
FORMATTED = [
    ("make_tokenizer", f"{RAW}/manifest.json"),
    ("tokenize_train", f"{RAW}/manifest.json"),
    ("tokenize_train", f"{TOKENIZER}/meta.json"),
    ("audit", f"{VALIDATION}.json"),
    ("train", f"{TRAIN}.json"),
    ("train", f"{VALIDATION}.json"),
    ("eval", f"{TOKENIZER}/meta.json"),
    ("eval", "data/models/model.json"),
    ("eval", "data/audit/contamination.parquet"),
    ("plot", "data/evaluation/document_losses.parquet"),
]
INPUTS = [
    *((*row, DAMAGES) for row in HASHED),
    *((*row, (truncate, extend, empty, remove)) for row in FORMATTED),
    ("plot", "plots/loss_by_position.csv", (extend, empty, remove)),
]


def files() -> dict[str, bytes]:
    """Return path → content of the working directory without the folders of runs."""
    return {name: content for name, content in files_below(Path()).items() if not name.startswith(".runs/")}


def is_refused(capsys, stage: str, path: Path, damage, code: int, *parts: str) -> None:
    """Check that the stage refuses the damaged file by its name and changes nothing; then restore all files."""
    good = files()
    damage(path)
    damaged = files()
    if stage == "train":
        shutil.rmtree(".runs", ignore_errors=True)  # a finished run needs no tokens
    last = refused(run_here(stage), capsys.readouterr().err, code, *parts)
    assert any(name in last for name in (path.name, path.with_suffix(".bin").name, "local.path")), (damage, last)
    assert files() == damaged
    for name in damaged.keys() - good.keys():
        Path(name).unlink()
    for name, content in good.items():
        if damaged.get(name) != content:
            Path(name).unlink(missing_ok=True)
            Path(name).write_bytes(content)


def check_outputs(stage: str, expected: dict[str, bytes]) -> None:
    """Check that the stage, run again over other outputs, ends with those that it had."""
    for name in files():
        if any(name == output or name.startswith(f"{output}/") for output in outputs_of(stage)):
            Path(name).write_text("old")
    assert run_here(stage) == 0
    assert files() == expected


@pytest.mark.parametrize(("stage", "name", "damages"), INPUTS)
def test_a_damaged_file_is_refused(project, capsys, stage, name, damages):
    before = files()
    for damage in damages:
        is_refused(capsys, stage, Path(name), damage, 4)
    check_outputs(stage, before)


# Files that can be read, and do not hold what they must.


def parquet(table: pa.Table, **options) -> bytes:
    """Return a table as parquet."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="none", use_dictionary=False, **options)
    return file.getvalue()


def flipped(content: bytes) -> bytes:
    """Return bytes with another bit in their middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


GOOD = pa.table({"text": [f"row {i}" for i in range(300)]})
NOT_UTF_8 = pa.table({"text": pa.array([*[b"good"] * 150, b"\xff\xfe", *[b"good"] * 149]).view(pa.string())})
GZIP = gzip.compress(b"some words of text " * 99)

CONTENTS = [
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(parquet(GOOD)[:-100]), 3, "not a whole parquet file"),
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(b""), 3, "not a whole parquet file"),
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(flipped(parquet(GOOD, write_page_checksum=True))), 3, "row group 0"),
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(parquet(NOT_UTF_8, row_group_size=100)), 3, "row group 1"),
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(parquet(pa.table({"body": ["a"]}))), 3, "columns are body"),
    ("fetch", f"{DOCUMENT}.parquet", replaced_by(parquet(pa.table({"text": [5]}))), 3, "int64, not strings"),
    ("fetch", f"{DOCUMENT}.jsonl", replaced_by(b'{"text": "a"}\nno JSON\n'), 3, "line 2 is not JSON"),
    ("fetch", f"{DOCUMENT}.jsonl", replaced_by(b'{"text": "a"}\n{"body": "b"}\n'), 3, "line 2 has no 'text'"),
    ("fetch", f"{DOCUMENT}.csv", replaced_by(b"id,body\n1,b\n"), 3, "has no 'text' but id, body"),
    ("fetch", f"{DOCUMENT}.txt.gz", replaced_by(GZIP[:-9]), 3, "not a whole .gz file"),
    ("fetch", f"{DOCUMENT}.txt.zst", replaced_by(b"no such format"), 3, "not a whole .zst file"),
    ("fetch", f"{DOCUMENT}.txt", replaced_by("Grüße".encode("utf-16-le") * 9), 3, "not text but binary"),
    ("make_tokenizer", f"{RAW}/manifest.json", replaced_by(b"[]"), 4, "not a JSON object"),
    ("tokenize_train", f"{TOKENIZER}/meta.json", with_values(vocab_size=200), 4, "another eot_id, vocab_size"),
    ("train", f"{VALIDATION}.json", with_values(dtype="uint32"), 4, "tokens of uint32"),
    ("train", f"{VALIDATION}.json", with_values(sha256="ab" * 32), 4, f"its sidecar says {'ab' * 32}"),
    ("train", f"{VALIDATION}.json", with_values(format_version=2), 4, "format_version 2"),
    ("train", f"{VALIDATION}.json", with_values(tokens=None), 4, "tokens"),
    ("train", f"{TRAIN}.bin", with_ids(lambda ids: [*ids, 300]), 4, "token 300 at position"),
    ("train", f"{VALIDATION}.bin", with_ids(lambda ids: [*ids, 65535]), 4, "token 65535 at position"),
    ("train", f"{TRAIN}.bin", with_ids(lambda ids: ids[:32]), 3, "32 tokens, one window"),
    ("train", f"{VALIDATION}.bin", with_ids(lambda ids: ids[:32]), 3, "32 tokens, one window"),
]


@pytest.mark.parametrize(("stage", "name", "damage", "code", "words"), CONTENTS)
def test_a_file_that_holds_something_else_is_refused(project, capsys, stage, name, damage, code, words):
    is_refused(capsys, stage, Path(name), damage, code, words)


@pytest.mark.parametrize(
    ("stage", "name"),
    [("eval", "data/audit/contamination.parquet"), ("plot", "data/evaluation/document_losses.parquet")],
)
def test_a_bit_of_a_table_is_seen_by_its_checksum(project, capsys, stage, name):
    number = pq.read_table(name)["utf8_bytes"][0].as_py()
    content = bytearray(Path(name).read_bytes())
    content[content.index(np.int64(number).tobytes())] ^= 1
    is_refused(capsys, stage, Path(name), replaced_by(content), 4, "page integrity")


def test_a_source_without_text_is_refused(project, capsys):
    path = Path("data/local/texts.jsonl")
    is_refused(capsys, "fetch", path, empty, 3)
    before = files_below(Path("data/raw"))
    path.unlink()
    refused(run_here("fetch"), capsys.readouterr().err, 3, "data/local: no file matches")
    assert files_below(Path("data/raw")) == before


def test_one_window_of_tokens_is_enough(project):
    with_ids(lambda ids: ids[:33])(Path(f"{TRAIN}.bin"))
    with_ids(lambda ids: ids[:33])(Path(f"{VALIDATION}.bin"))
    assert run_here("train") == 0


def test_no_stage_writes_through_a_link_into_the_cache(project, tmp_path):
    """DVC links the data into its cache, read-only: all outputs and inputs keep the cached bytes."""
    shutil.copytree(project, tmp_path / "cache", symlinks=True)
    cached = files_below(tmp_path / "cache")
    for name in cached:
        if name.startswith(("data/", "metrics/", "plots/")):
            Path(name).unlink()
            os.link(tmp_path / "cache" / name, name)
            Path(name).chmod(0o444)
    shutil.rmtree(".runs")
    for stage in STAGES:
        assert run_here(stage) == 0, stage
    assert files_below(tmp_path / "cache") == cached


# Checkpoints, finished runs, and models to begin with.


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def hostile(tensors: dict) -> dict:
    return {**tensors, "payload": Payload()}


def another_shape(tensors: dict) -> dict:
    return {name: tensors[name] for name in tensors if name != "norm.weight"} | {"embed_tokens.weight": torch.ones(3)}


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


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(resumable, pipeline, capsys, damage):
    newest = max(resumable.glob("checkpoint-*.pt"))
    damage(newest)
    assert run_here("train") == 0
    said = capsys.readouterr()
    assert "resumed at step 1 " in said.out and "warning: " in said.err and newest.name in said.err
    assert files_below(Path("data/models")) == files_below(pipeline / "data/models")


@pytest.mark.parametrize("suffix", ["pt", "json"])
def test_without_an_intact_checkpoint_nothing_starts_from_scratch(resumable, capsys, suffix):
    paths = list(resumable.glob(f"checkpoint-*.{suffix}"))
    for damage in [truncate, empty] if suffix == "json" else [flip, truncate, extend, empty, remove]:
        good = {path: path.read_bytes() for path in paths}
        for path in paths:
            damage(path)
        refused(run_here("train"), capsys.readouterr().err, 4, f"{resumable}: none of 2 checkpoints is intact; delete")
        for path, content in good.items():
            path.write_bytes(content)
    assert run_here("train") == 0


def test_a_hostile_checkpoint_never_runs(resumable, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    state = load_newest_checkpoint(resumable)
    for step in (1, 2):
        save_checkpoint(resumable, step, hostile(state))
    status = run_here("train")
    said = capsys.readouterr().err
    refused(status, said, 4, "none of 2 checkpoints is intact")
    assert "rejected by torch.load(weights_only=True)" in said and not Path("ran").exists()
    torch.load(next(resumable.glob("checkpoint-*.pt")), weights_only=False)
    assert Path("ran").exists()  # the payload works


def test_a_checkpoint_of_another_shape_is_refused_by_the_names_that_differ(resumable, capsys):
    state = load_newest_checkpoint(resumable)
    save_checkpoint(resumable, 2, state | {"model": another_shape(state["model"])})
    refused(run_here("train"), capsys.readouterr().err, 4, "norm.weight", "embed_tokens.weight")


def test_each_file_of_a_finished_run_is_checked_before_it_is_published(project, capsys):
    run = only_run()
    before = files()
    finished = [path for path in (run / "done").rglob("*") if path.is_file()]
    assert len(finished) == 7  # three of the model, the metrics, two curves, and the hashes
    for path in finished:
        good = path.read_bytes()
        flip(path)
        refused(run_here("train"), capsys.readouterr().err, 4, f"delete {run} to train from scratch")
        assert files() == before
        path.write_bytes(good)
    shutil.rmtree(run)
    check_outputs("train", before)


@pytest.mark.parametrize("damage", [flip, hostile, another_shape])
def test_a_damaged_model_to_begin_with_is_refused(project, capsys, monkeypatch, damage):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    shutil.copytree("data/models", "data/init", dirs_exist_ok=True)
    path = Path("data/init/best_model_params.pt")
    record = read_json("data/init/model.json")
    if damage is flip:
        flip(path)
    else:  # with the right hash
        record["best"]["sha256"] = save_tensors(path, damage(torch.load(path, weights_only=True)))
        write_json("data/init/model.json", record)
    before = files()
    refused(run_here("train"), capsys.readouterr().err, 4, str(path))
    assert files() == before and not Path("ran").exists()

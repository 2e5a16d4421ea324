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
MODELS = "data/models"
DOCUMENT = "data/local/more"


def files() -> dict[str, bytes]:
    """Return path → content of the working directory without the folders of runs."""
    return {name: content for name, content in files_below(Path()).items() if not name.startswith(".runs/")}


def restore(good: dict[str, bytes]) -> None:
    """Give the files of the working directory these contents again, and remove all others."""
    damaged = files()
    for name in damaged.keys() - good.keys():
        Path(name).unlink()
    for name, content in good.items():
        if damaged.get(name) != content:
            Path(name).unlink(missing_ok=True)  # a link, which must not be written through
            Path(name).write_bytes(content)


def is_refused(capsys, stage: str, code: int, *parts: str) -> str:
    """Check that the stage ends with this code and sentence, and changes nothing; return the sentence."""
    before = files()
    if stage == "train":
        shutil.rmtree(".runs", ignore_errors=True)  # a finished run needs no tokens

    status = run_here(stage)

    sentence = refused(status, capsys.readouterr().err, code, *parts)
    assert files() == before
    return sentence


# Every kind of input, with every damage. Of these files a record holds the SHA-256, so that every damage is seen.
HASHED = [
    ("make_tokenizer", f"{RAW}/train.parquet"),
    ("tokenize_train", f"{TOKENIZER}/ranks.tiktoken"),
    ("train", f"{TRAIN}.bin"),
    ("eval", f"{MODELS}/best_model_params.pt"),
]
# Of these a flipped bit may give another record or table; DVC has their hashes, and `python src verify` reads them.
FORMATTED = [
    ("make_tokenizer", f"{RAW}/manifest.json"),
    ("tokenize_train", f"{TOKENIZER}/meta.json"),
    ("train", f"{TRAIN}.json"),
    ("eval", f"{MODELS}/model.json"),
    ("eval", "data/audit/contamination.parquet"),
    ("plot", "data/evaluation/document_losses.parquet"),
]
# A truncated table of numbers is a table.
WITHOUT_END = [("plot", "plots/loss_by_position.csv")]
# Other files, and files that other stages read, have the same readers: one damage shows that the stage uses them.
READ_ALIKE = [
    ("tokenize_train", f"{RAW}/train.parquet", flip),
    ("tokenize_train", f"{RAW}/manifest.json", truncate),
    ("tokenize_train", f"{TOKENIZER}/tokenizer_config.json", flip),
    ("tokenize_val", f"{RAW}/validation.parquet", flip),
    ("audit", f"{RAW}/train.parquet", flip),
    ("audit", f"{RAW}/validation.parquet", flip),
    ("audit", f"{TOKENIZER}/tokenizer.json", flip),
    ("audit", f"{TRAIN}.bin", flip),
    ("audit", f"{VALIDATION}.json", truncate),
    ("train", f"{VALIDATION}.bin", flip),
    ("train", f"{VALIDATION}.json", truncate),
    ("eval", f"{TRAIN}.bin", flip),
    ("eval", f"{VALIDATION}.bin", flip),
    ("eval", f"{TOKENIZER}/meta.json", truncate),
]
DAMAGED = [
    *((*row, damage) for row in HASHED for damage in DAMAGES),
    *((*row, damage) for row in FORMATTED for damage in (truncate, extend, empty, remove)),
    *((*row, damage) for row in WITHOUT_END for damage in (extend, empty, remove)),
    *READ_ALIKE,
]


@pytest.mark.parametrize(("stage", "name", "damage"), DAMAGED)
def test_a_damaged_file_is_refused(project, capsys, stage, name, damage):
    path = Path(name)
    damage(path)

    sentence = is_refused(capsys, stage, 4)

    stream_of_sidecar = path.with_suffix(".bin").name
    assert path.name in sentence or stream_of_sidecar in sentence


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("make_tokenizer", f"{RAW}/train.parquet"),
        ("tokenize_train", f"{RAW}/train.parquet"),
        ("tokenize_val", f"{RAW}/validation.parquet"),
        ("audit", f"{TRAIN}.bin"),
        ("train", f"{TRAIN}.bin"),
        ("eval", f"{TRAIN}.bin"),
        ("plot", "data/evaluation/document_losses.parquet"),
    ],
)
def test_with_the_right_file_again_a_stage_has_the_same_outputs(project, capsys, stage, name):
    good = files()
    remove(Path(name))
    is_refused(capsys, stage, 4)
    restore(good)
    overwrite_outputs(stage)

    assert run_here(stage) == 0

    assert files() == good


def overwrite_outputs(stage: str) -> None:
    """Put something else into all files that a stage writes."""
    for name in files():
        if any(Path(name).is_relative_to(output) for output in outputs_of(stage)):
            Path(name).write_text("old")


# Files that can be read, and do not hold what they must.


def parquet(table: pa.Table, **options) -> bytes:
    """Return a table as parquet."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="none", use_dictionary=False, **options)
    return file.getvalue()


def flipped(content: bytes) -> bytes:
    """Return bytes with another bit in their middle."""
    middle = len(content) // 2
    other_byte = bytes([content[middle] ^ 1])
    return content[:middle] + other_byte + content[middle + 1 :]


TEXTS = pa.table({"text": [f"row {i}" for i in range(300)]})
NOT_UTF_8 = pa.array([*[b"good"] * 150, b"\xff\xfe", *[b"good"] * 149]).view(pa.string())
GZIP = gzip.compress(b"some words of text " * 99)
# The suffix and the content of a file of own text, and what the sentence says.
OWN_TEXT = {
    "cut parquet": ("parquet", parquet(TEXTS)[:-100], "not a whole parquet file"),
    "a flipped bit": ("parquet", flipped(parquet(TEXTS, write_page_checksum=True)), "row group 0"),
    "not UTF-8": ("parquet", parquet(pa.table({"text": NOT_UTF_8}), row_group_size=100), "row group 1"),
    "another column": ("parquet", parquet(pa.table({"body": ["a"]})), "columns are body"),
    "numbers": ("parquet", parquet(pa.table({"text": [5]})), "int64, not strings"),
    "another column of CSV": ("csv", b"id,body\n1,b\n", "has no 'text' but id, body"),
    "cut gzip": ("txt.gz", GZIP[:-9], "not a whole .gz file"),
    "another compression": ("txt.zst", b"no such format", "not a whole .zst file"),
}


@pytest.mark.parametrize("case", OWN_TEXT)
def test_own_text_that_cannot_be_read_is_refused(project, capsys, case):
    """tests/lm/text/sources has the other faults of text."""
    suffix, content, words = OWN_TEXT[case]
    path = Path(f"{DOCUMENT}.{suffix}")
    path.write_bytes(content)

    is_refused(capsys, "fetch", 3, path.name, words)


def test_a_file_of_own_text_without_text_is_refused(project, capsys):
    empty(Path("data/local/texts.jsonl"))

    is_refused(capsys, "fetch", 3, "local.path")


def test_a_source_without_files_is_refused(project, capsys):
    remove(Path("data/local/texts.jsonl"))

    is_refused(capsys, "fetch", 3, "data/local: no file matches")


@pytest.mark.parametrize(
    ("stage", "name", "damage", "sentence"),
    [
        ("tokenize_train", f"{TOKENIZER}/meta.json", with_values(vocab_size=200), "another eot_id, vocab_size"),
        ("train", f"{VALIDATION}.json", with_values(tokens=None), "tokens"),
        ("train", f"{TRAIN}.bin", with_ids(lambda ids: [*ids, 300]), "token 300 at position"),
    ],
)
def test_a_file_that_describes_something_else_is_refused(project, capsys, stage, name, damage, sentence):
    path = Path(name)
    damage(path)

    is_refused(capsys, stage, 4, path.with_suffix("").name, sentence)


ONE_WINDOW = 33  # tokens; a window of 32 and its last target


@pytest.mark.parametrize("tokens", [TRAIN, VALIDATION])
def test_less_than_one_window_of_tokens_is_refused(project, capsys, tokens):
    path = Path(f"{tokens}.bin")
    with_ids(lambda ids: ids[: ONE_WINDOW - 1])(path)

    is_refused(capsys, "train", 3, path.name, "32 tokens, one window")


def test_one_window_of_tokens_is_enough(project):
    for tokens in (TRAIN, VALIDATION):
        with_ids(lambda ids: ids[:ONE_WINDOW])(Path(f"{tokens}.bin"))

    assert run_here("train") == 0


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("eval", "data/audit/contamination.parquet"),
        ("plot", "data/evaluation/document_losses.parquet"),
    ],
)
def test_a_bit_of_a_table_is_seen_by_its_checksum(project, capsys, stage, name):
    path = Path(name)
    number = pq.read_table(path)["utf8_bytes"][0].as_py()
    content = bytearray(path.read_bytes())
    place = content.index(np.int64(number).tobytes())
    content[place] ^= 1
    replaced_by(content)(path)

    is_refused(capsys, stage, 4, path.name, "page integrity")


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


def another_shape(tensors: dict) -> dict:
    """Leave out a tensor, and give another one a new shape."""
    changed = dict(tensors)
    del changed["norm.weight"]
    changed["embed_tokens.weight"] = torch.ones(3)
    return changed


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
    ("pattern", "damages"),
    [
        ("checkpoint-*.pt", DAMAGES),
        ("checkpoint-*.json", [truncate, empty]),
    ],
)
def test_without_an_intact_checkpoint_nothing_starts_from_scratch(resumable, capsys, pattern, damages):
    good = {path: path.read_bytes() for path in resumable.glob(pattern)}

    for damage in damages:
        for path in good:
            damage(path)
        status = run_here("train")
        sentence = f"{resumable}: none of 2 checkpoints is intact; delete"
        refused(status, capsys.readouterr().err, 4, sentence)
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
    assert "rejected by torch.load(weights_only=True)" in said
    assert not Path("ran").exists()


def test_the_hostile_checkpoint_would_run_if_it_was_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(hostile({}), "checkpoint.pt")

    torch.load("checkpoint.pt", weights_only=False)

    assert Path("ran").exists()


def test_a_checkpoint_of_another_shape_is_refused_by_the_names_that_differ(resumable, capsys):
    state = load_newest_checkpoint(resumable)
    state["model"] = another_shape(state["model"])
    save_checkpoint(resumable, 2, state)

    status = run_here("train")

    refused(status, capsys.readouterr().err, 4, "norm.weight", "embed_tokens.weight")


def test_each_file_of_a_finished_run_is_checked_before_it_is_published(project, capsys):
    run = only_run()
    before = files()
    finished = [path for path in (run / "done").rglob("*") if path.is_file()]
    assert len(finished) == 7  # three of the model, the metrics, two curves, and the hashes

    for path in finished:
        good = path.read_bytes()
        flip(path)
        status = run_here("train")
        refused(status, capsys.readouterr().err, 4, f"delete {run} to train from scratch")
        assert files() == before
        path.write_bytes(good)


@pytest.fixture
def start(project, monkeypatch):
    """The weights of a model to begin with, in the working directory."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    shutil.copytree("data/models", "data/init", dirs_exist_ok=True)
    return Path("data/init/best_model_params.pt")


def test_a_damaged_model_to_begin_with_is_refused(start, capsys):
    flip(start)

    is_refused(capsys, "train", 4, str(start))


@pytest.mark.parametrize("change", [hostile, another_shape])
def test_a_model_to_begin_with_that_holds_something_else_is_refused(start, capsys, change):
    """Its record has the right hash."""
    record = read_json("data/init/model.json")
    tensors = torch.load(start, weights_only=True)
    record["best"]["sha256"] = save_tensors(start, change(tensors))
    write_json("data/init/model.json", record)

    is_refused(capsys, "train", 4, str(start))

    assert not Path("ran").exists()

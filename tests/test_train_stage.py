"""What the train stage refuses, with exit code and sentence, and what they say beforehand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import train as train_stage
from lm.errors import IntegrityError
from lm.tokenfile import write_tokens
from lm.trained import load_trained
from workspace import Workspace

ARGUMENTS = ["train.bin", "validation.bin", "data/models", "metrics", "plots"]
TOKENIZER = {"kind": "bpe", "vocab_size": 50, "eot_id": 49, "sha256": "ab" * 32}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("template") / "ws")
    workspace.make_small()
    return workspace


@pytest.fixture
def workspace(template, monkeypatch):
    """The small copy as the working directory, with token files of a fixed cycle and its own parameters."""
    path = template.folder / "params.yaml"
    before = path.read_text()
    monkeypatch.chdir(template.folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    write_ids("train.bin", 3000)
    write_ids("validation.bin", 700)
    yield template
    path.write_text(before)


def write_ids(name, count, tokenizer=TOKENIZER, top=None):
    ids = (np.arange(count) * 7919 % 61 % 49).astype(np.uint16)
    if top is not None:
        ids[-1] = top
    meta = {"documents": 1, "utf8_bytes": count, "surprisal_bits": None, "tokenizer": tokenizer}
    write_tokens(Path(name), [ids], "uint16", lambda: meta)


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"train.peak_lr": "abc"}, 2, "params.yaml: train.peak_lr is 'abc', not a finite number"),
        ({"train.peak_lr": 0.0}, 2, "train.peak_lr is 0.0, needed: above 0"),
        ({"train.min_lr": 0.5}, 2, "train.min_lr is 0.5, needed: from 0 to peak_lr"),
        ({"train.warmup_steps": 20}, 2, "train.warmup_steps is 20, needed: fewer than the run's 20 steps"),
        ({"train.seq_len": 0}, 2, "train.seq_len is 0, needed: at least 1"),
        ({"train.seq_len": 512.0}, 2, "train.seq_len is 512.0, not an integer"),
        ({"train.seq_len": 48}, 2, "micro_batch_tokens is 512, needed: a multiple of seq_len 48"),
        ({"train.batch_tokens": 700}, 2, "batch_tokens is 700, needed: a multiple of micro_batch_tokens 512"),
        ({"train.max_tokens": 100}, 2, "max_tokens is 100, needed: at least batch_tokens 512"),
        ({"train.optimizer": "sgd"}, 2, "train.optimizer is 'sgd'; it must be one of muon, adamw"),
        ({"train.new": 1}, 2, "train.new is unknown; the nearest valid name is"),
        ({"model.name": "nope"}, 2, "models.nope is missing; there are: tiny, small"),
        ({"models.micro.n_kv_head": 3}, 2, "models.micro.n_head is 2, needed: a multiple of n_kv_head (3)"),
        ({"models.micro.max_seq_len": 16}, 2, "seq_len is 32, needed: at most models.micro.max_seq_len 16"),
    ],
)
def test_parameters_that_cannot_be_right_end_with_2(workspace, capsys, changes, code, sentence):
    workspace.change(**changes)
    assert train_stage.main(ARGUMENTS) == code
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: params.yaml: ") and sentence in last


@pytest.mark.parametrize(
    ("files", "code", "sentence"),
    [
        ({"validation.bin": {"count": 32}}, 3, "validation.bin: 32 tokens, one window of train.seq_len needs 33"),
        ({"train.bin": {"count": 32}}, 3, "32 tokens, one window of train.seq_len 32 needs 33"),
        ({"train.bin": {"count": 100, "top": 50}}, 4, "token 50 at position 99 is outside the vocabulary of 50"),
        (
            {"train.bin": {"count": 100, "tokenizer": TOKENIZER | {"sha256": "cd" * 32}}},
            4,
            "were made with different tokenizers",
        ),
    ],
)
def test_data_that_cannot_serve_is_named(workspace, capsys, files, code, sentence):
    for name, arguments in files.items():
        write_ids(name, **arguments)
    assert train_stage.main(ARGUMENTS) == code
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]


def test_one_window_is_enough(workspace, capsys):
    write_ids("train.bin", 33)
    write_ids("validation.bin", 33)
    assert train_stage.main(ARGUMENTS) == 0


def test_a_run_says_what_it_will_be_and_leaves_what_the_stage_promises(workspace, capsys):
    workspace.change(**{"models.micro.window": 64})
    assert train_stage.main(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    for word in ("parameters", "steps", "epochs", "work", "memory", "time"):
        assert word in out
    assert "sliding attention is never active" in err
    record = json.loads(Path("data/models/model.json").read_text())
    assert record["tokenizer_sha256"] == TOKENIZER["sha256"]
    assert record["best"]["step"] <= record["last"]["step"] == 20
    assert record["segments"][0]["from_step"] == 0
    rows = Path("plots/training.csv").read_text().splitlines()
    assert rows[0] == "step,tokens,lr,train_loss,grad_norm" and len(rows) == 11
    assert Path("plots/training.png").read_bytes().startswith(b"\x89PNG")


def begin_with(folder, edit=None):
    """A finished run's models in a folder of their own, its record edited."""
    assert train_stage.main(ARGUMENTS) == 0
    shutil.copytree("data/models", folder, dirs_exist_ok=True)
    record = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**record, **(edit or {})}))
    return record["best"]["sha256"]


def test_a_run_begins_with_the_weights_of_another(workspace, tmp_path, capsys):
    sha256 = begin_with(tmp_path / "start")
    before = Path("plots/validation.csv").read_text().splitlines()
    workspace.change(**{"train.init_from": str(tmp_path / "start")})
    assert train_stage.main(ARGUMENTS) == 0
    after = Path("plots/validation.csv").read_text().splitlines()
    best = min(float(row.split(",")[2]) for row in before[1:])
    assert float(after[1].split(",")[2]) == pytest.approx(best, abs=1e-6) and best < float(before[1].split(",")[2])
    assert json.loads(Path("data/models/model.json").read_text())["init_sha256"] == sha256


@pytest.mark.parametrize(
    ("edit", "changes", "sentence"),
    [
        ({"tokenizer_sha256": "cd" * 32}, {}, "trained with tokenizer cdcdcdcdcdcd…"),
        ({}, {"models.micro.d_ff": 48}, "d_ff is 32, not 48; choose the preset of that model as model.name"),
        ({"best": {"sha256": "00" * 32}}, {}, "its record says 0000"),
    ],
)
def test_a_run_does_not_begin_with_what_does_not_fit(workspace, tmp_path, capsys, edit, changes, sentence):
    begin_with(tmp_path / "start", edit)
    workspace.change(**{"train.init_from": str(tmp_path / "start"), **changes})
    assert train_stage.main(ARGUMENTS) == 4
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]


def test_patience_ends_the_stage_and_it_says_so(workspace, capsys):
    workspace.change(**{"train.patience_evals": 1, "train.peak_lr": 2.0, "train.warmup_steps": 0,
                        "train.eval_every_tokens": 512, "train.divergence_nats": None})  # fmt: skip
    assert train_stage.main(ARGUMENTS) == 0
    steps = json.loads(Path("metrics/train.json").read_text())["steps"]
    assert steps < 20 and f"ended at step {steps}: train.patience_evals 1 " in capsys.readouterr().out


def test_a_finished_run_is_republished_and_not_trained_again(workspace, capsys):
    assert train_stage.main(ARGUMENTS) == 0
    before = Path("data/models/best_model_params.pt").read_bytes()
    shutil.rmtree("data/models")
    capsys.readouterr()
    assert train_stage.main(ARGUMENTS) == 0
    assert "parameters" not in capsys.readouterr().out
    assert Path("data/models/best_model_params.pt").read_bytes() == before


def test_weights_that_are_not_the_recorded_ones_are_refused(workspace, capsys):
    assert train_stage.main(ARGUMENTS) == 0
    path = Path("data/models/best_model_params.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="sha256 is"):
        load_trained(Path("data/models"), torch.device("cpu"))

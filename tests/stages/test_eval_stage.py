"""Stage eval on a small untrained model: it scores what the model was trained with, and refuses everything else."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import eval as eval_stage
from lm.core.files import read_json, write_json
from lm.tokens.tokenfile import write_tokens
from support.model_cases import TEXTS, build, write_bpe, write_trained
from support.refusal import refused
from support.stages import change_params, stage_folder

MODELS, MODEL = Path("data/models"), Path("data/models/model.json")
TRAIN, VALIDATION = Path("data/processed_datasets/train.bin"), Path("data/processed_datasets/validation.bin")
CONTAMINATION = Path("data/audit/contamination.parquet")
ARGUMENTS = [
    "--models", str(MODELS), "--train", str(TRAIN), "--validation", str(VALIDATION), "--tokenizer", "data/tokenizer",
    "--audit", "data/audit", "--evaluation", "data/evaluation", "--metrics", "metrics", "--plots", "plots",
]  # fmt: skip


def write_split(path: Path, texts: list[str], tokenizer) -> dict:
    """Write a token file of these documents, and return its sidecar."""
    ids, _ = tokenizer.encode_documents(texts)
    origin = {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, "eot_id": tokenizer.eot_id}
    described = {"tokenizer": origin, "documents": len(texts), "surprisal_bits": None}
    return write_tokens(path, [ids], "uint16", lambda: described)


def write_audit(texts: list[str], validation_sha256: str) -> None:
    """Write the part of data/audit that eval reads."""
    columns = {
        "contaminated_fraction": [0.0] * len(texts),
        "utf8_bytes": [len(text.encode()) for text in texts],
    }
    table = pa.table(columns).replace_schema_metadata({"validation_sha256": validation_sha256})
    CONTAMINATION.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, CONTAMINATION)


def write_validation(texts: list[str], tokenizer) -> None:
    """Write a validation file, its audit, and a model that was trained with it."""
    meta = write_split(VALIDATION, texts, tokenizer)
    write_audit(texts, meta["sha256"])
    record = read_json(MODEL)
    write_json(MODEL, {**record, "data_sha256": {**record["data_sha256"], "validation": meta["sha256"]}})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all inputs of the stage, and the tokenizer."""
    folder = stage_folder(tmp_path_factory.mktemp("eval") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tokenizer = write_bpe(Path("data/tokenizer"))
        write_trained(MODELS, build(tokenizer.vocab_size), tokenizer)
        write_split(TRAIN, TEXTS[:50], tokenizer)
        write_validation(TEXTS[50:70], tokenizer)
    change_params(folder, {"eval.num_samples": 1, "eval.sample_tokens": 4})
    return folder, tokenizer


@pytest.fixture
def tokenizer(made, tmp_path, monkeypatch):
    """The tokenizer; the working directory is a copy of `made`."""
    folder, tokenizer = made
    shutil.copytree(folder, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    return tokenizer


def is_refused(capsys, code: int, *parts: str) -> None:
    """Check that the stage ends with this code and sentence, and writes nothing."""
    refused(eval_stage.main(ARGUMENTS), capsys.readouterr().err, code, *parts)
    assert not Path("data/evaluation").exists() and not Path("metrics").exists() and not Path("plots").exists()


def test_a_model_is_evaluated_on_the_text_it_was_trained_with(tokenizer):
    assert eval_stage.main(ARGUMENTS) == 0
    details, metrics = read_json("data/evaluation/details.json"), read_json("metrics/eval.json")
    losses = pq.read_table("data/evaluation/document_losses.parquet")
    bits = np.sum(losses["nats"].to_numpy()) / np.log(2)
    assert metrics["bits_per_byte"] == pytest.approx(bits / sum(len(text.encode()) for text in TEXTS[50:70]))
    assert read_json(MODEL)["best"]["sha256"].startswith(details["weights_sha256"])
    assert Path("plots/loss_by_position.csv").exists() and Path("data/evaluation/samples.md").exists()


def test_a_validation_file_of_another_training_is_refused(tokenizer, capsys):
    meta = write_split(VALIDATION, TEXTS[70:90], tokenizer)
    write_audit(TEXTS[70:90], meta["sha256"])  # so that nothing but the model's record tells them apart
    is_refused(capsys, 4, f"{MODEL}: trained with another {VALIDATION}; run `dvc repro`")
    record = read_json(MODEL)
    write_json(MODEL, {**record, "data_sha256": {"train": None, "validation": None}})  # an imported model
    assert eval_stage.main(ARGUMENTS) == 0


def test_an_audit_of_another_validation_file_is_refused(tokenizer, capsys):
    write_audit(TEXTS[50:70], "ab" * 32)
    is_refused(capsys, 4, f"{CONTAMINATION}: made from another validation file than {VALIDATION}; run `dvc repro`")


def test_a_model_of_another_tokenizer_is_refused(tokenizer, capsys):
    record = read_json(MODEL)
    write_json(MODEL, {**record, "tokenizer_sha256": "ab" * 32})
    is_refused(capsys, 4, "trained with tokenizer abab")


@pytest.mark.parametrize("path", [TRAIN, VALIDATION])
def test_tokens_of_another_tokenizer_are_refused(tokenizer, capsys, path):
    sidecar = path.with_suffix(".json")
    meta = read_json(sidecar)
    write_json(sidecar, {**meta, "tokenizer": {**meta["tokenizer"], "sha256": "ab" * 32}})
    is_refused(capsys, 4, f"{path}: made with tokenizer abab")


def test_ids_outside_the_vocabulary_are_refused(tokenizer, capsys):
    origin = {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, "eot_id": tokenizer.eot_id}
    ids = np.array([*range(60), tokenizer.vocab_size, tokenizer.eot_id], np.uint16)
    described = {"tokenizer": origin, "documents": 1, "surprisal_bits": None}
    meta = write_tokens(VALIDATION, [ids], "uint16", lambda: described)
    write_audit([""], meta["sha256"])
    record = read_json(MODEL)
    write_json(MODEL, {**record, "data_sha256": {**record["data_sha256"], "validation": meta["sha256"]}})
    is_refused(capsys, 4, f"{VALIDATION}: token {tokenizer.vocab_size} at position 60 is outside the vocabulary")


def test_text_of_less_than_a_window_is_refused(tokenizer, capsys):
    write_validation(["short"], tokenizer)
    is_refused(capsys, 3, f"{VALIDATION}: ", "one window of train.seq_len needs 33")


def test_a_file_of_ends_of_documents_alone_is_refused(tokenizer, capsys):
    write_validation([""] * 40, tokenizer)
    is_refused(capsys, 3, f"{VALIDATION}: holds no text, only ends of documents; use another slice")


def test_losses_that_are_not_finite_are_refused(tokenizer, capsys):
    model = build(tokenizer.vocab_size)
    with torch.no_grad():
        model.norm.weight[0] = torch.inf
    validation_sha256 = read_json(MODEL)["data_sha256"]["validation"]
    record = write_trained(MODELS, model, tokenizer)
    write_json(MODEL, {**record, "data_sha256": {**record["data_sha256"], "validation": validation_sha256}})
    is_refused(capsys, 3, f"{VALIDATION}: ", "losses are not finite")

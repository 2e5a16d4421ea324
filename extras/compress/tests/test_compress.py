"""compress and decompress: the same bytes on any machine, as many as the loss says, or one sentence and no file."""

import contextlib
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from extras.compress import compress, decompress
from extras.compress.files import HEADER_BYTES, load, split
from extras.compress.predictions import SCALE, Predictor
from lm.core.files import write_json
from lm.model.score import score_tokens
from lm.tokens.tokenfile import DTYPES, TokenFile, open_tokens, write_tokens
from support import ROOT
from support.model_cases import build, let_models_see_the_next_token, write_bpe, write_gemma_like, write_trained
from support.process import GENERIC
from support.refusal import files_below, refused
from support.tokenizer_cases import fuzzed_texts

SEQ_LEN = 32  # of support.model_cases.write_trained
STRIDE = 16  # by eval.stride_fraction of params.yaml
TEXTS = fuzzed_texts(4, seed=8)
TEXT = "\r\n".join(TEXTS) + "\ufeff<|endoftext|>\0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A folder with a tokenizer, two models of the same weights, a text, and a token file of several documents.

    text.rlmc is the text, compressed.
    """
    folder = tmp_path_factory.mktemp("compress")
    tokenizer = write_bpe(folder / "data" / "tokenizer")
    model = build(tokenizer.vocab_size, numerics="exact")
    record = write_trained(folder / "data" / "models", model, tokenizer)
    write_trained(folder / "within", model, tokenizer)
    write_json(folder / "within" / "model.json", record | {"attend_across_documents": False})
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (folder / "text").write_bytes(TEXT.encode())
    ids, _ = tokenizer.encode_documents(["", *TEXTS])
    write_ids(folder / "tokens.bin", ids, tokenizer)
    with contextlib.chdir(folder):
        assert compress.main(["text", "text.rlmc"]) == 0
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, model=model)


def write_ids(path: Path, ids: np.ndarray, tokenizer, dtype: str = "uint16") -> TokenFile:
    """Write a token file of these ids."""
    write_tokens(path, [ids.astype(DTYPES[dtype])], dtype, lambda: {"tokenizer": tokenizer.sidecar_entry()})
    return open_tokens(path)


@pytest.fixture(autouse=True)
def copied(trained, tmp_path, monkeypatch) -> None:
    """Work in a copy of the folder."""
    copy = tmp_path / "copy"
    shutil.copytree(trained.folder, copy)
    monkeypatch.chdir(copy)


@pytest.fixture
def run(capsys):
    """Return the function that runs a tool and returns what it prints."""

    def run(tool, *arguments) -> str:
        status = tool.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def reject(capsys):
    """Check that a tool ends with a status and one sentence, prints nothing else, and writes nothing."""

    def reject(tool, arguments, code, *parts) -> None:
        before = files_below(Path())
        status = tool.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        refused(status, captured.err, code, *parts)
        assert captured.out == ""
        assert files_below(Path()) == before

    return reject


@pytest.fixture
def compressed() -> Path:
    return Path("text.rlmc")


def bytes_of(name: str) -> bytes:
    return Path(name).read_bytes()


# The same bytes come back


@pytest.mark.parametrize("text", [TEXT, "a", "a" * 99], ids=["fuzzed", "letter", "run"])
def test_a_text_comes_back(run, text):
    Path("text").write_bytes(text.encode())

    run(compress, "text", "small")
    run(decompress, "small", "back")

    assert bytes_of("back") == text.encode()


@pytest.mark.parametrize(("models", "dtype"), [("data/models", "uint16"), ("within", "uint32")])
def test_a_token_file_of_several_documents_comes_back(run, trained, models, dtype):
    ids = open_tokens("tokens.bin").ids
    assert np.count_nonzero(ids == trained.tokenizer.eot_id) == 5
    assert len(ids) > 3 * SEQ_LEN
    write_ids(Path("wide.bin"), ids[:-1], trained.tokenizer, dtype)  # which ends within a document

    run(compress, "wide.bin", "small", "--models", models)
    run(decompress, "small", "again.bin", "--models", models)

    assert bytes_of("again.bin") == bytes_of("wide.bin")


@pytest.mark.slow
def test_the_processor_changes_no_byte(compressed, tmp_path):
    """In a process of its own, which compiles all loops."""
    environment = os.environ | GENERIC | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}

    for arguments in (["compress", "text", "by_others"], ["decompress", compressed, "back"]):
        subprocess.run([sys.executable, ROOT / "src", *arguments], env=environment, check=True)

    assert bytes_of("by_others") == compressed.read_bytes()
    assert bytes_of("back") == bytes_of("text")


def test_params_decide_the_windows_when_compressing_and_the_header_when_decompressing(run, trained, compressed):
    few_ids = open_tokens("tokens.bin").ids[3 : SEQ_LEN + 8]
    write_ids(Path("few.bin"), few_ids, trained.tokenizer)
    params = Path("params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("stride_fraction: 0.5", f"stride_fraction: {1 / SEQ_LEN}"))

    run(compress, "few.bin", "small")
    Path("params.yaml").unlink()
    run(decompress, "small", "again.bin")

    assert [split(path)[0].stride for path in (compressed, Path("small"))] == [STRIDE, 1]
    assert bytes_of("again.bin") == bytes_of("few.bin")


# The size is the loss


def test_the_size_is_the_loss_that_eval_reports(run):
    model, _, tokenizer = load(Path("within"), Path("data/tokenizer"))
    ids, _ = tokenizer.encode_documents(fuzzed_texts(30, seed=4))
    tokens = write_ids(Path("long.bin"), ids, tokenizer)

    run(compress, "long.bin", "small", "--models", "within")

    _, payload = split(Path("small"))
    nats, _ = score_tokens(model, tokens, SEQ_LEN, STRIDE, 8, torch.float32)
    loss_bytes = nats.sum(dtype=np.float64) / math.log(2) / 8
    assert len(payload) == pytest.approx(loss_bytes, rel=1e-3)


# Refusals


def test_what_is_not_a_text_is_rejected(reject):
    Path("latin").write_bytes(b"caf\xe9")
    Path("empty").write_bytes(b"")

    reject(compress, ["latin", "small"], 3, "latin", "byte 3", "UTF-8")
    reject(compress, ["empty", "small"], 3, "empty", "no text")


def test_a_text_that_the_tokenizer_loses_is_rejected(reject):
    """A tokenizer of Gemma's kind takes ▁ for a space."""
    tokenizer = write_gemma_like(Path("gemma"), Path("source"))
    write_trained(Path("other"), build(tokenizer.vocab_size), tokenizer)
    Path("lost").write_text("a ▁")

    options = ["--models", "other", "--tokenizer", "gemma"]
    reject(compress, ["lost", "small", *options], 3, "lost: the tokenizer does not give this text back")


def test_a_token_outside_the_vocabulary_is_rejected(reject, trained):
    too_large = trained.tokenizer.vocab_size
    ids = np.array([1, too_large], dtype=np.uint16)
    write_tokens(Path("large.bin"), [ids], "uint16", lambda: {"tokenizer": trained.tokenizer.sidecar_entry()})

    reject(compress, ["large.bin", "small"], 4, "large.bin", f"token {too_large} at position 1")


def test_a_token_file_of_another_tokenizer_is_rejected(reject, trained):
    other = trained.tokenizer.sidecar_entry() | {"sha256": "ab" * 32}
    write_ids(Path("other.bin"), np.array([1, 2]), SimpleNamespace(sidecar_entry=lambda: other))

    reject(compress, ["other.bin", "small"], 4, "other.bin", "made with tokenizer abab")


def test_another_tokenizer_or_model_is_rejected(reject, trained):
    write_bpe(Path("other_tokenizer"), seed=5)
    write_trained(Path("other_model"), build(trained.tokenizer.vocab_size, seed=1), trained.tokenizer)

    reject(compress, ["text", "out", "--tokenizer", "other_tokenizer"], 4, "trained with tokenizer")
    reject(decompress, ["text.rlmc", "out", "--tokenizer", "other_tokenizer"], 4, "trained with tokenizer")
    reject(decompress, ["text.rlmc", "out", "--models", "other_model"], 4, "text.rlmc", "with the weights")


@pytest.mark.parametrize("tool", [compress, decompress])
def test_wrong_paths_are_rejected(reject, tool):
    reject(tool, ["nothing", "out"], 2, "nothing")
    reject(tool, ["text", "data/../text"], 2, "data/../text", "another output")


def test_files_of_others_and_of_other_versions_are_rejected(reject):
    for content, sentence in ((b"PK\3\4", "`compress`"), (b"RLMC\1\0", "version 01")):
        Path("other.rlmc").write_bytes(content)

        reject(decompress, ["other.rlmc", "back"], 4, "other.rlmc", sentence)


def test_a_changed_file_is_rejected_before_the_model_computes(reject, compressed, monkeypatch):
    monkeypatch.setattr(decompress, "decode", None)
    content = compressed.read_bytes()
    damaged = [content[:5], content[:HEADER_BYTES], content[:-1], content + b"\0"]
    for place in (5, 13, 22, 37, HEADER_BYTES):
        flipped = bytes([content[place] ^ 1])
        damaged.append(content[:place] + flipped + content[place + 1 :])

    for each in damaged:
        compressed.write_bytes(each)
        reject(decompress, [compressed, "back"], 4, "text.rlmc", "SHA-256")


def test_a_result_with_other_bytes_is_rejected(reject, compressed, monkeypatch):
    """As on a processor where the model computes other numbers."""
    weights_here = Predictor.weights

    def other_weights(self, hidden):
        for weights in weights_here(self, hidden):
            weights[100] += SCALE // 1000
            yield weights

    monkeypatch.setattr(Predictor, "weights", other_weights)

    reject(decompress, [compressed, "back"], 4, "text.rlmc", "not what was compressed")


def test_a_model_without_finite_logits_is_rejected(reject, trained):
    model = build(trained.tokenizer.vocab_size)
    model.norm.weight.data[3] = math.nan
    write_trained(Path("other"), model, trained.tokenizer)

    reject(compress, ["text", "small", "--models", "other"], 3, "logits are not finite")


def test_a_model_that_sees_the_future_is_rejected(reject, monkeypatch):
    let_models_see_the_next_token(monkeypatch)

    reject(compress, ["text", "small"], 4, "text: the model sees the future")


def test_the_header_names_the_weights_and_the_text(compressed):
    header = compressed.read_bytes()[:HEADER_BYTES]

    record = json.loads(Path("data/models/model.json").read_text())
    assert header[:6] == b"RLMC\3\0"
    assert header[14:22].hex() == record["best"]["sha256"][:16]
    assert header[22:30] == hashlib.sha256(bytes_of("text")).digest()[:8]

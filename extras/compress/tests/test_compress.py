"""compress and decompress: the same bytes on any machine, as many as the loss says, or one sentence and no file."""

import contextlib
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
from extras.compress.files import load, split
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
    """A folder with a tokenizer, two models, a text, and a token file of several documents.

    text.rlmc is the text, compressed.
    """
    folder = tmp_path_factory.mktemp("compress")
    tokenizer = write_bpe(folder / "data" / "tokenizer")
    model = build(tokenizer.vocab_size, numerics="exact")
    record = write_trained(folder / "within", model, tokenizer)
    model.norm.weight.data.fill_(70)  # most tokens have a probability below 2^-30
    write_trained(folder / "data" / "models", model, tokenizer)
    write_json(folder / "within" / "model.json", record | {"attend_across_documents": False})
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (folder / "text").write_bytes(TEXT.encode())
    ids, _ = tokenizer.encode_documents(["", *TEXTS])
    write_ids(folder / "tokens.bin", ids, tokenizer)
    with contextlib.chdir(folder):
        assert compress.main(["text", "text.rlmc"]) == 0
    return SimpleNamespace(folder=folder, tokenizer=tokenizer)


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


def run(tool, *arguments: str) -> None:
    assert tool.main(list(arguments)) == 0


def bytes_of(name: str) -> bytes:
    return Path(name).read_bytes()


# The same bytes come back


@pytest.mark.parametrize("text", [TEXT, "a"], ids=["fuzzed", "letter"])
def test_a_text_comes_back(text):
    Path("text").write_bytes(text.encode())

    run(compress, "text", "small")
    run(decompress, "small", "back")

    assert bytes_of("back") == text.encode()


@pytest.mark.parametrize(("models", "dtype"), [("data/models", "uint16"), ("within", "uint32")])
def test_a_token_file_of_several_documents_comes_back(trained, models, dtype):
    ids = open_tokens("tokens.bin").ids
    write_ids(Path("wide.bin"), ids[:-1], trained.tokenizer, dtype)  # which ends within a document

    run(compress, "wide.bin", "small", "--models", models)
    run(decompress, "small", "again.bin", "--models", models)

    assert bytes_of("again.bin") == bytes_of("wide.bin")


@pytest.mark.slow
def test_the_processor_changes_no_byte(tmp_path):
    """In a new process, which compiles all loops."""
    environment = os.environ | GENERIC | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}

    for arguments in (["compress", "text", "by_others"], ["decompress", "text.rlmc", "back"]):
        subprocess.run([sys.executable, ROOT / "src", *arguments], env=environment, check=True)

    assert bytes_of("by_others") == bytes_of("text.rlmc")
    assert bytes_of("back") == bytes_of("text")


def test_params_decide_the_windows_when_compressing_and_the_header_when_decompressing(trained):
    write_ids(Path("few.bin"), open_tokens("tokens.bin").ids[3 : SEQ_LEN + 8], trained.tokenizer)
    params = Path("params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("stride_fraction: 0.5", f"stride_fraction: {1 / SEQ_LEN}"))

    run(compress, "few.bin", "small")
    Path("params.yaml").unlink()
    run(decompress, "small", "again.bin")

    assert split(Path("small"))[0].stride == 1
    assert bytes_of("again.bin") == bytes_of("few.bin")


def test_the_size_is_the_loss_that_eval_reports():
    model, _, tokenizer = load(Path("within"), Path("data/tokenizer"))
    ids, _ = tokenizer.encode_documents(fuzzed_texts(30, seed=4))
    tokens = write_ids(Path("long.bin"), ids, tokenizer)

    run(compress, "long.bin", "small", "--models", "within")

    _, payload = split(Path("small"))
    nats, _ = score_tokens(model, tokens, SEQ_LEN, STRIDE, 8, torch.float32)
    loss_bytes = nats.sum(dtype=np.float64) / math.log(2) / 8
    assert len(payload) == pytest.approx(loss_bytes, rel=1e-3)


# Refusals


@pytest.fixture
def reject(capsys):
    """Return a function that checks that a tool ends with one sentence and writes nothing."""

    def reject(tool, arguments, code, *parts) -> None:
        before = files_below(Path())
        status = tool.main(arguments)
        refused(status, capsys.readouterr().err, code, *parts)
        assert files_below(Path()) == before

    return reject


def test_what_cannot_be_compressed_or_decompressed_is_rejected(reject, trained):
    Path("latin").write_bytes(b"caf\xe9")
    Path("empty").write_bytes(b"")
    Path("zip").write_bytes(b"PK\3\4")
    Path("old.rlmc").write_bytes(b"RLMC\1\0")
    foreign = trained.tokenizer.sidecar_entry() | {"sha256": "ab" * 32}
    write_ids(Path("foreign.bin"), np.array([1, 2]), SimpleNamespace(sidecar_entry=lambda: foreign))
    write_bpe(Path("other"), seed=5)
    write_trained(Path("others"), build(trained.tokenizer.vocab_size, seed=1), trained.tokenizer)
    # A tokenizer of Gemma's kind takes ▁ for a space.
    gemma = write_gemma_like(Path("gemma"), Path("source"))
    write_trained(Path("gemmas"), build(gemma.vocab_size), gemma)
    Path("bar").write_text("a ▁")

    for tool, arguments, code, *parts in (
        (compress, ["nothing", "out"], 2, "nothing"),
        (compress, ["text", "data/../text"], 2, "data/../text", "another output"),
        (compress, ["latin", "out"], 3, "latin", "byte 3", "UTF-8"),
        (compress, ["empty", "out"], 3, "empty", "no text"),
        (compress, ["bar", "out", "--models", "gemmas", "--tokenizer", "gemma"], 3, "does not restore it"),
        (compress, ["foreign.bin", "out"], 4, "foreign.bin", "made with tokenizer abab"),
        (compress, ["text", "out", "--tokenizer", "other"], 4, "trained with tokenizer"),
        (decompress, ["text.rlmc", "out", "--models", "others"], 4, "text.rlmc", "with the weights"),
        (decompress, ["zip", "out"], 4, "zip", "`compress`"),
        (decompress, ["old.rlmc", "out"], 4, "old.rlmc", "version 01"),
    ):
        reject(tool, arguments, code, *parts)


def test_a_changed_file_is_rejected(reject):
    content = bytes_of("text.rlmc")
    other_header = content.replace(b"RLMC\3\0", b"RLMC\3\2")

    for each in (content[:5], content[:-1], content + b"\0", other_header):
        Path("text.rlmc").write_bytes(each)
        reject(decompress, ["text.rlmc", "back"], 4, "text.rlmc", "SHA-256")


def test_a_result_with_other_bytes_is_rejected(reject, monkeypatch):
    """As on a processor where the model computes other numbers."""
    weights_here = Predictor.weights

    def other_weights(self, hidden):
        for weights in weights_here(self, hidden):
            weights[100] += SCALE // 1000
            yield weights

    monkeypatch.setattr(Predictor, "weights", other_weights)

    reject(decompress, ["text.rlmc", "back"], 4, "text.rlmc", "not what was compressed")


def test_a_model_that_sees_the_future_is_rejected(reject, monkeypatch):
    let_models_see_the_next_token(monkeypatch)

    reject(compress, ["text", "small"], 4, "text: the model sees the future")

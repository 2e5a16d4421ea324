"""compress and decompress: the same bytes on any machine, as many as the loss says, or one sentence and no file."""

import json
import math
import os
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from extras.compress import compress, decompress
from extras.compress.files import HEADER_BYTES, load, split
from extras.compress.predictions import SCALE, Predictor
from lm.core.files import write_json
from lm.evaluate.generation import KVCache
from lm.model.score import score_tokens
from lm.tokens.tokenfile import DTYPES, TokenFile, open_tokens, write_tokens
from support import ROOT
from support.emulation import OTHER_PROCESSORS
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from support.refusal import files_below, refused
from support.tokenizer_cases import fuzzed_texts

SEQ_LEN = 32  # of support.model_cases.write_trained
STRIDE = 16  # by eval.stride_fraction of params.yaml
TEXTS = fuzzed_texts(4, seed=8)
TEXT = "\r\n".join(TEXTS) + "\ufeff<|endoftext|>\0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A folder with a tokenizer, two models of the same weights, a text and a token file of several documents."""
    folder = tmp_path_factory.mktemp("compress")
    tokenizer = write_bpe(folder / "data" / "tokenizer")
    model = build(tokenizer.vocab_size, numerics="exact")
    record = write_trained(folder / "data" / "models", model, tokenizer)
    write_trained(folder / "within", model, tokenizer)
    write_json(folder / "within" / "model.json", record | {"attend_across_documents": False})
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (folder / "text").write_bytes(TEXT.encode())
    write_ids(folder / "tokens.bin", tokenizer.encode_documents(["", *TEXTS])[0], tokenizer)
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, model=model)


def write_ids(path: Path, ids: np.ndarray, tokenizer, dtype: str = "uint16") -> TokenFile:
    """Write a token file of these ids."""
    write_tokens(path, [ids.astype(DTYPES[dtype])], dtype, lambda: {"tokenizer": tokenizer.sidecar_entry()})
    return open_tokens(path)


@pytest.fixture
def run(trained, tmp_path, monkeypatch, capsys):
    """A tool in a copy of the folder, as a function of its arguments: (exit status, standard output and error)."""
    for source in trained.folder.rglob("*"):
        target = tmp_path / source.relative_to(trained.folder)
        target.mkdir(exist_ok=True) if source.is_dir() else target.write_bytes(source.read_bytes())
    monkeypatch.chdir(tmp_path)

    def run_it(tool, *arguments):
        return tool.main([str(argument) for argument in arguments]), *capsys.readouterr()

    return run_it


@pytest.fixture
def compressed(run) -> Path:
    """The text, compressed."""
    assert run(compress, "text", "text.rlmc")[0] == 0
    return Path("text.rlmc")


# The basis: numbers that do not depend on how they are computed.


@pytest.mark.parametrize("models", ["data/models", "within"])
def test_hidden_states_token_by_token_have_the_bits_of_a_whole_window(trained, models):
    model, _, tokenizer = load(trained.folder / models, trained.folder / "data" / "tokenizer")
    window = open_tokens(trained.folder / "tokens.bin").ids[:40].tolist()
    assert tokenizer.eot_id in window[1:30]
    with torch.inference_mode():
        predictor = Predictor(model)
        cache = KVCache()
        whole = model.hidden(torch.tensor([window, window[::-1]]))[0]
        one_by_one = [predictor.last_hidden(window[: end + 1], cache) for end in range(5, 40)]
    assert torch.equal(torch.cat(one_by_one), whole[5:])


def test_weights_are_the_probabilities_as_integers(trained):
    hidden = 100 * torch.randn(300, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        predictor = Predictor(trained.model)
        weights = np.stack(list(predictor.weights(hidden)))
        alone = np.stack([next(predictor.weights(row[None])) for row in hidden])
        probabilities = trained.model.head(hidden).double().softmax(1).numpy()
    assert weights.dtype == np.int64 and weights.min() == 1 and (weights == alone).all()
    np.testing.assert_allclose(weights / SCALE, probabilities, rtol=1e-4, atol=2 / SCALE)


# The same bytes come back.


@pytest.mark.parametrize("text", [TEXT, "a", "two words", "a" * 99], ids=["fuzzed", "letter", "short", "run"])
def test_a_text_comes_back(run, text):
    Path("text").write_bytes(text.encode())
    status, printed, _ = run(compress, "text", "small")
    assert status == 0 and printed.startswith(f"{len(text.encode()):,} bytes of text → ")
    assert run(decompress, "small", "back")[0] == 0
    assert Path("back").read_bytes() == text.encode()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("models", ["data/models", "within"])
def test_a_token_file_comes_back(run, trained, models, dtype):
    ids = open_tokens("tokens.bin").ids
    assert np.count_nonzero(ids == trained.tokenizer.eot_id) == 5 and len(ids) > 3 * SEQ_LEN
    write_ids(Path("wide.bin"), ids, trained.tokenizer, dtype)
    assert run(compress, "wide.bin", "small", "--models", models)[0] == 0
    assert run(decompress, "small", "again.bin", "--models", models)[0] == 0
    assert Path("again.bin").read_bytes() == Path("wide.bin").read_bytes()


def test_a_token_file_may_end_within_a_document(run, trained):
    ids = open_tokens("tokens.bin").ids[:-1]
    write_ids(Path("cut.bin"), ids, trained.tokenizer)
    assert run(compress, "cut.bin", "small")[0] == run(decompress, "small", "again.bin")[0] == 0
    assert Path("again.bin").read_bytes() == Path("cut.bin").read_bytes()


def test_a_model_that_keeps_to_documents_gives_other_bytes(run):
    for name, models in (("across", "data/models"), ("own", "within")):
        assert run(compress, "tokens.bin", name, "--models", models)[0] == 0
    assert split(Path("across"))[1] != split(Path("own"))[1]


def test_threads_change_no_byte(run, compressed, monkeypatch):
    monkeypatch.setattr("lm.exact.cpu.PART_WORK", 1)  # each thread works, however little there is to do
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run(compress, "text", "by_two_threads")[0] == 0
        assert run(decompress, compressed, "back")[0] == 0
    finally:
        torch.set_num_threads(before)
    assert Path("by_two_threads").read_bytes() == compressed.read_bytes()
    assert Path("back").read_bytes() == Path("text").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("python", "variables"), OTHER_PROCESSORS)
def test_the_processor_changes_no_byte(run, compressed, python, variables, tmp_path):
    """In a process of its own, which compiles all loops."""
    environment = os.environ | variables | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    for arguments in (["compress", "text", "by_others"], ["decompress", str(compressed), "back"]):
        subprocess.run([*python, ROOT / "src", *arguments], env=environment, check=True)
    assert Path("by_others").read_bytes() == compressed.read_bytes()
    assert Path("back").read_bytes() == Path("text").read_bytes()


def test_each_window_may_have_one_new_token(run, trained):
    params = Path("params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("stride_fraction: 0.5", f"stride_fraction: {1 / SEQ_LEN}"))
    write_ids(Path("few.bin"), open_tokens("tokens.bin").ids[3 : SEQ_LEN + 8], trained.tokenizer)
    assert run(compress, "few.bin", "small")[0] == run(decompress, "small", "again.bin")[0] == 0
    assert split(Path("small"))[0].stride == 1
    assert Path("again.bin").read_bytes() == Path("few.bin").read_bytes()


def test_params_decide_the_windows_when_compressing_only(run, compressed):
    params = Path("params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("stride_fraction: 0.5", "stride_fraction: 0.25"))
    assert run(compress, "text", "finer")[0] == 0
    assert [split(Path(name))[0].stride for name in (compressed, "finer")] == [STRIDE, STRIDE // 2]
    Path("params.yaml").unlink()
    for name in (compressed, "finer"):
        assert run(decompress, name, "back")[0] == 0
        assert Path("back").read_bytes() == Path("text").read_bytes()


# The size is the loss.


@pytest.mark.parametrize("models", ["data/models", "within"])
def test_the_size_is_the_loss_that_eval_reports(run, models):
    model, _, tokenizer = load(Path(models), Path("data/tokenizer"))
    tokens = write_ids(Path("long.bin"), tokenizer.encode_documents(fuzzed_texts(120, seed=4))[0], tokenizer)
    nats, _ = score_tokens(model, tokens, SEQ_LEN, STRIDE, 8, torch.float32)
    _, printed, _ = run(compress, "long.bin", "small", "--models", models)
    _, payload = split(Path("small"))
    loss_bytes = nats.sum(dtype=np.float64) / math.log(2) / 8
    assert len(payload) == pytest.approx(loss_bytes, rel=1e-3)

    # And what is printed follows from it.
    num_bytes = int(tokenizer.bytes_of(tokens.ids).sum(dtype=np.int64))
    file_bytes = Path("small").stat().st_size
    assert printed == (
        f"{num_bytes:,} bytes of text → {file_bytes:,} bytes, of which 38 are the header; without it "
        f"{8 * (file_bytes - 38) / num_bytes:.4f} bits per byte, "
        f"{8 * (file_bytes - 38) * math.log(2) / len(tokens.ids):.4f} nats per token over {len(tokens.ids):,} tokens\n"
    )


def test_a_loss_that_is_too_low_is_warned_of(run, trained):
    meta = {"tokenizer": trained.tokenizer.sidecar_entry(), "documents": 5}
    ids = open_tokens("tokens.bin").ids
    for changed_documents, lines in ((0, 1), (1, 2)):
        counts = {"unknown_tokens": 0, "changed_documents": changed_documents}
        write_tokens(Path("lossy.bin"), [ids], "uint16", lambda counts=counts: meta | {"round_trip": counts})
        _, printed, _ = run(compress, "lossy.bin", "small")
        assert len(printed.splitlines()) == lines
    assert printed.endswith("lossy tokenizer: bits per byte are too low\n")


# Refusals.


def rejected(run, code: int, sentence: str, tool, *arguments) -> None:
    """Check that a tool ends with one sentence and this exit code, prints nothing else, and writes nothing."""
    before = files_below(Path())
    status, printed, error = run(tool, *arguments)
    refused(status, error, code, sentence)
    assert printed == "" and files_below(Path()) == before


@pytest.mark.parametrize(("content", "code", "sentence"), [
    (b"caf\xe9", 3, "text: byte 3 is not UTF-8"),
    (b"", 3, "text: contains no text"),
], ids=["latin-1", "empty"])  # fmt: skip
def test_what_is_not_a_text_is_rejected(run, content, code, sentence):
    Path("text").write_bytes(content)
    rejected(run, code, sentence, compress, "text", "small")


def test_a_text_that_the_tokenizer_loses_is_rejected(run, tmp_path):
    tokenizer = write_gemma_like(tmp_path / "gemma", tmp_path / "source")
    write_trained(tmp_path / "other", build(tokenizer.vocab_size), tokenizer)
    options = ("--models", "other", "--tokenizer", "gemma")
    Path("text").write_text("a ▁")  # which it takes for a space
    rejected(run, 3, "text: the tokenizer does not give this text back", compress, "text", "small", *options)
    Path("text").write_text("the é 漢")
    assert run(compress, "text", "small", *options)[0] == run(decompress, "small", "back", *options)[0] == 0
    assert Path("back").read_text() == "the é 漢"


def test_token_files_that_do_not_fit_are_rejected(run, trained):
    eot_id = trained.tokenizer.eot_id
    write_ids(Path("ends.bin"), np.full(5, eot_id), trained.tokenizer)
    rejected(run, 3, "ends.bin: contains no text", compress, "ends.bin", "small")
    write_ids(Path("large.bin"), np.array([1, eot_id + 1]), trained.tokenizer)
    rejected(run, 4, "large.bin: token 400 at position 1 is outside", compress, "large.bin", "small")
    other = SimpleNamespace(sidecar_entry=lambda: trained.tokenizer.sidecar_entry() | {"sha256": "ab" * 32})
    write_ids(Path("other.bin"), np.array([1, eot_id]), other)
    rejected(run, 4, "other.bin: made with tokenizer abababababab", compress, "other.bin", "small")


@pytest.mark.parametrize("tool", [compress, decompress])
def test_another_tokenizer_than_the_models_is_rejected(run, compressed, tool, tmp_path):
    write_bpe(tmp_path / "other", seed=5)
    file = "text" if tool is compress else compressed
    rejected(run, 4, "trained with tokenizer", tool, file, "out", "--tokenizer", "other")


@pytest.mark.parametrize("tool", [compress, decompress])
def test_wrong_paths_are_rejected(run, tool):
    rejected(run, 2, "nothing: is not a file", tool, "nothing", "out")
    rejected(run, 2, "data: is not a file", tool, "data", "out")
    rejected(run, 2, "data: is a folder; name another output", tool, "text", "data")
    rejected(run, 2, "data/../text: is the input; name another output", tool, "text", "data/../text")


def test_another_model_is_rejected(run, trained, compressed):
    write_trained(Path("other"), build(trained.tokenizer.vocab_size, seed=1), trained.tokenizer)
    rejected(run, 4, "text.rlmc: was compressed with the weights", decompress, compressed, "back", "--models", "other")


def test_files_of_others_and_of_other_versions_are_rejected(run, compressed):
    content = compressed.read_bytes()
    for changed, sentence in (
        (b"", "was not written by `compress`"),
        (b"PK" + content[2:], "was not written by `compress`"),
        (content[:4], "has version ; it must be 01"),
        (content[:4] + b"\2" + content[5:], "has version 02; it must be 01"),
    ):
        compressed.write_bytes(changed)
        rejected(run, 4, sentence, decompress, compressed, "back")


def test_a_truncated_or_changed_file_is_rejected_before_the_model_computes(run, compressed, monkeypatch):
    monkeypatch.setattr(decompress, "decode", None)
    content = compressed.read_bytes()
    lengths = [5, 20, 37, 38, len(content) // 2, len(content) - 1]
    places = [5, 6, 13, 14, 22, 30, 37, 38, len(content) - 1]
    changes = [content[:length] for length in lengths] + [content + b"\0"]
    changes += [content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in places]
    for changed in changes:
        compressed.write_bytes(changed)
        rejected(run, 4, "text.rlmc: is truncated or changed", decompress, compressed, "back")


def test_a_result_with_other_bytes_is_rejected(run, compressed, monkeypatch):
    """As on a processor where the model computes other numbers."""
    weights_here = Predictor.weights

    def other_weights(self, hidden):
        for weights in weights_here(self, hidden):
            weights[100] += SCALE // 1000
            yield weights

    monkeypatch.setattr(Predictor, "weights", other_weights)
    rejected(run, 4, "text.rlmc: the result is not what was compressed", decompress, compressed, "back")


def test_a_model_without_finite_logits_is_rejected(run, trained):
    model = build(trained.tokenizer.vocab_size)
    model.norm.weight.data[3] = math.nan
    write_trained(Path("other"), model, trained.tokenizer)
    rejected(run, 3, "logits are not finite", compress, "text", "small", "--models", "other")


def test_the_header_names_the_weights_the_text_and_the_windows(compressed):
    content = compressed.read_bytes()
    model = json.loads(Path("data/models/model.json").read_text())
    text = open_digest(Path("text"))
    assert content[:6] == b"RLMC\1\0"
    assert struct.unpack(">II", content[6:14])[1] == STRIDE
    assert content[14:22].hex() == model["best"]["sha256"][:16] and content[22:30].hex() == text
    assert HEADER_BYTES == 38


def open_digest(path: Path) -> str:
    """Return the first 16 digits of the SHA-256 of a file, by another program."""
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout[:16]

"""Tokenizing a slice gives the same bytes for any number of workers, any chunk size and both encoders."""

import json
import shutil

import numpy as np
import pytest

import tokenize_split
from lm.core.errors import IntegrityError
from lm.core.files import sha256_file
from lm.text.documents import open_text
from lm.text.parquet import write_documents
from lm.text.slices import Slice
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.config import TokenizeRuntime
from lm.tokenizer.encoding import encode_chunk
from lm.tokenizer.gigatoken_encoder import Gigatoken
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.round_trip import check_ids
from lm.tokens.tokenfile import open_tokens
from support.mixture_cases import write_source
from support.texts import make_texts
from tokenize_split import tokenize_slice


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenize")
    raw = folder / "raw"
    tokenizer = folder / "tokenizer"
    texts = make_texts()
    write_source(raw, per_file=120, text=texts)
    tokenizer.mkdir()
    write_trained_bpe(tokenizer, [texts], 300)
    return raw, tokenizer, texts


def tokenize(text_slice, raw, folder, out, runtime):
    return tokenize_slice(raw, folder, text_slice, out, runtime)[0]


@pytest.mark.parametrize(
    "damage", [lambda path: write_documents(path, ["another"]), lambda path: path.write_bytes(b"")]
)
def test_a_file_that_differs_from_the_manifest_is_refused(folders, tmp_path, damage):
    """A file that cannot be read is reported by its hash too, not by the error of its reader."""
    raw = shutil.copytree(folders[0], tmp_path / "raw")
    tokenizer = folders[1]
    path = raw / "text.parquet"
    damage(path)
    with pytest.raises(IntegrityError, match=f"text.parquet: sha256 is {sha256_file(path)}, the manifest says"):
        tokenize(Slice("text", 0, None), raw, tokenizer, tmp_path / "x.bin", TokenizeRuntime(1, 1000))
    assert not list(tmp_path.glob("*x.*"))


@pytest.mark.parametrize("has_gigatoken", [True, False])
def test_bytes_do_not_depend_on_workers_or_chunks(folders, tmp_path, monkeypatch, has_gigatoken):
    raw, tokenizer, texts = folders
    if not has_gigatoken:
        monkeypatch.setattr(tokenize_split, "open_gigatoken", lambda tokenizer: None)
    hashes = set()
    for num_processes, chunk_chars in ((1, 10**9), (1, 1), (3, 1000)):
        out = tmp_path / f"{num_processes}-{chunk_chars}.bin"
        runtime = TokenizeRuntime(num_processes, chunk_chars)
        meta, encoder = tokenize_slice(raw, tokenizer, Slice("text", 0, None), out, runtime)
        hashes.add(sha256_file(out))
        assert json.loads(out.with_suffix(".json").read_text()) == meta
        assert encoder.startswith("gigatoken, 8 documents by tiktoken" if has_gigatoken else "the tokenizer itself")
    assert len(hashes) == 1
    expected = load_tokenizer(tokenizer)
    ids = [i for text in texts for i in [*expected.encode(text), expected.eot_id]]
    assert open_tokens(out).ids.tolist() == ids
    assert meta["documents"] == len(texts)
    assert meta["characters"] == sum(map(len, texts))
    assert meta["utf8_bytes"] == sum(len(text.encode()) for text in texts)
    assert ids.count(expected.eot_id) == len(texts)


class Panic(BaseException):
    """Stands for a panic in Rust."""


@pytest.mark.parametrize(("num_right", "panics"), [(0, False), (1, True)])
def test_a_failing_gigatoken_is_replaced(folders, tmp_path, monkeypatch, capsys, num_right, panics):
    raw, tokenizer, _ = folders
    text_slice = Slice("text", 0, None)
    runtime = TokenizeRuntime(2, 1000)
    expected = tokenize(text_slice, raw, tokenizer, tmp_path / "expected.bin", runtime)
    encode = Gigatoken.encode_texts
    calls = []

    def reversed_at_the_end(self, texts):
        calls.append(texts)
        if len(calls) > num_right and panics:
            raise Panic("range end index 5")
        ids = encode(self, texts)
        return ids if len(calls) <= num_right else ids[::-1]

    monkeypatch.setattr(Gigatoken, "encode_texts", reversed_at_the_end)
    meta, encoder = tokenize_slice(raw, tokenizer, text_slice, tmp_path / "x.bin", runtime)
    assert meta == expected and sha256_file(tmp_path / "x.bin") == sha256_file(tmp_path / "expected.bin")
    assert encoder == "the tokenizer itself"
    assert "warning: gigatoken: " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected.bin", "expected.json", "x.bin", "x.json"]


def test_ids_of_other_text_are_refused(folders):
    raw, folder, _ = folders
    tokenizer = load_tokenizer(folder)
    chunk = next(open_text(raw, Slice("text", 0, None)).chunks(1000))
    ids, _ = encode_chunk(chunk, tokenizer)
    longer = chunk._replace(utf8_bytes=chunk.utf8_bytes + 1)
    one_more_end = np.append(ids, tokenizer.eot_id)
    open_end = np.roll(ids, 1)
    for bad, wanted in ((one_more_end, chunk), (open_end, chunk), (ids[1:], chunk), (ids, longer)):
        with pytest.raises(IntegrityError, match=f"{len(chunk.texts)} documents of .* from document 0 on"):
            check_ids(bad, wanted, tokenizer)
    with pytest.raises(IntegrityError, match="documents of"):
        encode_chunk(longer, tokenizer)

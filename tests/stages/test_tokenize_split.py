"""Tokenizing a slice gives the same bytes for any number of workers, any chunk size and both encoders."""

import pytest

import tokenize_split
from lm.core.files import read_json
from lm.core.inputs import StageInputs
from lm.text import documents
from lm.text.slices import Slice
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from support.mixture_cases import write_source
from support.tokenizer_cases import fuzzed_texts
from tokenize_split import tokenize_slice

WHOLE = Slice("text", 0, None)
INPUTS = StageInputs("none")  # of a stage that dvc.yaml does not have: anything may change


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the text and of its tokenizer, and the texts."""
    folder = tmp_path_factory.mktemp("tokenize")
    raw = folder / "raw"
    tokenizer = folder / "tokenizer"
    texts = [text for text in fuzzed_texts(300, seed=6) if text]
    write_source(raw, per_file=120, text=texts)
    tokenizer.mkdir()
    write_trained_bpe(tokenizer, [texts], 300)
    return raw, tokenizer, texts


@pytest.mark.parametrize(
    ("num_processes", "chunk_chars", "encoder"),
    [
        (1, 1, "gigatoken"),
        (3, 1000, "the tokenizer itself"),
    ],
)
def test_the_ids_are_those_of_each_document_for_any_workers_chunks_and_encoder(
    folders, tmp_path, monkeypatch, num_processes, chunk_chars, encoder
):
    if encoder != "gigatoken":
        monkeypatch.setattr(tokenize_split, "open_gigatoken", lambda tokenizer: None)
    raw, folder, texts = folders
    monkeypatch.setattr(documents, "CHUNK_CHARS", chunk_chars)
    out = tmp_path / "x.bin"

    meta, found_encoder = tokenize_slice(raw, folder, WHOLE, out, num_processes, INPUTS)

    assert found_encoder == encoder
    tokenizer = load_tokenizer(folder)
    ids = [i for text in texts for i in [*tokenizer.encode(text), tokenizer.eot_id]]
    assert open_tokens(out).ids.tolist() == ids
    assert ids.count(tokenizer.eot_id) == len(texts)
    assert read_json(out.with_suffix(".json")) == meta
    assert meta["documents"] == len(texts)
    assert meta["characters"] == sum(map(len, texts))
    assert meta["utf8_bytes"] == sum(len(text.encode()) for text in texts)

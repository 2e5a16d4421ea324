"""Tokenizing a slice gives the same bytes for any number of workers, any chunk size and both encoders."""

from pathlib import Path

import pytest

import tokenize_split
from lm.text import documents
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from support.stages import change_params
from support.tokenize_cases import make_project, tokenize, write_raw
from support.tokenizer_cases import fuzzed_texts

TEXTS = [text for text in fuzzed_texts(300, seed=6) if text]


@pytest.mark.parametrize(
    ("num_processes", "chunk_chars", "encoder"),
    [
        (1, 1, "gigatoken"),
        (3, 1000, "the tokenizer itself"),
    ],
)
def test_the_ids_are_those_of_each_document_for_any_workers_chunks_and_encoder(
    tmp_path, monkeypatch, capsys, num_processes, chunk_chars, encoder
):
    monkeypatch.chdir(tmp_path)
    make_project()
    write_raw(TEXTS)
    Path("bpe").mkdir()
    write_trained_bpe(Path("bpe"), [TEXTS], 300)
    change_params(Path(), {"tokenize.num_processes": num_processes}, "runtime.yaml")
    monkeypatch.setattr(documents, "CHUNK_CHARS", chunk_chars)
    if encoder != "gigatoken":
        monkeypatch.setattr(tokenize_split, "open_gigatoken", lambda tokenizer: None)

    assert tokenize(folder="bpe") == 0

    assert f"encoded by {encoder}\n" in capsys.readouterr().out
    tokenizer = load_tokenizer("bpe")
    tokens = open_tokens("out/train.bin")
    ids = [i for text in TEXTS for i in [*tokenizer.encode(text), tokenizer.eot_id]]
    assert tokens.ids.tolist() == ids
    assert ids.count(tokenizer.eot_id) == len(TEXTS)
    assert tokens.meta["documents"] == len(TEXTS)
    assert tokens.meta["characters"] == sum(map(len, TEXTS))
    assert tokens.meta["utf8_bytes"] == sum(len(text.encode()) for text in TEXTS)

"""Ids equal the reference's ids for any text, and a changed folder is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import load_tokenizer, token_dtype
from support.tokenizer_cases import (
    SPECIAL,
    TEXTS,
    TIKTOKEN_CACHE,
    auto_ids,
    write_bpe,
    write_gemma_like,
    write_gpt2,
)


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module")
def gemma_source(tmp_path_factory):
    return write_gemma_like(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def gemma_folder(gemma_source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma_imported")
    write_huggingface(folder, gemma_source, repo="google/like", revision="main", commit="a" * 40)
    return folder


@pytest.fixture(scope="module")
def gemma_tokenizer(gemma_folder):
    return load_tokenizer(gemma_folder)


def test_gpt2_gives_the_ids_of_tiktoken(tmp_path, monkeypatch):
    tokenizer = load_tokenizer(write_gpt2(tmp_path))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    reference = tiktoken.get_encoding("gpt2")
    texts = TEXTS[:8000]

    ids = [tokenizer.encode(text) for text in texts]

    assert ids == reference.encode_ordinary_batch(texts)
    assert tokenizer.vocab_size == reference.n_vocab
    assert tokenizer.eot_id == reference.eot_token


DOCUMENTS = ["", "a ", " b", "\n", "\n", *SPECIAL, *TEXTS[:2000]]


def test_each_document_ends_with_eot_and_its_tokens_have_its_bytes(bpe_folder):
    tokenizer = load_tokenizer(bpe_folder)

    ids, lengths = tokenizer.encode_documents(DOCUMENTS)

    expected = [[*tokenizer.encode(text), tokenizer.eot_id] for text in DOCUMENTS]
    assert lengths.tolist() == [len(document) for document in expected]
    assert ids.tolist() == [token_id for document in expected for token_id in document]
    assert ids.dtype == np.dtype("<u2")
    assert tokenizer.decode_bytes(ids) == "".join(text + "<|endoftext|>" for text in DOCUMENTS).encode()
    assert tokenizer.count_bytes(ids) == sum(len(text.encode()) for text in DOCUMENTS)
    assert tokenizer.token_bytes[tokenizer.eot_id] == 0


def test_a_lone_surrogate_becomes_the_replacement_character(bpe_folder, gemma_tokenizer):
    text = "a\ud800b \ud83d\ude00\ud83d"

    for tokenizer in (load_tokenizer(bpe_folder), gemma_tokenizer):
        expected = tokenizer.encode("a\ufffdb \U0001f600\ufffd")
        ids, _ = tokenizer.encode_documents([text])

        assert ids.tolist() == [*expected, tokenizer.eot_id]
        assert tokenizer.encode(text) == expected


def change_meta(folder: Path, **changes) -> None:
    meta = read_json(folder / "meta.json")
    write_json(folder / "meta.json", meta | changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": 70_000}, r"uint16.*70000"),
        ({"eot_id": "1"}, "eot_id is '1'"),
        ({"pretokenizer": "cl100k"}, "pretokenizer is 'cl100k'; it must be 'gpt2'"),
    ],
)
def test_an_inconsistent_meta_json_is_refused(bpe_folder, tmp_path, changes, sentence):
    folder = shutil.copytree(bpe_folder, tmp_path / "copy")
    change_meta(folder, **changes)

    with pytest.raises(IntegrityError, match=sentence):
        load_tokenizer(folder)


def test_the_last_id_fits_into_the_dtype():
    assert [token_dtype(2**16 + more) for more in (0, 1)] == ["uint16", "uint32"]


def test_an_id_outside_the_vocabulary_is_refused(gemma_folder, gemma_tokenizer, tmp_path):
    folder = shutil.copytree(gemma_folder, tmp_path / "copy")
    largest_id = max(gemma_tokenizer.encode("漢"))
    change_meta(folder, vocab_size=largest_id, dtype="uint16")

    with pytest.raises(IntegrityError, match=f"gave the id {largest_id}, but meta.json says {largest_id}"):
        load_tokenizer(folder).encode_documents(["漢"])


# A tokenizer of Gemma's kind


def test_a_gemma_like_tokenizer_gives_the_ids_of_its_source(gemma_source, gemma_folder, gemma_tokenizer):
    texts = TEXTS[:1000] + SPECIAL

    ids = [gemma_tokenizer.encode(text) for text in texts]

    assert ids == auto_ids(gemma_source, texts, split_special_tokens=True)
    assert ids == auto_ids(gemma_folder, texts)
    all_ids, _ = gemma_tokenizer.encode_documents(texts)
    assert all_ids.dtype == np.dtype("<u4")
    assert all_ids.tolist() == [each for own in ids for each in [*own, gemma_tokenizer.eot_id]]


@pytest.fixture(scope="module")
def gemma_vocab(gemma_source) -> dict[str, int]:
    return read_json(gemma_source / "tokenizer.json")["model"]["vocab"]


def test_the_texts_of_the_tokens_are_the_text(gemma_tokenizer, gemma_vocab):
    texts = ["plain words, é 漢字", "👋\n\n<tag>"]

    ids, _ = gemma_tokenizer.encode_documents(texts)

    content = "".join(texts).encode()
    token_texts = [gemma_tokenizer.token_texts.get(token_id, b"") for token_id in ids.tolist()]
    assert b"".join(token_texts) == content
    assert gemma_tokenizer.token_bytes[ids].sum() == len(content)
    assert gemma_vocab["<bos>"] not in gemma_tokenizer.token_texts

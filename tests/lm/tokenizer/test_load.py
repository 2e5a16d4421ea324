"""Ids equal the reference's ids for any text, and a changed folder is refused."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from lm.core.errors import IntegrityError
from lm.core.files import write_json
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import load_tokenizer, token_dtype
from support.tokenizer_cases import (
    GEMMA_LIKE_SIZE,
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
def gpt2_folder(tmp_path_factory):
    return write_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(params=["bpe_folder", "gpt2_folder"])
def byte_level_folder(request):
    return request.getfixturevalue(request.param)


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


def test_gpt2_gives_the_ids_of_tiktoken(gpt2_folder, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    reference = tiktoken.get_encoding("gpt2")

    tokenizer = load_tokenizer(gpt2_folder)

    assert [tokenizer.encode(text) for text in TEXTS[:8000]] == reference.encode_ordinary_batch(TEXTS[:8000])
    assert tokenizer.vocab_size == reference.n_vocab
    assert tokenizer.eot_id == reference.eot_token


def test_auto_tokenizer_gives_the_same_ids(byte_level_folder):
    tokenizer = load_tokenizer(byte_level_folder)
    texts = TEXTS[:2000] + SPECIAL
    assert auto_ids(byte_level_folder, texts) == [tokenizer.encode(text) for text in texts]


def test_each_document_ends_with_eot(byte_level_folder):
    tokenizer = load_tokenizer(byte_level_folder)
    texts = ["", "a ", " b", "\n", "\n", *SPECIAL, *TEXTS[:2000]]

    ids, lengths = tokenizer.encode_documents(texts)

    documents = [[*tokenizer.encode(text), tokenizer.eot_id] for text in texts]
    assert ids.tolist() == [token_id for document in documents for token_id in document]
    assert lengths.tolist() == [len(document) for document in documents]
    assert ids.dtype == np.dtype("<u2")
    assert lengths.dtype == np.int64


def test_the_bytes_of_tokens_are_those_of_the_text(byte_level_folder):
    tokenizer = load_tokenizer(byte_level_folder)
    texts = ["", "a ", " b", "\n", "\n", *SPECIAL, *TEXTS[:2000]]
    ids, _ = tokenizer.encode_documents(texts)

    assert tokenizer.is_byte_level
    assert tokenizer.decode_bytes(ids) == "".join(text + "<|endoftext|>" for text in texts).encode()
    assert tokenizer.count_bytes(ids) == sum(len(text.encode()) for text in texts)
    assert tokenizer.bytes_of(ids).tolist() == tokenizer.token_bytes[ids].tolist()
    assert tokenizer.token_bytes[tokenizer.eot_id] == 0


@pytest.mark.parametrize(
    ("text", "well_formed"), [("a\ud800b", "a\ufffdb"), ("\ud83d\ude00\ud83d", "\U0001f600\ufffd")]
)
def test_a_lone_surrogate_becomes_the_replacement_character(bpe_folder, gemma_tokenizer, text, well_formed):
    for tokenizer in (load_tokenizer(bpe_folder), gemma_tokenizer):
        expected = tokenizer.encode(well_formed)

        ids, _ = tokenizer.encode_documents([text])

        assert tokenizer.encode(text) == expected
        assert ids.tolist() == [*expected, tokenizer.eot_id]


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
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    write_json(folder / "meta.json", meta | changes)
    with pytest.raises(IntegrityError, match=sentence):
        load_tokenizer(folder)


def test_an_id_outside_the_vocabulary_is_refused(gemma_folder, gemma_tokenizer, tmp_path):
    folder = shutil.copytree(gemma_folder, tmp_path / "copy")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    first_id_outside = max(gemma_tokenizer.encode("漢"))
    write_json(folder / "meta.json", meta | {"vocab_size": first_id_outside, "dtype": "uint16"})
    with pytest.raises(IntegrityError, match=f"gave the id {first_id_outside}, but meta.json says {first_id_outside}"):
        load_tokenizer(folder).encode_documents(["漢"])


@pytest.mark.parametrize("shift", [-1, 1])
def test_ranks_that_do_not_number_the_tokens_are_refused(bpe_folder, tmp_path, shift):
    """The last token has the rank of the one before it, or that of end-of-text."""
    folder = shutil.copytree(bpe_folder, tmp_path / "copy")
    *lines, last = (folder / "ranks.tiktoken").read_text().splitlines()
    token, rank = last.split()
    (folder / "ranks.tiktoken").write_text("\n".join([*lines, f"{token} {int(rank) + shift}"]) + "\n")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    meta["files"]["ranks.tiktoken"] = hashlib.sha256((folder / "ranks.tiktoken").read_bytes()).hexdigest()
    write_json(folder / "meta.json", meta)
    with pytest.raises(IntegrityError, match="its ranks do not number every byte"):
        load_tokenizer(folder)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_have_the_narrowest_dtype(vocab_size, dtype):
    assert token_dtype(vocab_size) == dtype


def test_a_tokenizer_pickles_as_its_folder(bpe_folder, monkeypatch, tmp_path):
    monkeypatch.chdir(bpe_folder.parent)
    content = pickle.dumps(load_tokenizer(Path(bpe_folder.name)))
    monkeypatch.chdir(tmp_path)
    copy = pickle.loads(content)
    assert len(content) < 1000 and copy.encode("it's") == load_tokenizer(bpe_folder).encode("it's")
    assert copy.sha256 == hashlib.sha256((bpe_folder / "meta.json").read_bytes()).hexdigest()


def test_a_gemma_like_tokenizer_gives_the_same_ids(gemma_source, gemma_folder, gemma_tokenizer):
    tokenizer = gemma_tokenizer
    texts = TEXTS[:1000] + SPECIAL
    expected = auto_ids(gemma_source, texts, split_special_tokens=True)

    ids, lengths = tokenizer.encode_documents(texts)

    assert [tokenizer.encode(text) for text in texts] == expected
    assert auto_ids(gemma_folder, texts) == expected
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    assert ids.dtype == np.dtype("<u4")
    assert documents[7].tolist() == [*expected[7], tokenizer.eot_id]
    assert np.count_nonzero(ids == tokenizer.eot_id) == len(texts)


def test_a_gemma_like_tokenizer_decodes_what_it_has_encoded(gemma_tokenizer):
    greeting = "Hi <bos>\n\nthere 👋 "
    ids = gemma_tokenizer.encode(greeting)
    ended = [*ids, gemma_tokenizer.eot_id]

    assert gemma_tokenizer.decode(ended) == greeting + "<eos>"
    assert gemma_tokenizer.decode_all([ended, ids]) == [greeting + "<eos>", greeting]


@pytest.fixture(scope="module")
def gemma_vocab(gemma_source) -> dict[str, int]:
    """The ids of the entries in the imported file."""
    return json.loads((gemma_source / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]


def test_a_gemma_like_tokenizer_is_described(gemma_vocab, gemma_tokenizer):
    assert len(gemma_vocab) == GEMMA_LIKE_SIZE
    assert gemma_tokenizer.vocab_size == GEMMA_LIKE_SIZE, "the special token after it never occurs in a file"
    assert gemma_tokenizer.eot_id == gemma_vocab["<eos>"]
    assert not gemma_tokenizer.is_byte_level
    assert gemma_tokenizer.meta["special_tokens"]["<image_soft_token>"] == GEMMA_LIKE_SIZE
    assert gemma_tokenizer.meta["commit"] == "a" * 40


@pytest.mark.parametrize(
    ("token", "num_bytes"),
    [("<0x0A>", 1), ("▁a", 2), ("漢", 3), ("\n\n", 2), ("<tag>", 5), ("<bos>", 0), ("<eos>", 0)],
)
def test_a_token_stands_for_its_bytes_of_text(gemma_vocab, gemma_tokenizer, token, num_bytes):
    assert gemma_tokenizer.token_bytes[gemma_vocab[token]] == num_bytes


def test_the_bytes_of_a_text_are_those_of_its_tokens(gemma_vocab, gemma_tokenizer):
    texts = ["plain words, é 漢字", "👋\n\n<tag>"]

    ids, _ = gemma_tokenizer.encode_documents(texts)

    assert gemma_tokenizer.token_bytes[ids].sum() == sum(len(text.encode()) for text in texts)
    joined = b"".join(gemma_tokenizer.token_texts.get(token_id, b"") for token_id in ids.tolist())
    assert joined == "".join(texts).encode()
    assert gemma_vocab["<bos>"] not in gemma_tokenizer.token_texts

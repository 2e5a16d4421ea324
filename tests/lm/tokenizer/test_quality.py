"""The card's figures on a vocabulary are those that one counts by hand."""

import numpy as np
import pytest

from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import count_scripts, count_sources, script_of
from lm.tokens.tokenfile import open_tokens, write_tokens
from support.tokenizer_cases import write_bpe

TEXT = "the theory, Привет 漢字かな 2024\n\n ½ é"


@pytest.mark.parametrize(
    ("token", "script"),
    [
        ("the", "latin"), (" the", "latin"), ("é", "latin"), ("Ж", "cyrillic"), (" 漢", "cjk"), ("か", "cjk"),
        ("한", "cjk"), ("12", "digits"), (" ½", "digits"), ("٣", "digits"), (");", "punctuation"), ("+", "punctuation"),
        (" \n", "white_space"), ("\u3000", "white_space"), ("λ", "other"), ("\0", "other"), ("1a", "digits"),
    ],
)  # fmt: skip
def test_the_script_of_a_token(token, script):
    assert script_of(token.encode()) == script


@pytest.mark.parametrize("token", ["漢".encode()[:2], b"\x80", b" \xc3", "é".encode() + b"\xff"])
def test_pieces_of_characters_are_incomplete(token):
    assert script_of(token) == "incomplete"


@pytest.fixture
def files(tmp_path):
    """Return a function that writes documents as a token file, of a vocabulary of bytes and some longer tokens."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"the", b"  "]
    (tmp_path / "tokenizer").mkdir()
    write_byte_level(tmp_path / "tokenizer", {token: rank for rank, token in enumerate(tokens)}, "bpe")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")

    def write(name, documents, **described):
        ids, _ = tokenizer.encode_documents(documents)
        entry = tokenizer.sidecar_entry()
        write_tokens(tmp_path / name, [ids], "uint16", lambda: {"tokenizer": entry, **described})
        return open_tokens(tmp_path / name)

    return tokenizer, write


def test_the_bytes_of_the_scripts_are_those_of_the_text(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    ids, _ = tokenizer.encode_documents([TEXT])
    scripts = count_scripts(np.bincount(ids, minlength=tokenizer.vocab_size), tokenizer.token_texts)
    num_bytes = sum(each["tokens"] * each["bytes_per_token"] for each in scripts.values())
    assert num_bytes == pytest.approx(len(TEXT.encode()))
    assert {"latin", "digits", "punctuation"} <= set(scripts)


@pytest.mark.parametrize("block_tokens", [1, 3, 1 << 22])
def test_sources_are_counted_apart(files, monkeypatch, block_tokens):
    monkeypatch.setattr("lm.tokens.tokenfile.blocks_of.__defaults__", (block_tokens,))
    _, write = files
    sources = {"a": {"documents": 2, "utf8_bytes": 6, "passes": 1}, "b": {"documents": 1, "utf8_bytes": 4, "passes": 1}}
    sources["c"] = {"documents": 1, "utf8_bytes": 3, "passes": 1}
    validation = write("validation.bin", ["the", "xyz", "b  b", "the"], sources=sources)
    assert count_sources(validation) == {
        "a": {"tokens": 6, "bytes_per_token": 1.0},
        "b": {"tokens": 5, "bytes_per_token": 0.8},
        "c": {"tokens": 2, "bytes_per_token": 1.5},
    }
    assert count_sources(write("plain.bin", ["the"])) == {}

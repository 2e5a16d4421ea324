"""The card's figures on a vocabulary are those that one counts by hand."""

import numpy as np
import pytest

from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import describe_tokenizer, load_tokenizer
from lm.tokenizer.quality import count_ids, describe_parts, describe_quality, describe_scripts, script_of
from lm.tokens.tokenfile import open_tokens, write_tokens
from support.tokenizer_cases import TEXTS, write_bpe

TEXT = "the theory, Привет 漢字かな 2024\n\n ½ é"


@pytest.mark.parametrize(
    ("token", "script"),
    [
        ("the", "latin"), (" the", "latin"), ("é", "latin"), ("Ж", "cyrillic"), (" 漢", "cjk"), ("か", "cjk"),
        ("한", "cjk"), ("12", "digits"), (" ½", "digits"), ("٣", "digits"), (");", "punctuation"), ("+", "punctuation"),
        (" \n", "white_space"), ("\u3000", "white_space"), ("λ", "other"), ("\0", "other"), ("1a", "digits"),
    ],
)  # fmt: skip
def test_a_token_belongs_to_the_script_of_its_first_character(token, script):
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
        entry = describe_tokenizer(tokenizer)
        write_tokens(tmp_path / name, [ids], "uint16", lambda: {"tokenizer": entry, **described})
        return open_tokens(tmp_path / name)

    return tokenizer, write


def test_the_card_counts_tokens_of_the_training_text(files):
    tokenizer, write = files
    train, validation = write("train.bin", ["the the", "thé!"]), write("validation.bin", ["x"])
    found = describe_quality(train, validation, tokenizer)
    assert count_ids(train).sum() == len(train.ids) == 9 and count_ids(train)[tokenizer.eot_id] == 2
    assert found["unused_entries"] == 260 - 7  # the, th, é in two bytes, space, !, end of text
    assert found["unused_fraction"] == (260 - 7) / 260
    assert found["single_byte_fraction"] == 4 / 7
    assert found["longest"][:2] == [
        {"text": "the", "utf8_bytes": 3, "count": 2},
        {"text": "th", "utf8_bytes": 2, "count": 1},
    ]
    assert len(found["longest"]) == 6 and found["longest"][-1] == {"text": "�", "utf8_bytes": 1, "count": 1}
    assert (
        found["scripts"]
        == {
            "latin": {"tokens": 3, "bytes_per_token": 8 / 3},
            "punctuation": {"tokens": 1, "bytes_per_token": 1.0},
            "white_space": {"tokens": 1, "bytes_per_token": 1.0},
            "incomplete": {"tokens": 2, "bytes_per_token": 1.0},
        }
        or found["scripts"]["latin"]["tokens"] == 4
    )


def test_the_bytes_of_the_scripts_are_those_of_the_text(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    ids, _ = tokenizer.encode_documents([TEXT])
    scripts = describe_scripts(np.bincount(ids, minlength=tokenizer.vocab_size), tokenizer.token_texts)
    num_bytes = sum(each["tokens"] * each["bytes_per_token"] for each in scripts.values())
    assert num_bytes == pytest.approx(len(TEXT.encode()))
    assert {"latin", "digits", "punctuation"} <= set(scripts)


def test_the_texts_of_tokens_spell_the_text(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    for text in TEXTS[:200]:
        assert b"".join(tokenizer.token_texts[i] for i in tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize("block_tokens", [1, 3, 1 << 22])
def test_the_parts_of_a_validation_file_are_counted_apart(files, monkeypatch, block_tokens):
    monkeypatch.setattr("lm.tokens.tokenfile.blocks_of.__defaults__", (block_tokens,))
    _, write = files
    parts = {"a": {"documents": 2, "utf8_bytes": 6, "passes": 1}, "b": {"documents": 1, "utf8_bytes": 4, "passes": 1}}
    parts["c"] = {"documents": 1, "utf8_bytes": 3, "passes": 1}
    validation = write("validation.bin", ["the", "xyz", "b  b", "the"], parts=parts)
    assert describe_parts(validation) == {
        "a": {"tokens": 6, "bytes_per_token": 1.0},
        "b": {"tokens": 5, "bytes_per_token": 0.8},
        "c": {"tokens": 2, "bytes_per_token": 1.5},
    }
    assert describe_parts(write("plain.bin", ["the"])) == {}

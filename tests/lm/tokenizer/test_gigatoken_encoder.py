"""gigatoken gives tiktoken's ids; a difference is noticed when a tokenizer is opened."""

import numpy as np
import pytest

from lm.tokenizer import gigatoken_encoder
from lm.tokenizer.gigatoken_encoder import END, Gigatoken, open_gigatoken
from lm.tokenizer.load import load_tokenizer
from support.fuzz import chunk_of, hard_texts, known, scalars, texts_that_differ
from support.tokenizer_cases import SPECIAL, TEXTS, write_bpe, write_gpt2

NEW = ["\u088f", "\ua7ce", "\U0001e6c0", "\U000323b0"]  # letters of Unicode 17, which tiktoken does not have


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return load_tokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


@pytest.fixture(scope="module", params=[write_bpe, write_gpt2])
def tokenizer(request, tmp_path_factory):
    """A vocabulary that was trained here, and GPT-2's."""
    return load_tokenizer(request.param(tmp_path_factory.mktemp("tokenizer")))


def test_no_character_that_pyarrow_knows_differs(bpe):
    """Encode characters in several contexts, many at a time because tiktoken is slow; later planes are much alike."""
    kept = known([character for character in scalars() if ord(character) < 0x20000])
    assert len(kept) > 80_000
    lines = [f"{c}'s {c}1A{c}a{c}!{c}  {c}\n" for c in kept]
    texts = ["".join(lines[start : start + 4096]) for start in range(0, len(lines), 4096)]

    expected, _ = bpe.encode_documents(texts)

    assert np.array_equal(open_gigatoken(bpe).encode_texts(texts), expected)


def test_a_letter_of_unicode_17_differs(bpe):
    texts = [f"a{character}'s {character}{character}!" for character in NEW]

    assert texts_that_differ(open_gigatoken(bpe), bpe, texts) == texts


def test_a_sample_of_the_fuzz_shows_no_difference(tokenizer):
    encoder = open_gigatoken(tokenizer)
    texts = known([*hard_texts(3000, seed=5), *TEXTS[:2000]])
    assert len(texts) > 2000

    assert texts_that_differ(encoder, tokenizer, texts) == []


def test_tiktoken_encodes_chunks_with_new_characters(tokenizer):
    encoder = open_gigatoken(tokenizer)

    for texts in (["plain", "漢字", *SPECIAL], ["plain", f"a{END}b"], NEW):
        ids = encoder.encode(chunk_of(texts))

        expected, _ = tokenizer.encode_documents(texts)
        assert ids.tolist() == expected.tolist()
        assert ids.dtype == tokenizer.dtype


def test_gigatoken_is_not_used_if_it_gives_other_ids(bpe, monkeypatch, capsys):
    encode_texts = Gigatoken.encode_texts
    monkeypatch.setattr(Gigatoken, "encode_texts", lambda self, texts: encode_texts(self, texts)[::-1])

    assert open_gigatoken(bpe) is None
    assert "gigatoken gives other ids than tiktoken" in capsys.readouterr().err


def test_gigatoken_is_used_for_its_pattern_alone(bpe, monkeypatch, capsys):
    monkeypatch.setitem(bpe.meta, "pattern", r"\p{L}+|.")

    assert open_gigatoken(bpe) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("after_bytes", "is_replaced"), [(1 << 40, False), (60, True)])
def test_a_grown_gigatoken_is_replaced(bpe, monkeypatch, after_bytes, is_replaced):
    monkeypatch.setattr(gigatoken_encoder, "RENEW_AFTER_BYTES", after_bytes)
    texts = ["a text of some bytes", "another text"]
    expected, _ = bpe.encode_documents(texts)
    encoder = Gigatoken(bpe)
    first_backend = encoder._backend

    for _ in range(3):
        assert encoder.encode(chunk_of(texts)).tolist() == expected.tolist()

    assert (encoder._backend is not first_backend) == is_replaced

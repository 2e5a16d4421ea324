"""gigatoken gives tiktoken's ids; a difference is noticed when a tokenizer is opened."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lm.tokenizer import gigatoken_encoder
from lm.tokenizer.gigatoken_encoder import END, UNKNOWN_CHARACTER, Gigatoken, open_gigatoken
from lm.tokenizer.load import load_tokenizer
from support.tokenizer_cases import SPECIAL, TEXTS, chunk_of, hard_texts, write_bpe

NEW = ["\u088f", "\ua7ce", "\U0001e6c0", "\U000323b0"]  # letters of Unicode 17, which tiktoken does not have


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return load_tokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


def test_a_sample_of_the_fuzz_shows_no_difference(bpe):
    encoder = open_gigatoken(bpe)
    fuzzed = pa.array([*hard_texts(3000, seed=5), *TEXTS[:2000]])
    texts = fuzzed.filter(pc.invert(pc.match_substring_regex(fuzzed, UNKNOWN_CHARACTER))).to_pylist()

    found = encoder.encode_texts(texts)

    expected, _ = bpe.encode_documents(texts)
    np.testing.assert_array_equal(found, expected)


def test_tiktoken_encodes_chunks_with_new_characters(bpe):
    encoder = open_gigatoken(bpe)

    for texts in (["plain", "漢字", *SPECIAL], ["plain", f"a{END}b"], NEW):
        ids = encoder.encode(chunk_of(texts))

        expected, _ = bpe.encode_documents(texts)
        assert ids.tolist() == expected.tolist()
        assert ids.dtype == bpe.dtype


def test_gigatoken_is_not_used_if_it_gives_other_ids(bpe, monkeypatch, capsys):
    encode_texts = Gigatoken.encode_texts
    monkeypatch.setattr(Gigatoken, "encode_texts", lambda self, texts: encode_texts(self, texts)[::-1])

    assert open_gigatoken(bpe) is None
    assert "gigatoken gives other ids than tiktoken" in capsys.readouterr().err


def test_a_grown_gigatoken_is_replaced(bpe, monkeypatch):
    monkeypatch.setattr(gigatoken_encoder, "RENEW_AFTER_BYTES", 60)
    texts = ["a text of some bytes", "another text"]
    expected, _ = bpe.encode_documents(texts)
    encoder = Gigatoken(bpe)
    first_backend = encoder._backend

    for _ in range(3):
        assert encoder.encode(chunk_of(texts)).tolist() == expected.tolist()

    assert encoder._backend is not first_backend

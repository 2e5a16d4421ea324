"""gigatoken gives tiktoken's ids; a difference is noticed, and the text is encoded again."""

import importlib.metadata
import sys
import types

import numpy as np
import pytest

from lm.tokenizer import gigatoken_encoder
from lm.tokenizer.gigatoken_encoder import COMPARED, END, GigatokenError, open_gigatoken
from lm.tokenizer.load import load_tokenizer
from support import ROOT
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


def test_the_compared_versions_are_the_installed_ones():
    required = (ROOT / "requirements/bits.txt").read_text()

    for name, version in COMPARED.items():
        assert importlib.metadata.version(name) == version
        assert f"{name}=={version}" in required


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


def test_tiktoken_encodes_documents_with_new_characters(tokenizer):
    with_new_characters = [NEW[0] + "'s", f"a{END}b", *NEW[1:], "é" + END]
    texts = ["plain", "漢字", *SPECIAL, *with_new_characters, "\0", "end"]
    encoder = open_gigatoken(tokenizer)

    for own in (texts, NEW):
        ids = encoder.encode(chunk_of(own))

        expected, _ = tokenizer.encode_documents(own)
        assert ids.tolist() == expected.tolist()
        assert ids.dtype == tokenizer.dtype


def test_a_sample_of_the_slice_is_encoded_by_both(bpe, monkeypatch):
    encoder = open_gigatoken(bpe)
    by_tiktoken = []
    encode = bpe.encode_documents

    def recording_encode(texts):
        by_tiktoken.extend(texts)
        return encode(texts)

    monkeypatch.setattr(bpe, "encode_documents", recording_encode)

    for first in range(0, 1000, 90):
        texts = [f"document {number}" for number in range(first, first + 90)]
        chunk = chunk_of(texts, first)
        encoder.compare_sample(chunk, encoder.encode(chunk))

    assert by_tiktoken == [f"document {number}" for number in [*range(32), 400, 800]]


def test_a_difference_in_the_sample_is_an_error(bpe):
    encoder = open_gigatoken(bpe)
    ids_of_another_text = encoder.encode(chunk_of(["the Theory"], 400))

    with pytest.raises(GigatokenError, match="document 400 has other ids than tiktoken gives"):
        encoder.compare_sample(chunk_of(["the theory"], 400), ids_of_another_text)


class Panic(BaseException):
    """Stands for a panic in Rust."""


def panic(*args, **options):
    raise Panic("range end index 5")


BROKEN = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_tiktoken=panic))


@pytest.mark.parametrize(("module", "reason"), [(None, "ModuleNotFoundError: "), (BROKEN, "Panic: range end index 5")])
def test_an_unusable_gigatoken_gives_a_one_line_warning(bpe, monkeypatch, capsys, module, reason):
    monkeypatch.setitem(sys.modules, "gigatoken", module)

    assert open_gigatoken(bpe) is None

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: gigatoken cannot be used ({reason}")
    assert "the same ids" in line


def test_gigatoken_is_used_for_its_pattern_and_in_a_compared_version_alone(bpe, monkeypatch, capsys):
    monkeypatch.setitem(COMPARED, "gigatoken", "0.10.1")
    assert open_gigatoken(bpe) is None
    assert "installed: gigatoken 0.10.0 and tiktoken" in capsys.readouterr().err

    monkeypatch.setitem(bpe.meta, "pattern", r"\p{L}+|.")
    assert open_gigatoken(bpe) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("most_resident_bytes", "is_replaced"), [(1 << 40, False), (0, True)])
def test_a_grown_gigatoken_is_replaced(bpe, monkeypatch, most_resident_bytes, is_replaced):
    monkeypatch.setattr(gigatoken_encoder, "RENEW_AFTER_TEXT_BYTES", 20)
    monkeypatch.setattr(gigatoken_encoder, "RENEW_ABOVE_RESIDENT_BYTES", most_resident_bytes)
    texts = ["a text of some bytes", "another text"]
    expected, _ = bpe.encode_documents(texts)
    encoder = open_gigatoken(bpe)
    first_backend = encoder._backend

    for _ in range(3):
        assert encoder.encode(chunk_of(texts)).tolist() == expected.tolist()

    assert (encoder._backend is not first_backend) == is_replaced

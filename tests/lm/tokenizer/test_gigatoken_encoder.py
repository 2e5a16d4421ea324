"""gigatoken gives tiktoken's ids; a difference is noticed, and the text is encoded again."""

import importlib.metadata
import re
import sys
import types

import numpy as np
import pytest

from lm.tokenizer import gigatoken_encoder
from lm.tokenizer.gigatoken_encoder import COMPARED, END, ONLY_TIKTOKEN, GigatokenError, open_gigatoken
from lm.tokenizer.load import load_tokenizer, well_formed
from support import ROOT
from support.fuzz import chunk_of, scalars, seeded_strings, texts_that_differ
from support.tokenizer_cases import SPECIAL, TEXTS, write_bpe, write_gpt2


@pytest.fixture(scope="module")
def new() -> list[str]:
    """Return the characters of ONLY_TIKTOKEN one by one, without END."""
    return re.findall(ONLY_TIKTOKEN, "".join(scalars()))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return load_tokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


@pytest.fixture(scope="module", params=[write_bpe, write_gpt2])
def tokenizer(request, tmp_path_factory):
    """A vocabulary that was trained here, and GPT-2's."""
    return load_tokenizer(request.param(tmp_path_factory.mktemp("tokenizer")))


def test_the_compared_versions_are_the_installed_ones():
    assert {name: importlib.metadata.version(name) for name in COMPARED} == COMPARED
    required = (ROOT / "requirements/bits.txt").read_text()
    assert all(f"{name}=={version}" in required for name, version in COMPARED.items())


def test_only_characters_of_the_rule_differ(bpe):
    """Encode characters in several contexts, many at a time because tiktoken is slow; later planes are much alike."""
    kept = [c for c in scalars() if ord(c) < 0x20000 and not re.match(ONLY_TIKTOKEN, c)]
    texts = [
        "".join(f"{c}'s {c}1A{c}a{c}!{c}  {c}\n" for c in kept[start : start + 4096])
        for start in range(0, len(kept), 4096)
    ]

    expected, _ = bpe.encode_documents(texts)

    assert np.array_equal(open_gigatoken(bpe).encode_texts(texts), expected)


def test_every_new_character_differs_in_some_context(bpe, new):
    """The rule names no character without need."""
    encoder = open_gigatoken(bpe)

    differ = set()
    for context in ("{0}'s", "A{0}a{0}B", "b{0}{0} {0}!"):
        texts = [context.replace("{0}", character) for character in new]
        found = set(texts_that_differ(encoder, bpe, texts))
        differ |= {character for character, text in zip(new, texts, strict=True) if text in found}

    assert differ == set(new)


def test_a_sample_of_the_fuzz_shows_no_difference(tokenizer):
    encoder = open_gigatoken(tokenizer)
    texts = [well_formed(text) for text in [*seeded_strings(2000, seed=5), *TEXTS[:2000]]]
    texts = [text for text in texts if not re.search(ONLY_TIKTOKEN, text)]
    assert len(texts) > 3600 and texts_that_differ(encoder, tokenizer, texts) == []


def test_tiktoken_encodes_documents_with_new_characters(tokenizer, new):
    texts = [new[0] + "'s", "plain", f"a{END}b", "漢字", *SPECIAL, *new[-3:], "\0", "é" + END, "end"]
    encoder = open_gigatoken(tokenizer)
    ids = encoder.encode(chunk_of(texts))
    assert ids.tolist() == tokenizer.encode_documents(texts)[0].tolist()
    assert encoder.documents_by_tiktoken == 6
    assert encoder.encode(chunk_of(new[:2])).tolist() == tokenizer.encode_documents(new[:2])[0].tolist()
    assert ids.dtype == tokenizer.dtype and "8 documents by tiktoken instead" in encoder.summary()


def test_a_sample_of_the_slice_is_encoded_by_both(bpe):
    encoder = open_gigatoken(bpe)
    wanted = []
    encode = bpe.encode_documents

    def recording_encode(texts):
        wanted.extend(texts)
        return encode(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "encode_documents", recording_encode)
        for first in range(0, 1000, 90):
            documents = chunk_of([f"document {first + i}" for i in range(90)], first)
            encoder.compare_sample(documents, encoder.encode(documents))
    with pytest.raises(GigatokenError, match="document 400 has other ids than tiktoken gives"):
        encoder.compare_sample(chunk_of(["the theory"], 400), encoder.encode(chunk_of(["the Theory"], 400)))
    assert wanted == [f"document {number}" for number in [*range(32), 400, 800]]
    assert encoder.documents_compared == 34


def test_ids_that_do_not_stand_for_the_text_are_an_error(bpe, monkeypatch):
    """This is noticed in documents outside of the sample too."""
    encoder = open_gigatoken(bpe)
    encode = encoder.encode_texts
    monkeypatch.setattr(encoder, "encode_texts", lambda texts: np.delete(encode(texts), 1))
    with pytest.raises(GigatokenError, match="2 documents of"):
        encoder.encode(chunk_of(["a document", "another"], first_document=1001))


class Panic(BaseException):
    """Stands for a panic in Rust."""


def panic(*args, **options):
    raise Panic("range end index 5")


def test_an_unusable_gigatoken_gives_a_one_line_warning(bpe, monkeypatch, capsys):
    broken = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_tiktoken=panic))
    for module, reason in ((None, "ModuleNotFoundError: "), (broken, "Panic: range end index 5")):
        monkeypatch.setitem(sys.modules, "gigatoken", module)
        assert open_gigatoken(bpe) is None
        found = capsys.readouterr().err
        assert re.fullmatch(rf"warning: gigatoken cannot be used \({reason}.*\); .* the same ids, .*\n", found)
    monkeypatch.setitem(COMPARED, "gigatoken", "0.10.1")
    assert open_gigatoken(bpe) is None
    assert "installed: gigatoken 0.10.0 and tiktoken" in capsys.readouterr().err
    monkeypatch.setitem(bpe.meta, "pattern", r"\p{L}+|.")
    assert open_gigatoken(bpe) is None and capsys.readouterr().err == "", (
        "no warning for a pattern that it does not know"
    )


def test_a_grown_gigatoken_is_replaced(bpe, monkeypatch):
    monkeypatch.setattr(gigatoken_encoder, "RENEW_AFTER_TEXT_BYTES", 20)
    encoder = open_gigatoken(bpe)
    texts = ["a text of some bytes", "another text"]
    expected = bpe.encode_documents(texts)[0].tolist()
    made = []
    for limit in (1 << 40, 0):
        monkeypatch.setattr(gigatoken_encoder, "RENEW_ABOVE_RESIDENT_BYTES", limit)
        assert [encoder.encode(chunk_of(texts)).tolist() for _ in range(3)] == [expected] * 3
        made.append(encoder._backend)
    assert made[0] is not made[1]

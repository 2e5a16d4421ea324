"""What a tokenizer loses of a text is counted, recorded and said; a tokenizer that loses nothing is silent."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import encode_in_processes
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.round_trip import check_ids, count_losses
from lm.tokens.tokenfile import lossy_fractions
from support import tokenize_cases
from support.tokenizer_cases import chunk_of, save_tokenizer, write_bpe

END = "end of text"  # several words, so that no text gives it
TEXTS = ["a cat", "A cat", "a  cat", "a café", "½ cat", "a dog", " a cat"]


def word_level() -> tokenizers.Tokenizer:
    vocab = {"[UNK]": 0, "a": 1, "cat": 2}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def byte_level(normalizer=None) -> tokenizers.Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=normalizer is None)
    backend.decoder = decoders.ByteLevel()
    if normalizer:
        backend.normalizer = normalizer
    return backend


def unigram(byte_fallback: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", *"▁acotdgAfé", *(f"<0x{byte:02X}>" for byte in range(256))]
    scored = [(piece, -1.0) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(scored, 0, byte_fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def load(backend: tokenizers.Tokenizer, folder: Path):
    """Return the tokenizer as the stage make_tokenizer imports it."""
    (folder / "source").mkdir()
    (folder / "tokenizer").mkdir()
    backend.add_special_tokens([END])
    save_tokenizer(backend, folder / "source", eos_token=END)
    write_huggingface(folder / "tokenizer", folder / "source")
    return load_tokenizer(folder / "tokenizer")


def losses_of(texts: list[str], tokenizer):
    ids, _ = tokenizer.encode_documents(texts)
    return count_losses(ids, texts, tokenizer)


@pytest.mark.parametrize(
    ("backend", "unknown", "changed"),
    [
        (
            word_level(),
            ["A", "café", "½", "dog"],
            ["A cat", "a  cat", "a café", "½ cat", "a dog"],
        ),
        (byte_level(normalizers.Lowercase()), [], ["A cat"]),
        (byte_level(), [], []),
        (unigram(byte_fallback=True), [], []),
        (unigram(byte_fallback=False), ["½"], ["½ cat"]),
    ],
    ids=["word level", "lower case", "prefix space", "byte fallback", "unigram"],
)
def test_what_is_not_given_back_is_counted(tmp_path, backend, unknown, changed):
    tokenizer = load(backend, tmp_path)
    assert not tokenizer.is_byte_level

    for text in TEXTS:
        losses = losses_of([text], tokenizer)

        assert losses.changed_documents == (text in changed), text
        assert losses.unknown_tokens == sum(word in text.split() for word in unknown), text

    assert losses_of(TEXTS, tokenizer) == (len(unknown), len(changed))


@pytest.fixture
def lossy(tmp_path):
    """A tokenizer that knows two words."""
    return load(word_level(), tmp_path)


CHUNKS = [TEXTS[:3], TEXTS[3:], TEXTS]


def test_processes_count_the_losses_of_each_chunk(lossy):
    counts = TextCounts()
    chunks = [chunk_of(texts) for texts in CHUNKS]

    found = list(counts.ids_of(encode_in_processes(chunks, lossy, 2)))

    assert (counts.documents, counts.unknown_tokens, counts.changed_documents) == (14, 1 + 3 + 4, 2 + 3 + 5)
    for ids, texts in zip(found, CHUNKS, strict=True):
        expected, _ = lossy.encode_documents(texts)
        assert np.array_equal(ids, expected)


def test_ids_without_an_end_for_each_document_are_refused(tmp_path):
    """A byte-level vocabulary shows a lost byte, too; no other one can."""
    (tmp_path / "bpe").mkdir()
    tokenizer = load_tokenizer(write_bpe(tmp_path / "bpe"))
    chunk = chunk_of(["a cat", "a"])
    ids, _ = tokenizer.encode_documents(chunk.texts.to_pylist())
    end = tokenizer.eot_id
    no_end = ids[ids != end]

    check_ids(ids, chunk, tokenizer)
    for wrong in (np.append(no_end, end), np.append(ids, end), ids[:0], ids[1:]):
        with pytest.raises(IntegrityError, match="2 documents of 6 bytes"):
            check_ids(wrong, chunk, tokenizer)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of TEXTS as the working directory."""
    monkeypatch.chdir(tmp_path)
    tokenize_cases.make_project()
    tokenize_cases.write_raw(TEXTS)


def test_the_stage_records_and_says_what_is_lost(project, capsys):
    Path("lossy").mkdir()
    load(word_level(), Path("lossy"))

    assert tokenize_cases.tokenize("train", "lossy/tokenizer") == 0

    meta = read_json("out/train.json")
    assert meta["round_trip"] == {"unknown_tokens": 4, "changed_documents": 5}
    assert lossy_fractions(meta) == {
        "unknown_token_fraction": 4 / meta["tokens"],
        "changed_document_fraction": 5 / 7,
    }
    assert "warning: out/train.bin: 19.05% of the tokens are unknown" in capsys.readouterr().err

    assert tokenize_cases.tokenize("train") == 0
    assert "round_trip" not in read_json("out/train.json")
    assert "lossy" not in capsys.readouterr().err

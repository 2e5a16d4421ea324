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
from lm.tokenizer.encoding import encode_here, encode_in_processes
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.round_trip import check_ids, count_losses
from lm.tokens.tokenfile import lossy_fractions
from support import tokenize_cases
from support.fuzz import chunk_of
from support.tokenizer_cases import save_tokenizer, write_bpe

END = "end of text"  # several words, so that no text gives it
TEXTS = ["a cat", "A cat", "a  cat", "a café", "½ cat", "a dog", " a cat"]


def word_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "cat": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def byte_level(normalizer=None) -> tokenizers.Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=normalizer is None)
    backend.decoder = decoders.ByteLevel()
    if normalizer:
        backend.normalizer = normalizer
    return backend


def unigram(byte_fallback: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", *"▁acotdgAfé", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, byte_fallback))
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


STRIP = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])


@pytest.mark.parametrize(
    ("backend", "unknown", "changed"),
    [
        (word_level(), ["A", "café", "½", "dog"], ["A cat", "a  cat", "a café", "½ cat", "a dog"]),
        (byte_level(normalizers.Lowercase()), [], ["A cat"]),
        (byte_level(normalizers.NFKC()), [], ["½ cat"]),
        (byte_level(STRIP), [], ["a café"]),
        (byte_level(), [], []),
        (unigram(byte_fallback=True), [], []),
        (unigram(byte_fallback=False), ["½"], ["½ cat"]),
    ],
    ids=["word level", "lower case", "nfkc", "accents", "prefix space", "byte fallback", "unigram"],
)
def test_what_is_not_given_back_is_counted(tmp_path, backend, unknown, changed):
    tokenizer = load(backend, tmp_path)
    assert not tokenizer.is_byte_level

    of_each = {}
    for text in TEXTS:
        ids, _ = tokenizer.encode_documents([text])
        of_each[text] = count_losses(ids, [text], tokenizer)
    ids, _ = tokenizer.encode_documents(TEXTS)
    of_all = count_losses(ids, TEXTS, tokenizer)

    for text, losses in of_each.items():
        assert losses.changed_documents == (text in changed), text
        assert losses.unknown_tokens == sum(word in text.split() for word in unknown), text
    assert of_all == (len(unknown), len(changed))


@pytest.mark.parametrize("text", ["a cat ", "a cat\n", "\na cat", "  a cat"])
def test_lost_white_space_at_the_ends_is_counted(tmp_path, text):
    tokenizer = load(word_level(), tmp_path)
    ids, _ = tokenizer.encode_documents([text])
    assert count_losses(ids, [text], tokenizer).changed_documents == 1


def test_losses_of_several_chunks_are_added(tmp_path):
    tokenizer = load(word_level(), tmp_path)
    chunks = [chunk_of(TEXTS[:3]), chunk_of(TEXTS[3:]), chunk_of(TEXTS)]
    counts = TextCounts()

    for _ in counts.ids_of(encode_here(chunks, tokenizer)):
        pass

    assert (counts.documents, counts.unknown_tokens, counts.changed_documents) == (14, 8, 10)


@pytest.fixture(params=["byte level", "words"])
def tokenizer(request, tmp_path):
    if request.param == "words":
        return load(word_level(), tmp_path)
    return load_tokenizer(write_bpe(tmp_path))


def test_the_ids_of_whole_documents_pass_the_check(tokenizer):
    texts = ["a cat", "a"]
    ids, _ = tokenizer.encode_documents(texts)

    check_ids(ids, chunk_of(texts), tokenizer)


@pytest.mark.parametrize(
    "change",
    [
        lambda ids, end: ids[ids != end],
        lambda ids, end: np.concatenate([ids[ids != end], end]),
        lambda ids, end: np.concatenate([ids, end]),
        lambda ids, end: np.concatenate([end, ids[:-1]]),
        lambda ids, end: ids[:0],
    ],
    ids=["no end", "the last end alone", "one end more", "the last end first", "no ids"],
)
def test_ids_without_an_end_for_each_document_are_refused(tokenizer, change):
    texts = ["a cat", "a"]
    ids, _ = tokenizer.encode_documents(texts)

    with pytest.raises(IntegrityError, match="tokenizer: 2 documents of 6 bytes gave"):
        check_ids(change(ids, ids[-1:]), chunk_of(texts), tokenizer)


def test_a_byte_level_vocabulary_also_shows_a_lost_byte(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    texts = ["a cat", "a"]
    ids, _ = tokenizer.encode_documents(texts)

    with pytest.raises(IntegrityError, match=": 2 documents of 6 bytes gave"):
        check_ids(np.delete(ids, 0), chunk_of(texts), tokenizer)


def test_processes_count_as_one_does(tmp_path):
    tokenizer = load(word_level(), tmp_path)
    chunks = [chunk_of(TEXTS[:3]), chunk_of(TEXTS[3:]), chunk_of(TEXTS)]

    here = list(encode_here(chunks, tokenizer))
    apart = list(encode_in_processes(chunks, tokenizer, 2))

    losses = [(chunk.unknown_tokens, chunk.changed_documents) for chunk, _ in here]
    assert losses == [(1, 2), (3, 3), (4, 5)]
    assert losses == [(chunk.unknown_tokens, chunk.changed_documents) for chunk, _ in apart]
    for (_, one), (_, other) in zip(here, apart, strict=True):
        assert np.array_equal(one, other)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with the texts, ready for the stage."""
    monkeypatch.chdir(tmp_path)
    tokenize_cases.make_project()
    tokenize_cases.write_raw(TEXTS)
    return tmp_path


def test_the_stage_records_and_says_what_is_lost(project, capsys):
    (project / "lossy").mkdir()
    load(word_level(), project / "lossy")

    assert tokenize_cases.tokenize("train", "lossy/tokenizer") == 0

    meta = read_json("out/train.json")
    assert meta["round_trip"] == {"unknown_tokens": 4, "changed_documents": 5}
    assert lossy_fractions(meta) == {"unknown_token_fraction": 4 / meta["tokens"], "changed_document_fraction": 5 / 7}
    said = capsys.readouterr().err
    assert "warning: out/train.bin: 19.05% of the tokens are unknown, and 71.43% of the documents are decoded" in said
    assert "lossy tokenizer: bits per byte are too low" in said


def test_the_stage_says_nothing_of_a_tokenizer_that_loses_nothing(project, capsys):
    assert tokenize_cases.tokenize("train") == 0

    assert "round_trip" not in read_json("out/train.json")
    assert "lossy" not in capsys.readouterr().err

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


STRIP_ACCENTS = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])


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
        (byte_level(normalizers.NFKC()), [], ["½ cat"]),
        (byte_level(STRIP_ACCENTS), [], ["a café"]),
        (byte_level(), [], []),
        (unigram(byte_fallback=True), [], []),
        (unigram(byte_fallback=False), ["½"], ["½ cat"]),
    ],
    ids=["word level", "lower case", "nfkc", "accents", "prefix space", "byte fallback", "unigram"],
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


@pytest.mark.parametrize("text", ["a cat ", "a cat\n", "\na cat", "  a cat"])
def test_lost_white_space_at_the_ends_is_counted(lossy, text):
    assert losses_of([text], lossy).changed_documents == 1


CHUNKS = [TEXTS[:3], TEXTS[3:], TEXTS]
LOSSES = [(1, 2), (3, 3), (4, 5)]  # of each chunk: unknown tokens, changed documents


def test_losses_of_several_chunks_are_added(lossy):
    counts = TextCounts()
    chunks = [chunk_of(texts) for texts in CHUNKS]

    for _ in counts.ids_of(encode_here(chunks, lossy)):
        pass

    assert counts.documents == 14
    assert counts.unknown_tokens == 1 + 3 + 4
    assert counts.changed_documents == 2 + 3 + 5


@pytest.mark.parametrize("num_processes", [1, 2])
def test_any_number_of_processes_counts_the_losses_of_each_chunk(lossy, num_processes):
    chunks = [chunk_of(texts) for texts in CHUNKS]

    encoded = list(encode_in_processes(chunks, lossy, num_processes))

    assert [(chunk.unknown_tokens, chunk.changed_documents) for chunk, _ in encoded] == LOSSES
    for (_, ids), texts in zip(encoded, CHUNKS, strict=True):
        expected, _ = lossy.encode_documents(texts)
        assert np.array_equal(ids, expected)


def too_few_ends(ids, end):
    return ids[ids != end]


def one_end_for_both(ids, end):
    return np.append(ids[ids != end], end)


def one_end_more(ids, end):
    return np.append(ids, end)


def an_end_at_the_beginning(ids, end):
    return np.insert(ids[:-1], 0, end)


def no_ids(ids, end):
    return ids[:0]


def a_token_less(ids, end):
    return ids[1:]


WRONG_ENDS = [too_few_ends, one_end_for_both, one_end_more, an_end_at_the_beginning, no_ids]


def check_changed_ids(tokenizer, change) -> None:
    """Check that ids of two documents are refused after a change, and accepted before."""
    chunk = chunk_of(["a cat", "a"])
    ids, _ = tokenizer.encode_documents(chunk.texts.to_pylist())
    check_ids(ids, chunk, tokenizer)

    with pytest.raises(IntegrityError, match="tokenizer: 2 documents of 6 bytes gave"):
        check_ids(change(ids, tokenizer.eot_id), chunk, tokenizer)


@pytest.mark.parametrize("change", WRONG_ENDS)
def test_ids_without_an_end_for_each_document_are_refused(lossy, change):
    check_changed_ids(lossy, change)


@pytest.mark.parametrize("change", [*WRONG_ENDS, a_token_less])
def test_a_byte_level_vocabulary_shows_a_lost_byte_too(tmp_path, change):
    """No other vocabulary can."""
    check_changed_ids(load_tokenizer(write_bpe(tmp_path)), change)


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
    said = capsys.readouterr().err
    assert "warning: out/train.bin: 19.05% of the tokens are unknown" in said
    assert "71.43% of the documents" in said
    assert "bits per byte are too low" in said


def test_the_stage_is_silent_if_nothing_is_lost(project, capsys):
    assert tokenize_cases.tokenize("train") == 0

    assert "round_trip" not in read_json("out/train.json")
    assert "lossy" not in capsys.readouterr().err

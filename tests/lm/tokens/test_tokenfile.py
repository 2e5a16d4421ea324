"""A token file is read only if it matches its sidecar."""

import numpy as np
import pytest

from lm.core.errors import DataError, IntegrityError
from lm.core.files import write_json
from lm.tokens import tokenfile
from lm.tokens.tokenfile import (
    blocks_of,
    check_tokenizer,
    check_window_fits,
    count_ids,
    document_spans,
    lossy_fractions,
    open_tokens,
    write_tokens,
)

TOKENIZER = {"kind": "bpe", "vocab_size": 100, "eot_id": 99, "sha256": "ab" * 32}


def write(path, ids=(1, 2, 99, 3, 99), dtype="uint16"):
    chunks = [np.array(ids[:2], dtype), np.array(ids[2:], dtype)]
    return write_tokens(path, chunks, dtype, lambda: {"documents": 2, "tokenizer": TOKENIZER})


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_written_file_is_read_back(tmp_path, dtype):
    path = tmp_path / "train.bin"
    meta = write(path, dtype=dtype)
    tokens = open_tokens(path)
    assert tokens.ids.tolist() == [1, 2, 99, 3, 99]
    assert tokens.ids.dtype == np.dtype(dtype)
    assert tokens.meta == meta
    assert path.read_bytes() == np.array([1, 2, 99, 3, 99], f"<u{tokens.ids.dtype.itemsize}").tobytes()
    assert document_spans(tokens).tolist() == [[0, 3], [3, 5]]
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids[0] = 5


def test_a_failed_write_leaves_no_file(tmp_path):
    def chunks():
        yield np.zeros(3, np.uint16)
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        write_tokens(tmp_path / "train.bin", chunks(), "uint16", dict)
    assert list(tmp_path.iterdir()) == []


def test_wider_ids_are_never_narrowed_silently(tmp_path):
    with pytest.raises(AssertionError, match="ids are int64"):
        write_tokens(tmp_path / "train.bin", [np.array([65536])], "uint16", dict)


def test_another_tokenizer_and_too_short_a_file_are_refused(tmp_path):
    write(tmp_path / "a.bin")
    tokens = open_tokens(tmp_path / "a.bin")
    check_tokenizer(tokens, "ab" * 32)
    with pytest.raises(IntegrityError, match="made with tokenizer abab"):
        check_tokenizer(tokens, "cd" * 32)
    check_window_fits(tokens, 4)
    with pytest.raises(DataError, match=r"a\.bin: 5 tokens, one window of train\.seq_len needs 6"):
        check_window_fits(tokens, 5)


@pytest.mark.parametrize(("place", "position"), [(0, 0), (7, 7), (19, 19)])
def test_the_first_id_outside_the_vocabulary_is_named_by_its_position(tmp_path, monkeypatch, place, position):
    monkeypatch.setattr(tokenfile, "BLOCK_BYTES", 14)
    ids = np.arange(20) % 100
    ids[place:] = 100
    write(tmp_path / "a.bin", ids)
    with pytest.raises(IntegrityError, match=f"token 100 at position {position} is outside the vocabulary of 100"):
        open_tokens(tmp_path / "a.bin")

    write(tmp_path / "b.bin", np.minimum(ids, 99))
    assert len(open_tokens(tmp_path / "b.bin").ids) == 20


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 2}, "format_version 2 and dtype 'uint16' are unknown; they must be 1 and one of"),
        ({"tokens": 4}, "10 bytes, its sidecar says 4 tokens of uint16 = 8 bytes"),
        ({"sha256": "ab" * 32}, "its sidecar says abab"),
    ],
)
def test_a_sidecar_that_describes_another_stream_is_refused(tmp_path, change, sentence):
    meta = write(tmp_path / "a.bin")
    write_json(tmp_path / "a.json", meta | change)
    with pytest.raises(IntegrityError, match=sentence):
        open_tokens(tmp_path / "a.bin")


def test_ids_and_ends_are_found_in_all_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_of, "__defaults__", (4,))
    ids = [99, 1, 2, 99, 99, 3, 4, 5, 6, 99, 7]
    write(tmp_path / "a.bin", ids)
    tokens = open_tokens(tmp_path / "a.bin")
    assert count_ids(tokens.ids, 100).tolist() == np.bincount(ids, minlength=100).tolist()
    assert document_spans(tokens).tolist() == [[0, 1], [1, 4], [4, 5], [5, 10]]


def test_what_a_tokenizer_loses_is_a_fraction_of_tokens_and_of_documents():
    meta = {"tokens": 50, "documents": 4, "round_trip": {"unknown_tokens": 5, "changed_documents": 3}}
    assert lossy_fractions(meta) == {"unknown_token_fraction": 0.1, "changed_document_fraction": 0.75}
    assert lossy_fractions(meta | {"round_trip": {"unknown_tokens": 0, "changed_documents": 0}}) == {}
    assert lossy_fractions({"tokens": 50, "documents": 4}) == {}

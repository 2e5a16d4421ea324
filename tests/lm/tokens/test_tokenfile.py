"""A token file is read only if it matches its sidecar."""

import numpy as np
import pytest

from lm.core.errors import IntegrityError
from lm.tokens.tokenfile import check_tokenizer, document_spans, open_tokens, write_tokens

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


def test_another_tokenizer_is_refused(tmp_path):
    write(tmp_path / "train.bin")
    tokens = open_tokens(tmp_path / "train.bin")
    check_tokenizer(tokens, "ab" * 32)
    with pytest.raises(IntegrityError, match="made with tokenizer abab"):
        check_tokenizer(tokens, "cd" * 32)

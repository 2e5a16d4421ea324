"""A token file is read only if it is exactly what its sidecar says."""

import json

import numpy as np
import pytest

from lm.errors import IntegrityError
from lm.tokenfile import (
    check_id_range,
    check_tokenizer,
    document_spans,
    open_tokens,
    sidecar_path,
    write_tokens,
)

TOKENIZER = {"kind": "bpe", "vocab_size": 100, "eot_id": 99, "sha256": "ab" * 32}


def write(path, ids=(1, 2, 99, 3, 99), dtype="uint16"):
    chunks = [np.array(ids[:2], dtype), np.array(ids[2:], dtype)]
    return write_tokens(path, chunks, dtype, lambda: {"documents": 2, "tokenizer": TOKENIZER})


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_what_is_written_is_read(tmp_path, dtype):
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


def test_a_failure_while_writing_leaves_nothing(tmp_path):
    def chunks():
        yield np.zeros(3, np.uint16)
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        write_tokens(tmp_path / "train.bin", chunks(), "uint16", dict)
    assert list(tmp_path.iterdir()) == []


def test_wider_ids_are_never_narrowed_silently(tmp_path):
    with pytest.raises(AssertionError, match="ids are int64"):
        write_tokens(tmp_path / "train.bin", [np.array([65536])], "uint16", dict)


def damage_odd(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_longer(path):
    path.write_bytes(path.read_bytes() + b"\0\0")


def damage_empty(path):
    path.write_bytes(b"")


def damage_byte(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def damage_dtype(path):
    meta = json.loads(sidecar_path(path).read_text())
    sidecar_path(path).write_text(json.dumps(meta | {"dtype": "uint32"}))


def damage_sidecar(path):
    sidecar_path(path).unlink()


def damage_stream(path):
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (damage_odd, "9 bytes, its sidecar says 5 tokens of uint16 = 10 bytes"),
        (damage_longer, "12 bytes, its sidecar says 5 tokens of uint16 = 10 bytes"),
        (damage_empty, "0 bytes"),
        (damage_byte, "sha256 is"),
        (damage_dtype, "10 bytes, its sidecar says 5 tokens of uint32 = 20 bytes"),
        (damage_sidecar, "train.json: missing"),
        (damage_stream, "train.bin: missing"),
    ],
)
def test_damage_is_found_and_named(tmp_path, damage, sentence):
    path = tmp_path / "train.bin"
    write(path)
    damage(path)
    with pytest.raises(IntegrityError) as caught:
        open_tokens(path)
    assert sentence in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_an_id_outside_the_vocabulary_is_named_with_its_position(tmp_path):
    write(tmp_path / "train.bin", ids=(1, 2, 99, 100, 99))
    with pytest.raises(IntegrityError, match="token 100 at position 3 is outside the vocabulary of 100"):
        check_id_range(open_tokens(tmp_path / "train.bin"), block_tokens=2)


def test_another_tokenizer_is_refused(tmp_path):
    write(tmp_path / "train.bin")
    tokens = open_tokens(tmp_path / "train.bin")
    check_tokenizer(tokens, "ab" * 32)
    with pytest.raises(IntegrityError, match="made with tokenizer abab"):
        check_tokenizer(tokens, "cd" * 32)

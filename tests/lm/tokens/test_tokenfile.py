"""A token file is read only if it matches its sidecar."""

import numpy as np
import pytest

from lm.core.errors import IntegrityError
from lm.core.files import write_json
from lm.tokens import tokenfile
from lm.tokens.tokenfile import (
    count_ids,
    document_spans,
    open_tokens,
    write_tokens,
)

VOCAB_SIZE = 100
EOT = 99
IDS = [1, 2, EOT, 3, EOT]
SHA256 = "ab" * 32


def write(path, ids=IDS, dtype="uint16"):
    """Write ids in two chunks; return the sidecar."""
    chunks = [np.array(ids[:2], dtype), np.array(ids[2:], dtype)]
    tokenizer = {"kind": "bpe", "vocab_size": VOCAB_SIZE, "eot_id": EOT, "sha256": SHA256}
    return write_tokens(path, chunks, dtype, lambda: {"documents": 2, "tokenizer": tokenizer})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.bin"


@pytest.mark.parametrize(("dtype", "little_endian"), [("uint16", "<u2"), ("uint32", "<u4")])
def test_a_written_file_is_the_little_endian_ids_and_is_read_back(path, dtype, little_endian):
    meta = write(path, dtype=dtype)

    tokens = open_tokens(path)

    assert path.read_bytes() == np.array(IDS, little_endian).tobytes()
    assert tokens.ids.tolist() == IDS
    assert tokens.meta == meta


def test_the_first_id_outside_the_vocabulary_is_named_by_its_position(path, monkeypatch):
    monkeypatch.setattr(tokenfile, "BLOCK_BYTES", 14)  # 7 tokens at a time
    ids = np.arange(VOCAB_SIZE)
    ids[7:] = VOCAB_SIZE
    write(path, ids)

    with pytest.raises(IntegrityError, match=r"token 100 at position 7 .*vocabulary of 100"):
        open_tokens(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 2}, "format_version 2 .* must be 1"),
        ({"dtype": "int64"}, "dtype 'int64' .* must be .*uint16"),
        ({"tokens": 4}, "10 bytes, its sidecar says 4 tokens"),
        ({"sha256": SHA256}, "its sidecar says abab"),
    ],
)
def test_a_sidecar_that_describes_another_stream_is_refused(path, change, sentence):
    meta = write(path)
    write_json(path.with_suffix(".json"), meta | change)

    with pytest.raises(IntegrityError, match=sentence):
        open_tokens(path)


def test_ids_are_counted_and_documents_found_in_all_blocks(path, monkeypatch):
    """A document reaches from the end of the one before it to its own."""
    monkeypatch.setattr(tokenfile, "BLOCK_TOKENS", 4)
    ids = [EOT, 1, 2, EOT, EOT, 3, 4, 5, 6, EOT, 7]
    write(path, ids)

    tokens = open_tokens(path)

    assert count_ids(tokens.ids, VOCAB_SIZE).tolist() == np.bincount(ids, minlength=VOCAB_SIZE).tolist()
    spans = document_spans(tokens)
    assert spans.tolist() == [[0, 1], [1, 4], [4, 5], [5, 10]]

"""What holds for any ids, dtype, length and padding: every format returns the stream that was written."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extras.formats.dumps import dumps_stream, replace_dumps, write_dumps
from extras.formats.npy import npy_stream, open_npy, write_npy
from extras.formats.stream import bin_stream
from lm.tokens.tokenfile import DTYPES, write_tokens
from support.properties import check_examples

VOCAB_SIZES = {"uint16": 65_536, "uint32": 262_144}


@st.composite
def streams(draw):
    """Return (dtype, chunks of ids): at least one id, empty chunks among them, 0 (the padding) among the ids."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    ids = st.integers(0, 3) | st.integers(0, VOCAB_SIZES[dtype] - 1)
    chunks = draw(st.lists(st.lists(ids, max_size=15), min_size=1, max_size=4).filter(any))
    return dtype, [np.array(chunk, DTYPES[dtype]) for chunk in chunks]


def tokenizer_of(dtype: str) -> dict:
    return {"vocab_size": VOCAB_SIZES[dtype], "eot_id": 0, "sha256": "0" * 64}


def read(stream) -> np.ndarray:
    return np.concatenate(list(stream.blocks()))


@check_examples
@given(
    stream=streams(),
    row_length=st.none() | st.integers(1, 12),
    npy_dtype=st.sampled_from(["<u4", "<i4", "<i8", ">i8"]),
)
def test_a_token_file_and_a_npy_return_the_ids(stream, row_length, npy_dtype):
    dtype, chunks = stream
    ids = np.concatenate(chunks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        meta = write_tokens(path / "x.bin", chunks, dtype, lambda: {"tokenizer": tokenizer_of(dtype)})
        assert np.array_equal(read(bin_stream(path / "x.bin", dtype)), ids)
        padding = write_npy(path / "x.npy", chunks, meta, np.dtype(npy_dtype), row_length, pad_token=0)
        stored = open_npy(path / "x.npy")
        assert stored.dtype == np.dtype(npy_dtype) and stored.size == len(ids) + padding
        assert stored.ndim == (1 if row_length is None else 2) and 0 <= padding < (row_length or 1)
        assert np.array_equal(stored, np.load(path / "x.npy"))
        again = npy_stream(path / "x.npy")
        assert np.array_equal(read(again), ids) and again.meta == meta


@check_examples
@given(stream=streams(), seq_len=st.integers(1, 12), max_dump_size=st.integers(1, 5), pad_token=st.integers(0, 3))
def test_dumps_return_the_ids_though_the_padding_is_an_id_too(stream, seq_len, max_dump_size, pad_token):
    dtype, chunks = stream
    ids = np.concatenate(chunks)
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent) / "dumps"
        with replace_dumps(path) as folder:
            provenance = write_dumps(
                folder, chunks, dtype, lambda: {"tokenizer": tokenizer_of(dtype)},
                seq_len=seq_len, max_dump_size=max_dump_size, pad_token=pad_token,
            )  # fmt: skip
        assert np.array_equal(read(dumps_stream(path, None)), ids)
    assert provenance["samples"] == -(-len(ids) // seq_len)
    assert provenance["padding_tokens"] == -len(ids) % seq_len and provenance["left_out_tokens"] == 0
    assert len(provenance["files"]) == -(-provenance["samples"] // max_dump_size)


@check_examples
@given(stream=streams(), seq_len=st.integers(1, 12), min_sample_length=st.integers(1, 12))
def test_dumps_leave_out_only_a_last_sample_that_is_too_short(stream, seq_len, min_sample_length):
    dtype, chunks = stream
    ids = np.concatenate(chunks)
    rest = len(ids) % seq_len
    num_left_out = rest if rest < min(min_sample_length, seq_len) else 0
    if num_left_out == len(ids):
        return
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent) / "dumps"
        with replace_dumps(path) as folder:
            provenance = write_dumps(
                folder, chunks, dtype, lambda: {"tokenizer": tokenizer_of(dtype)},
                seq_len=seq_len, max_dump_size=3, pad_token=0, min_sample_length=min_sample_length,
            )  # fmt: skip
        assert np.array_equal(read(dumps_stream(path, None)), ids[: len(ids) - num_left_out])
    assert provenance["left_out_tokens"] == num_left_out

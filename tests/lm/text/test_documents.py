"""Slices select whole documents by their first character; files are checked against the manifest."""

import dataclasses
import itertools
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.core.errors import DataError, ParamsError
from lm.text.documents import open_text
from lm.text.slices import Slice, reject_overlap
from support.mixture_cases import write_source
from support.properties import check_examples

TEXTS = ["abc", "dé", "", "\N{GRINNING FACE}xyz", "q" * 10]  # they begin at 0, 3, 5, 5 and 9, and end at 19


@pytest.fixture
def raw(tmp_path):
    write_source(tmp_path, per_file=2, text=TEXTS)
    return tmp_path


def texts_of(raw: Path, start_char: int, num_chars: int | None) -> list[str]:
    """Return the documents of a slice."""
    text = open_text(raw, Slice("text", start_char, num_chars))
    return list(itertools.chain.from_iterable(text.batches()))


@pytest.mark.parametrize(
    ("start_char", "num_chars", "expected"),
    [
        (0, None, ["abc", "dé", "\N{GRINNING FACE}xyz", "q" * 10]),
        (0, 3, ["abc"]),
        (0, 4, ["abc", "dé"]),
        (1, 3, ["dé"]),
        (4, None, ["\N{GRINNING FACE}xyz", "q" * 10]),
        (5, 14, ["\N{GRINNING FACE}xyz", "q" * 10]),  # a slice may end where the split does
    ],
)
def test_a_document_belongs_to_the_slice_in_which_it_begins(raw, start_char, num_chars, expected):
    assert texts_of(raw, start_char, num_chars) == expected


@pytest.mark.parametrize(
    ("start_char", "num_chars", "sentence"),
    [
        (19, None, "start_char is 19.* 19 characters"),
        (5, 15, "from 5 asks for 15, 1 too many"),
    ],
)
def test_a_slice_beyond_the_split_is_refused(raw, start_char, num_chars, sentence):
    with pytest.raises(DataError, match=sentence):
        texts_of(raw, start_char, num_chars)
    with pytest.raises(DataError, match="no split 'train'; its splits are text"):
        open_text(raw, Slice("train", 0, None))


# Properties


DRAWN_TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=12).filter(any)


@settings(check_examples, max_examples=20)
@given(texts=DRAWN_TEXTS, per_file=st.integers(1, 5), chunk_chars=st.integers(1, 40))
def test_chunks_keep_order_and_whole_documents(texts, per_file, chunk_chars):
    with tempfile.TemporaryDirectory() as folder, mock.patch("lm.text.documents.CHUNK_CHARS", chunk_chars):
        write_source(Path(folder), per_file=per_file, text=texts)
        text = open_text(Path(folder), Slice("text", 0, None))
        chunks = list(text.chunks())

    documents = []
    for chunk in chunks:
        own = chunk.texts.to_pylist()
        assert chunk.first_document == len(documents)
        assert chunk.characters == sum(len(text) for text in own)
        assert chunk.utf8_bytes == sum(len(text.encode()) for text in own)
        start_of_last = chunk.characters - len(own[-1])
        assert start_of_last < chunk_chars, "its last document begins in its range"
        documents += own
    assert documents == [text for text in texts if text]


SLICES = st.builds(Slice, st.just("text"), st.integers(0, 50), st.none() | st.integers(1, 50))


def characters_of(text_slice: Slice) -> set[int]:
    """Return the characters of a slice, without those from 200 on."""
    end = 200 if text_slice.num_chars is None else text_slice.start_char + text_slice.num_chars
    return set(range(text_slice.start_char, end))


@check_examples
@given(train=SLICES, validation=SLICES)
def test_only_overlapping_slices_are_refused(train, validation):
    if characters_of(train) & characters_of(validation):
        with pytest.raises(ParamsError, match=r"sources\.s.*(share characters|overlap)"):
            reject_overlap(train, validation, "sources.s")
    else:
        reject_overlap(train, validation, "sources.s")
    reject_overlap(train, dataclasses.replace(validation, split="other"), "sources.s")
    if train.num_chars is not None:
        reject_overlap(train, Slice("text", train.start_char + train.num_chars, None), "sources.s")

"""Slices select whole documents by their first character; files are checked against the manifest."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import DataError, NoDocument, ParamsError
from lm.text import parquet
from lm.text.documents import open_text
from lm.text.parquet import describe_split
from lm.text.slices import Slice, reject_overlap
from support.mixture_cases import write_source
from support.properties import check_examples

TEXTS = ["abc", "dé", "", "\N{GRINNING FACE}xyz", "q" * 10]


def make_raw(folder, texts=TEXTS):
    write_source(folder, per_file=2, text=texts)
    return folder


def texts_of(raw, *part):
    return [text for batch in open_text(raw, Slice("text", *part)).batches() for text in batch]


def test_the_manifest_counts_text_and_dropped_rows(tmp_path):
    path = tmp_path / "text" / "0000.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": pa.array(["é", None, "", "ab"])}), path)
    entry = describe_split(tmp_path, "text", "text")
    assert (entry["documents"], entry["characters"], entry["utf8_bytes"]) == (2, 3, 4)
    assert entry["dropped_rows"] == {"null": 1, "empty": 1}


def test_a_document_belongs_to_one_slice(tmp_path):
    raw = make_raw(tmp_path)
    assert texts_of(raw, 0, None) == [text for text in TEXTS if text]
    assert texts_of(raw, 0, 3) == ["abc"]
    assert texts_of(raw, 0, 4) == ["abc", "dé"]
    assert texts_of(raw, 1, 3) == ["dé"]
    assert texts_of(raw, 4, None) == ["\N{GRINNING FACE}xyz", "q" * 10]


def test_a_slice_beyond_the_split_is_refused(tmp_path):
    raw = make_raw(tmp_path)
    with pytest.raises(DataError, match="start_char is 19, but split 'text' has 19 characters"):
        texts_of(raw, 19, None)
    with pytest.raises(DataError, match="19 characters; the slice from 5 asks for 20, 6 too many"):
        texts_of(raw, 5, 20)
    with pytest.raises(DataError, match="no split 'train'; its splits are text"):
        open_text(raw, Slice("train", 0, None))
    assert texts_of(raw, 5, 14) == texts_of(raw, 5, None), "a slice may end where the split does"
    with pytest.raises(DataError, match="the slice from 5 asks for 15, 1 too many"):
        texts_of(raw, 5, 15)


# Properties.


DRAWN_TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=12).filter(any)


def texts_between(raw: Path, start: int, num_chars: int | None) -> list[str]:
    """Return the documents of a slice; an empty list if no document begins in it."""
    try:
        return [text for batch in open_text(raw, Slice("text", start, num_chars)).batches() for text in batch]
    except NoDocument:
        return []


@check_examples
@given(texts=DRAWN_TEXTS, batch_rows=st.integers(1, 5), data=st.data())
def test_adjacent_slices_hold_each_document_once(texts, batch_rows, data):
    characters = sum(map(len, texts))
    cuts = sorted(data.draw(st.sets(st.integers(1, characters), max_size=3)) - {characters})
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(parquet, "MAX_BATCH_ROWS", batch_rows):
        raw = Path(folder)
        manifest = write_source(raw, text=texts)
        assert manifest["splits"]["text"]["characters"] == characters
        borders = [0, *cuts]
        lengths = [after - before for before, after in itertools.pairwise(borders)]
        slices = [texts_between(raw, start, n) for start, n in zip(borders, [*lengths, None], strict=True)]
    assert list(itertools.chain(*slices)) == [text for text in texts if text]


@check_examples
@given(texts=DRAWN_TEXTS, per_file=st.integers(1, 5), chunk_chars=st.integers(1, 40))
def test_chunks_keep_order_and_whole_documents(texts, per_file, chunk_chars):
    kept = [text for text in texts if text]
    with tempfile.TemporaryDirectory() as folder:
        write_source(Path(folder), per_file=per_file, text=texts)
        chunks = list(open_text(Path(folder), Slice("text", 0, None)).chunks(chunk_chars))
    assert list(itertools.chain(*(chunk.texts.to_pylist() for chunk in chunks))) == kept
    first = 0
    for chunk in chunks:
        documents = chunk.texts.to_pylist()
        assert documents and chunk.first_document == first
        assert chunk.characters == sum(map(len, documents))
        assert chunk.utf8_bytes == sum(len(text.encode()) for text in documents)
        assert chunk.characters - len(documents[-1]) < chunk_chars, "its last document begins in its range"
        first += len(documents)


@check_examples
@given(
    starts=st.tuples(st.integers(0, 50), st.integers(0, 50)), lengths=st.tuples(*[st.none() | st.integers(1, 50)] * 2)
)
def test_only_overlapping_slices_are_refused(starts, lengths):
    train, validation = (Slice("text", start, n) for start, n in zip(starts, lengths, strict=True))
    ranges = [set(range(start, 200 if n is None else start + n)) for start, n in zip(starts, lengths, strict=True)]
    if ranges[0] & ranges[1]:
        with pytest.raises(ParamsError, match=r"share characters|overlap"):
            reject_overlap(train, validation, "sources.s")
    else:
        reject_overlap(train, validation, "sources.s")
    reject_overlap(train, Slice("other", starts[1], lengths[1]), "sources.s")

"""Slices select whole documents by their first character; files are checked against the manifest."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.errors import DataError, IntegrityError, ParamsError
from lm.core.files import write_json
from lm.text.documents import iter_chunks, iter_texts, read_manifest
from lm.text.parquet import describe_split, write_documents
from lm.text.slices import Slice, refuse_overlap

TEXTS = ["abc", "dé", "", "\N{GRINNING FACE}xyz", "q" * 10]


def make_raw(folder, texts=TEXTS, bits=None):
    middle = 2
    for i, part in enumerate((texts[:middle], texts[middle:])):
        own_bits = None if bits is None else (bits[:middle], bits[middle:])[i]
        write_documents(folder / "text" / f"{i:04d}.parquet", part, surprisal_bits=own_bits)
    manifest = {"source": "s", "column": "text", "splits": {"text": describe_split(folder, "text", "text")}}
    write_json(folder / "manifest.json", manifest | ({} if bits is None else {"entropy": {}}))
    return folder


def texts_of(raw, *part):
    return [text for batch in iter_texts(raw, Slice("text", *part)) for text in batch]


def test_the_manifest_counts_characters_bytes_and_dropped_rows(tmp_path):
    path = tmp_path / "text" / "0000.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": pa.array(["é", None, "", "ab"])}), path)
    entry = describe_split(tmp_path, "text", "text")
    assert (entry["documents"], entry["characters"], entry["utf8_bytes"]) == (2, 3, 4)
    assert entry["dropped_rows"] == {"null": 1, "empty": 1}


def test_a_document_belongs_to_the_slice_that_holds_its_first_character(tmp_path):
    raw = make_raw(tmp_path)
    assert texts_of(raw, 0, None) == [text for text in TEXTS if text]
    assert texts_of(raw, 0, 3) == ["abc"]
    assert texts_of(raw, 0, 4) == ["abc", "dé"]
    assert texts_of(raw, 1, 3) == ["dé"]
    assert texts_of(raw, 4, None) == ["\N{GRINNING FACE}xyz", "q" * 10]


@pytest.mark.parametrize("cut", range(1, 19))
def test_two_adjacent_slices_have_every_document_once(tmp_path, cut):
    raw = make_raw(tmp_path)
    parts = []
    for part in ((0, cut), (cut, None)):
        try:
            parts += texts_of(raw, *part)
        except DataError as error:  # the last document begins before the cut
            assert cut > 9 and "no document" in str(error)
    assert parts == [text for text in TEXTS if text]


def test_a_slice_beyond_the_split_is_refused_with_the_length(tmp_path):
    raw = make_raw(tmp_path)
    with pytest.raises(DataError, match="start_char is 19, but split 'text' has 19 characters"):
        texts_of(raw, 19, None)
    with pytest.raises(DataError, match="19 characters; the slice from 5 asks for 20, 6 too many"):
        texts_of(raw, 5, 20)
    with pytest.raises(DataError, match="no split 'train'; its splits are text"):
        next(iter_texts(raw, Slice("train", 0, None)))


def test_only_overlapping_slices_are_refused():
    refuse_overlap(Slice("a", 0, 10), Slice("a", 10, None), "p")
    refuse_overlap(Slice("a", 0, None), Slice("b", 0, None), "p")
    for train, validation in (((0, 11), (10, None)), ((0, None), (10, 5)), ((5, 5), (0, 6))):
        with pytest.raises(ParamsError, match="share characters"):
            refuse_overlap(Slice("a", *train), Slice("a", *validation), "p")


def test_a_changed_file_is_detected_before_a_document_is_read(tmp_path):
    raw = make_raw(tmp_path)
    path = raw / "text" / "0001.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"0001\.parquet: sha256 is"):
        read_manifest(raw)


def test_known_surprisal_is_summed_over_the_slice(tmp_path):
    raw = make_raw(tmp_path, bits=[1.0, 2.0, 0.0, 4.0, 8.0])

    def bits(raw, part):
        return [chunk.surprisal_bits for chunk in iter_chunks(raw, read_manifest(raw), part, chunk_chars=5)]

    assert sum(bits(raw, Slice("text", 0, None))) == 15.0
    assert sum(bits(raw, Slice("text", 0, 4))) == 3.0
    assert set(bits(make_raw(tmp_path / "plain"), Slice("text", 0, None))) == {None}

"""What holds for any documents and any cut: adjacent slices and chunks hold each document once, whole, in order."""

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import NoDocument, ParamsError
from lm.core.files import write_json
from lm.text.documents import iter_chunks, iter_texts, read_manifest
from lm.text.parquet import describe_split, write_documents
from lm.text.slices import Slice, refuse_overlap
from support.properties import check_examples

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=12).filter(any)


def write_raw(folder: Path, texts: list[str], per_file: int) -> dict:
    """Write documents as data/raw, `per_file` in each file; return the manifest."""
    for number, start in enumerate(range(0, len(texts), per_file)):
        write_documents(folder / "text" / f"{number:04d}.parquet", texts[start : start + per_file])
    manifest = {"source": "s", "column": "text", "splits": {"text": describe_split(folder, "text", "text")}}
    write_json(folder / "manifest.json", manifest)
    return read_manifest(folder)


def texts_between(raw: Path, start: int, num_chars: int | None) -> list[str]:
    """Return the documents of a slice; an empty list if no document begins in it."""
    try:
        return [text for batch in iter_texts(raw, Slice("text", start, num_chars)) for text in batch]
    except NoDocument:
        return []


@check_examples
@given(texts=TEXTS, per_file=st.integers(1, 5), data=st.data())
def test_adjacent_slices_hold_each_document_once_wherever_they_meet(texts, per_file, data):
    characters = sum(map(len, texts))
    cuts = sorted(data.draw(st.sets(st.integers(1, characters), max_size=3)) - {characters})
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        manifest = write_raw(raw, texts, per_file)
        assert manifest["splits"]["text"]["characters"] == characters
        borders = [0, *cuts]
        lengths = [after - before for before, after in itertools.pairwise(borders)]
        slices = [texts_between(raw, start, n) for start, n in zip(borders, [*lengths, None], strict=True)]
    assert list(itertools.chain(*slices)) == [text for text in texts if text]


@check_examples
@given(texts=TEXTS, per_file=st.integers(1, 5), chunk_chars=st.integers(1, 40))
def test_chunks_keep_order_and_whole_documents(texts, per_file, chunk_chars):
    kept = [text for text in texts if text]
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_raw(Path(folder), texts, per_file)
        chunks = list(iter_chunks(Path(folder), manifest, Slice("text", 0, None), chunk_chars))
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
def test_slices_are_refused_if_and_only_if_a_character_is_in_both(starts, lengths):
    train, validation = (Slice("text", start, n) for start, n in zip(starts, lengths, strict=True))
    ranges = [set(range(start, 200 if n is None else start + n)) for start, n in zip(starts, lengths, strict=True)]
    if ranges[0] & ranges[1]:
        with pytest.raises(ParamsError, match=r"share characters|overlap"):
            refuse_overlap(train, validation, "sources.s")
    else:
        refuse_overlap(train, validation, "sources.s")
    refuse_overlap(train, Slice("other", starts[1], lengths[1]), "sources.s")

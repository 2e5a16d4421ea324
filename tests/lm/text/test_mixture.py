"""A mixture is read as one stream: which documents, in which order, with which counts, and what is refused."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import DataError
from lm.text import mixture, parquet, raw_files
from lm.text.documents import open_manifest, open_text
from lm.text.slices import Slice
from support.mixture_cases import write_mixture
from support.properties import check_examples

A = [f"a{i:02d}" for i in range(20)]  # 60 bytes
B = [f"bbbb{i:02d}" for i in range(5)]  # 30 bytes
C = ["cc"]  # 2 bytes
SOURCES = {name: {"train": texts, "validation": texts[::-1]} for name, texts in {"a": A, "b": B, "c": C}.items()}
TRAIN = Slice("train", 0, None)
VALIDATION = Slice("validation", 0, None)


def make(folder, slices=None, **weights) -> Path:
    """Write the mixture of SOURCES with these weights, 0 for the others, into a folder and return it."""
    write_mixture(folder, SOURCES, {"a": 0, "b": 0, "c": 0} | weights, **(slices or {}))
    return folder


def texts_of(raw, text_slice):
    return [text for batch in open_text(raw, text_slice).batches() for text in batch]


def test_validation_is_each_source_once(tmp_path):
    raw = make(tmp_path, a=1)
    assert texts_of(raw, VALIDATION) == A[::-1] + B[::-1] + C
    (chunk,) = open_text(raw, VALIDATION).chunks(10**6)
    assert list(chunk.sources.items()) == [("a", (20, 60)), ("b", (5, 30)), ("c", (1, 2))]


def test_a_row_has_its_source_and_its_bytes(tmp_path):
    table = pq.read_table(make(tmp_path, a=1, b=1) / "train.parquet").to_pydict()
    assert set(zip(table["text"], table["source"], table["utf8_bytes"], strict=True)) == {
        *((text, "a", 3) for text in A[:15]), *((text, "b", 6) for text in B)
    }  # fmt: skip
    entry = open_manifest(tmp_path)["splits"]["train"]
    assert entry["sources"]["a"] == {"documents": 15, "utf8_bytes": 45, "passes": 0.75}
    assert entry["sources"]["b"] == {"documents": 8, "utf8_bytes": 48, "passes": 1.6}


def test_documents_whose_turn_comes_at_once_are_in_the_order_of_the_sources(tmp_path):
    """With many sources of few documents, all at once; a sort that is not stable keeps the order of sixteen only."""
    names = [f"s{number:02d}" for number in range(40)]
    sources = {name: {"train": [f"{name} 1", f"{name} 2"], "validation": [name]} for name in names}

    write_mixture(tmp_path, sources, dict.fromkeys(names, 1.0))

    assert texts_of(tmp_path, TRAIN) == [f"{name} {turn}" for turn in (1, 2) for name in names]


def test_each_source_has_its_own_slices(tmp_path):
    slices = {"train": {"split": "train", "start_char": 30, "num_chars": None}}
    slices["validation"] = {"split": "train", "start_char": 0, "num_chars": 30}
    raw = make(tmp_path, {"a": slices}, a=1)
    assert texts_of(raw, TRAIN) == A[10:]
    assert texts_of(raw, VALIDATION) == A[:10] + B[::-1] + C


@pytest.mark.parametrize("text_slice", [TRAIN, VALIDATION])
def test_a_slice_of_the_mixture_is_a_range_of_the_stream(tmp_path, text_slice):
    raw = make(tmp_path, a=1, b=1)
    whole = texts_of(raw, text_slice)
    starts = np.cumsum([0, *map(len, whole)])[:-1]
    for start, num_chars in ((0, 20), (20, 40), (7, 21), (60, None)):
        end = np.inf if num_chars is None else start + num_chars
        wanted = [text for text, place in zip(whole, starts, strict=True) if start <= place < end]
        assert texts_of(raw, Slice(text_slice.split, start, num_chars)) == wanted


def test_a_split_that_a_mixture_lacks_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"sources.mix has no split 'text'; its splits are train, validation"):
        texts_of(make(tmp_path, a=1), Slice("text", 0, None))


# Properties.


TEXTS = st.lists(st.text(st.sampled_from("aé漢\N{GRINNING FACE}"), max_size=12), min_size=1, max_size=15).filter(any)
PARTS = st.lists(st.tuples(TEXTS, st.sampled_from([0, 0.1, 0.5, 1, 2.7, 10])), min_size=1, max_size=4).filter(
    lambda sources: any(weight for _, weight in sources)
)


def expected_stream(sources: list[tuple[list[str], float]]) -> list[tuple[int, str]]:
    """Return (source, document) in the order of the definition, one document at a time."""
    sources = [([text for text in texts if text], weight) for texts, weight in sources]
    sum_of_weights = sum(weight for _, weight in sources if weight)
    total = sum(len(text.encode()) for texts, weight in sources if weight for text in texts)
    keyed = []
    for number, (texts, weight) in enumerate(sources):
        position = 0
        count = itertools.count()
        for text in itertools.cycle(texts) if weight else ():
            key = position / (weight / sum_of_weights)
            if key >= total:
                break
            keyed.append((key, number, next(count), text))
            position += len(text.encode())
    return [(number, text) for _, number, _, text in sorted(keyed)]


def read_stream(sources, chunk_chars: int, per_file: int) -> list[tuple[str, dict]]:
    """Return the documents of the mixed stream, and the totals of the sources."""
    names = [f"p{number}" for number in range(len(sources))]
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: {"train": texts, "validation": ["v"]} for name, (texts, _) in zip(names, sources, strict=True)}
        weights = {name: weight for name, (_, weight) in zip(names, sources, strict=True)}
        write_mixture(Path(folder), texts, weights, per_file)
        chunks = list(open_text(Path(folder), TRAIN).chunks(chunk_chars))
    totals = {name: [0, 0] for name in names}
    for chunk in chunks:
        for name, count in chunk.sources.items():
            totals[name] = [totals[name][0] + count.documents, totals[name][1] + count.utf8_bytes]
    return [text for chunk in chunks for text in chunk.texts.to_pylist()], totals


@check_examples
@given(
    sources=PARTS, chunk_chars=st.integers(1, 60), per_file=st.integers(1, 6), rows=st.integers(1, 5),
    batch_bytes=st.integers(1, 200), group_chars=st.integers(1, 2000),
)  # fmt: skip
def test_the_stream_is_the_definition_for_any_batches(sources, chunk_chars, per_file, rows, batch_bytes, group_chars):
    expected = expected_stream(sources)
    sizes = {"BATCH_BYTES": batch_bytes, "MAX_BATCH_ROWS": rows}
    with (
        mock.patch.multiple(mixture, **sizes),
        mock.patch.multiple(parquet, **sizes),
        mock.patch.multiple(raw_files, GROUP_CHARS=group_chars),
    ):
        texts, totals = read_stream(sources, chunk_chars, per_file)
    assert texts == [text for _, text in expected]
    for number, counted in enumerate(totals.values()):
        own = [len(text.encode()) for source, text in expected if source == number]
        if len(sources) == 1:  # counted as a whole alone
            continue
        assert counted == [len(own), sum(own)]

"""A mixture is read as one stream: which documents, in which order, with which counts, and what is refused."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import NoDocument, ParamsError
from lm.text import mixture, parquet
from lm.text.documents import iter_chunks, iter_rows, iter_texts, read_manifest, sources_of
from lm.text.slices import MixedSlice, Slice, slice_from
from support.mixture_cases import mixed, write_mixture
from support.properties import check_examples

A = [f"a{i:02d}" for i in range(20)]  # 60 bytes
B = [f"bbbb{i:02d}" for i in range(5)]  # 30 bytes
C = ["cc"]  # 2 bytes
VALIDATION = Slice("validation", 0, None)


@pytest.fixture
def raw(tmp_path):
    sources = {"a": A, "b": B, "c": C}
    write_mixture(tmp_path, {name: {"train": texts, "validation": texts[::-1]} for name, texts in sources.items()})
    return tmp_path


def texts_of(raw, text_slice, dropped=None):
    return [text for batch in iter_texts(raw, text_slice, dropped) for text in batch]


def train(**weights):
    return slice_from(mixed({"a": 0, "b": 0, "c": 0} | weights))


def test_validation_is_each_source_once(raw):
    assert texts_of(raw, VALIDATION) == A[::-1] + B[::-1] + C
    (chunk,) = iter_chunks(raw, read_manifest(raw), VALIDATION, 10**6)
    assert list(chunk.sources) == ["a", "b", "c"] and chunk.sources["b"] == (5, 30, 30)


def test_each_source_has_its_own_slices(tmp_path):
    slices = {"train": {"split": "train", "start_char": 30, "num_chars": None}}
    slices["validation"] = {"split": "train", "start_char": 0, "num_chars": 30}
    write_mixture(tmp_path, {"a": {"train": A}, "b": {"train": B, "validation": B}}, a=slices)
    assert texts_of(tmp_path, slice_from(mixed({"a": 1, "b": 0}))) == A[10:]
    assert texts_of(tmp_path, VALIDATION) == A[:10] + B


@pytest.mark.parametrize("text_slice", [train(a=1, b=1), VALIDATION])
def test_a_slice_of_the_mixture_is_a_range_of_the_stream(raw, text_slice):
    whole = texts_of(raw, text_slice)
    starts = np.cumsum([0, *map(len, whole)])[:-1]
    for start, num_chars in ((0, 20), (20, 40), (7, 21), (60, None)):
        end = np.inf if num_chars is None else start + num_chars
        wanted = [text for text, place in zip(whole, starts, strict=True) if start <= place < end]
        range_of = {**vars(text_slice), "start_char": start, "num_chars": num_chars}
        assert texts_of(raw, slice_from(range_of)) == wanted


def test_dropped_documents_do_not_count(raw):
    dropped = {("a", "train"): np.arange(10), ("b", "validation"): np.array([0, 4]), ("c", "train"): np.array([0])}
    assert texts_of(raw, train(a=1), dropped) == A[10:]
    assert texts_of(raw, VALIDATION, dropped) == A[::-1] + B[::-1][1:4] + C
    (chunk,) = iter_chunks(raw, read_manifest(raw), train(a=1, b=1), 10**6, dropped)
    assert chunk.sources["a"] == (10, 30, 30) and chunk.sources["b"] == (5, 30, 30)


def test_dropped_numbers_count_over_all_files(tmp_path):
    texts = ["", "aa", None, "bb", "", "cc", "dd", "ee"]
    manifest = write_mixture(tmp_path, {"a": {"train": texts, "validation": ["x"]}}, per_file=3)
    source, dropped = sources_of(manifest)["a"], {("a", "train"): np.array([1, 3])}
    rows = iter_rows(tmp_path, source, Slice("train", 0, None), dropped=dropped)
    assert [text for batch, _ in rows for text in batch.column(0).to_pylist()] == ["aa", "cc", "ee"]
    rows = iter_rows(tmp_path, source, Slice("train", 2, 4), dropped=dropped)  # bb and cc before the selection
    assert [text for batch, _ in rows for text in batch.column(0).to_pylist()] == ["cc"]


def test_a_part_without_a_document_is_refused(raw):
    dropped = {("b", "train"): np.arange(5)}
    sentence = "sources.b: no document of split 'train' in characters 0 to inf is left after the selection; loosen"
    with pytest.raises(NoDocument, match=sentence):
        texts_of(raw, train(a=1, b=1), dropped)
    assert texts_of(raw, train(a=1), dropped) == A


@pytest.mark.parametrize(
    ("text_slice", "sentence"),
    [
        (
            slice_from(mixed({"a": 1, "b": 1, "c": 1, "d": 1})),
            "sources.mix.train.weights names 'd', which is not a source",
        ),
        (slice_from(mixed({"a": 1, "b": 1})), "sources.mix.train.weights has no weight of the source 'c'; give it one"),
        (Slice("train", 0, None), "sources.mix.train.weights is missing, and sources.mix is a mixture"),
        (Slice("text", 0, None), "sources.mix.validation.split is 'text', needed for a mixture: validation"),
        (MixedSlice("text", 0, None, {"a": 1, "b": 1, "c": 1}), "sources.mix.train.split is 'text', needed for a mix"),
    ],
)
def test_a_slice_that_does_not_fit_the_mixture_is_refused(raw, text_slice, sentence):
    with pytest.raises(ParamsError, match=sentence):
        texts_of(raw, text_slice)


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
        position, count = 0, itertools.count()
        for text in itertools.cycle(texts) if weight else ():
            key = position / (weight / sum_of_weights)
            if key >= total:
                break
            keyed.append((key, number, next(count), text))
            position += len(text.encode())
    return [(number, text) for _, number, _, text in sorted(keyed)]


@check_examples
@given(sources=PARTS)
def test_the_order_of_sources_follows_from_the_sizes_of_documents(sources):
    sources = [(texts, weight) for texts, weight in sources if weight]
    expected = expected_stream(sources)
    sizes = [len(text.encode()) for _, text in expected]
    assert mixture.order_of_sources(sizes, [weight for _, weight in sources]) == [number for number, _ in expected]


def read_stream(sources, chunk_chars: int, per_file: int) -> list[tuple[str, dict]]:
    """Return the documents of the mixed stream, and the totals of the sources."""
    names = [f"p{number}" for number in range(len(sources))]
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: {"train": texts, "validation": ["v"]} for name, (texts, _) in zip(names, sources, strict=True)}
        manifest = write_mixture(Path(folder), texts, per_file)
        weights = {name: weight for name, (_, weight) in zip(names, sources, strict=True)}
        chunks = list(iter_chunks(Path(folder), manifest, slice_from(mixed(weights)), chunk_chars))
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
    with mock.patch.multiple(mixture, **sizes), mock.patch.multiple(parquet, **sizes, GROUP_CHARS=group_chars):
        texts, totals = read_stream(sources, chunk_chars, per_file)
    assert texts == [text for _, text in expected]
    for number, counted in enumerate(totals.values()):
        own = [len(text.encode()) for source, text in expected if source == number]
        assert counted == [len(own), sum(own)]

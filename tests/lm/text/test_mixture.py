"""A mixture is read as one stream: which documents, in which order, with which counts, and what is refused."""

import numpy as np
import pytest

from lm.core.errors import DataError, IntegrityError, NoDocument, ParamsError
from lm.text.documents import files_of, iter_chunks, iter_rows, iter_texts, parts_of, read_manifest
from lm.text.slices import MixedSlice, Slice, slice_from
from support.mixture_cases import mixed, write_mixture

A = [f"a{i:02d}" for i in range(20)]  # 60 bytes
B = [f"bbbb{i:02d}" for i in range(5)]  # 30 bytes
C = ["cc"]  # 2 bytes
VALIDATION = Slice("validation", 0, None)


@pytest.fixture
def raw(tmp_path):
    parts = {"a": A, "b": B, "c": C}
    write_mixture(tmp_path, {name: {"train": texts, "validation": texts[::-1]} for name, texts in parts.items()})
    return tmp_path


def texts_of(raw, part_slice, dropped=None):
    return [text for batch in iter_texts(raw, part_slice, dropped) for text in batch]


def train(**weights):
    return slice_from(mixed({"a": 0, "b": 0, "c": 0} | weights))


def test_documents_alternate_by_bytes_and_equal_keys_are_in_the_order_of_the_parts(raw):
    # 90 bytes in all, half of each: 45 bytes of a, and 30 of b, which begins again.
    expected, given = [], {"a": 0, "b": 0}
    while min(given.values()) < 45:
        name = min(given, key=lambda name: (given[name] / 0.5, name))
        texts = A if name == "a" else B
        text = texts[given[name] // len(texts[0]) % len(texts)]
        expected.append(text)
        given[name] += len(text)
    assert texts_of(raw, train(a=1, b=1)) == expected
    assert expected[:6] == ["a00", "bbbb00", "a01", "a02", "bbbb01", "a03"]
    assert expected.count("bbbb00") == 2 and expected.count("bbbb03") == 1


def test_a_part_with_weight_0_gives_nothing_and_does_not_lengthen_the_stream(raw):
    assert texts_of(raw, train(b=3)) == B
    assert {text[0] for text in texts_of(raw, train(a=1, b=1))} == {"a", "b"}


def test_a_tiny_part_is_repeated_whole_as_often_as_its_weight_asks(raw):
    texts = texts_of(raw, train(a=1, c=1))  # 62 bytes: 31 of each
    assert texts.count("cc") == 16
    (chunk,) = iter_chunks(raw, read_manifest(raw), train(a=1, c=1), 10**6)
    assert chunk.parts["c"] == (16, 32, 2) and chunk.parts["a"] == (11, 33, 60)


def test_validation_is_each_part_once_one_after_the_other(raw):
    assert texts_of(raw, VALIDATION) == A[::-1] + B[::-1] + C
    (chunk,) = iter_chunks(raw, read_manifest(raw), VALIDATION, 10**6)
    assert list(chunk.parts) == ["a", "b", "c"] and chunk.parts["b"] == (5, 30, 30)


def test_the_slices_of_the_parts_are_ranges_of_their_characters(tmp_path):
    slices = {"train": {"split": "train", "start_char": 30, "num_chars": None}}
    slices["validation"] = {"split": "train", "start_char": 0, "num_chars": 30}
    write_mixture(tmp_path, {"a": {"train": A}, "b": {"train": B, "validation": B}}, a=slices)
    assert texts_of(tmp_path, slice_from(mixed({"a": 1, "b": 0}))) == A[10:]
    assert texts_of(tmp_path, VALIDATION) == A[:10] + B


@pytest.mark.parametrize("part_slice", [train(a=1, b=1), VALIDATION])
def test_a_slice_of_the_mixture_is_a_range_of_the_stream(raw, part_slice):
    whole = texts_of(raw, part_slice)
    starts = np.cumsum([0, *map(len, whole)])[:-1]
    for start, num_chars in ((0, 20), (20, 40), (7, 21), (60, None)):
        end = np.inf if num_chars is None else start + num_chars
        wanted = [text for text, place in zip(whole, starts, strict=True) if start <= place < end]
        range_of = {**vars(part_slice), "start_char": start, "num_chars": num_chars}
        assert texts_of(raw, slice_from(range_of)) == wanted


def test_dropped_documents_are_left_out_and_their_bytes_do_not_count(raw):
    dropped = {("a", "train"): np.arange(10), ("b", "validation"): np.array([0, 4]), ("c", "train"): np.array([0])}
    assert texts_of(raw, train(a=1), dropped) == A[10:]
    assert texts_of(raw, VALIDATION, dropped) == A[::-1] + B[::-1][1:4] + C
    (chunk,) = iter_chunks(raw, read_manifest(raw), train(a=1, b=1), 10**6, dropped)
    assert chunk.parts["a"] == (10, 30, 30) and chunk.parts["b"] == (5, 30, 30)


def test_dropped_numbers_count_documents_with_text_over_all_files_before_the_slice(tmp_path):
    texts = ["", "aa", None, "bb", "", "cc", "dd", "ee"]
    manifest = write_mixture(tmp_path, {"a": {"train": texts, "validation": ["x"]}}, per_file=3)
    part, dropped = parts_of(manifest)["a"], {("a", "train"): np.array([1, 3])}
    rows = iter_rows(tmp_path, part, Slice("train", 0, None), dropped=dropped)
    assert [text for batch, _ in rows for text in batch.column(0).to_pylist()] == ["aa", "cc", "ee"]
    rows = iter_rows(tmp_path, part, Slice("train", 2, 4), dropped=dropped)  # bb and cc before the selection
    assert [text for batch, _ in rows for text in batch.column(0).to_pylist()] == ["cc"]


def test_a_part_without_a_document_is_refused(raw):
    dropped = {("b", "train"): np.arange(5)}
    sentence = "sources.b: no document of split 'train' in characters 0 to inf is left after the selection; loosen"
    with pytest.raises(NoDocument, match=sentence):
        texts_of(raw, train(a=1, b=1), dropped)
    assert texts_of(raw, train(a=1), dropped) == A


def test_a_part_whose_slice_is_outside_its_text_is_refused(tmp_path):
    for start, sentence in (
        (60, "sources.a: start_char is 60, but split"),
        (58, "no document of split 'train' begins"),
    ):
        slices = {"train": {"split": "train", "start_char": start, "num_chars": None}}
        write_mixture(tmp_path, {"a": {"train": A, "validation": A}}, a=slices)
        with pytest.raises(DataError, match=sentence):
            texts_of(tmp_path, slice_from(mixed({"a": 1})))


@pytest.mark.parametrize(
    ("part_slice", "sentence"),
    [
        (
            slice_from(mixed({"a": 1, "b": 1, "c": 1, "d": 1})),
            "sources.mix.train.weights names 'd', which is not a part",
        ),
        (slice_from(mixed({"a": 1, "b": 1})), "sources.mix.train.weights has no weight of the part 'c'; give it one"),
        (Slice("train", 0, None), "sources.mix.train.weights is missing, and sources.mix is a mixture"),
        (Slice("text", 0, None), "sources.mix.validation.split is 'text', needed for a mixture: validation"),
        (MixedSlice("text", 0, None, {"a": 1, "b": 1, "c": 1}), "sources.mix.train.split is 'text', needed for a mix"),
    ],
)
def test_a_slice_that_does_not_fit_the_mixture_is_refused(raw, part_slice, sentence):
    with pytest.raises(ParamsError, match=sentence):
        texts_of(raw, part_slice)


def test_a_changed_file_of_a_part_is_detected(raw):
    assert len(files_of(read_manifest(raw))) == 6
    (raw / "b/train/0000.parquet").write_bytes(b"damaged")
    with pytest.raises(IntegrityError, match=r"b/train/0000\.parquet: sha256 is"):
        read_manifest(raw)

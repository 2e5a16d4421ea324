"""Documents are read validation first, what is dropped is recorded with its reason, and read back if it fits."""

import dataclasses
import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.core.params import read_section
from lm.text.documents import Slice
from lm.text.parquet import describe_split, write_documents
from lm.text.rules import RULES, Selection
from lm.text.selection import (
    add_up,
    describe_selection,
    iter_documents,
    kept_texts,
    mark_documents,
    read_dropped,
    texts_at,
)
from support import ROOT
from support.selections import make_selection

EXACT = dataclasses.replace(
    read_section(ROOT / "presets.yaml", "selections.none", Selection), exact_duplicates=True, min_chars=2
)


def write_raw(raw, splits, source="s"):
    """Write a plain source; each split is a list of files, each a list of texts."""
    for split, files in splits.items():
        for number, texts in enumerate(files):
            write_documents(raw / split / f"{number:04d}.parquet", texts)
    described = {split: describe_split(raw, split, "text") for split in splits}
    manifest = {"source": source, "column": "text", "splits": described}
    write_json(raw / "manifest.json", manifest)
    return manifest


def flat(batches):
    return [
        (batch.part, batch.split, int(number), text)
        for batch in batches
        for number, text in zip(batch.numbers, batch.texts, strict=True)
    ]


def test_validation_documents_come_first_whichever_split_they_are_in(tmp_path):
    splits = {"train": [["ab", None, "", "cd"], ["ef"]], "test": [["gh"]], "validation": [["ij", "kl"]]}
    manifest = write_raw(tmp_path, splits)
    order = flat(iter_documents(tmp_path, manifest, {"s": Slice("validation", 0, None)}))
    assert order == [
        ("s", "validation", 0, "ij"), ("s", "validation", 1, "kl"), ("s", "train", 0, "ab"), ("s", "train", 1, "cd"),
        ("s", "train", 2, "ef"), ("s", "test", 0, "gh"),
    ]  # fmt: skip
    order = flat(iter_documents(tmp_path, manifest, {"s": Slice("train", 2, 2)}))
    assert [entry[1:] for entry in order] == [
        ("train", 1, "cd"), ("train", 0, "ab"), ("train", 2, "ef"), ("test", 0, "gh"), ("validation", 0, "ij"),
        ("validation", 1, "kl"),
    ]  # fmt: skip


def test_validation_documents_of_all_parts_come_before_the_rest_of_any(tmp_path):
    parts = {}
    for part in ("a", "b"):
        entry = write_raw(tmp_path / part, {"train": [[f"{part} train"]], "validation": [[f"{part} validation"]]}, part)
        for split in entry["splits"].values():
            split["files"] = [file | {"path": f"{part}/{file['path']}"} for file in split["files"]]
        parts[part] = entry
    slices = dict.fromkeys(parts, Slice("validation", 0, None))
    batches = list(iter_documents(tmp_path, {"source": "m", "parts": parts}, slices))
    assert [text for batch in batches for text in batch.texts] == ["a validation", "b validation", "a train", "b train"]
    assert [batch.is_validation for batch in batches] == [True, True, False, False]


def marked(raw):
    """Return batches, as a function, and marks of a text with two duplicates and a document that is too short."""
    splits = {"train": [["one", "two", "two", "x"], ["val", "three"]], "validation": [["val", "four"]]}
    manifest = write_raw(raw, splits)
    read = lambda: iter_documents(raw, manifest, {"s": Slice("validation", 0, None)})  # noqa: E731
    return read, mark_documents(read(), EXACT)


def test_the_first_of_equal_documents_stays_validation_before_training(tmp_path):
    read, marks = marked(tmp_path)
    kept = list(itertools.chain.from_iterable(kept_texts(read(), marks)))
    assert kept == ["val", "four", "one", "two", "three"]
    dropped = [(text, RULES[rule], repeats) for (*_, text), rule, repeats
               in zip(flat(read()), marks.rule, marks.repeats, strict=True) if rule < len(RULES)]  # fmt: skip
    assert dropped == [("two", "exact_duplicates", 3), ("x", "min_chars", -1), ("val", "exact_duplicates", 0)]
    assert texts_at(read(), [6, 0, 6, 3]) == {0: "val", 3: "two", 6: "val"}


def test_a_document_that_a_cheaper_rule_drops_is_nobodys_original(tmp_path):
    manifest = write_raw(tmp_path, {"text": [["x", "x", "ab"]]})
    marks = mark_documents(iter_documents(tmp_path, manifest, {"s": Slice("text", 2, None)}), EXACT)
    assert [RULES[rule] for rule in marks.rule[1:]] == ["min_chars", "min_chars"]
    assert marks.repeats.tolist() == [-1, -1, -1]


def test_what_is_written_is_read_back(tmp_path):
    _, marks = marked(tmp_path / "raw")
    make_selection(tmp_path / "selection", tmp_path / "raw", marks)
    rows = pq.read_table(tmp_path / "selection" / "dropped.parquet").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("s", "train", 2, "exact_duplicates", "s", "train", 1),
        ("s", "train", 3, "min_chars", None, None, None),
        ("s", "train", 4, "exact_duplicates", "s", "validation", 0),
    ]
    dropped = read_dropped(tmp_path / "selection", tmp_path / "raw")
    assert {key: numbers.tolist() for key, numbers in dropped.items()} == {("s", "train"): [2, 3, 4]}
    assert dropped["s", "train"].dtype == np.int64


def test_nothing_dropped_has_no_rows_and_the_same_bytes_for_every_text(tmp_path):
    for name in ("one", "two"):
        write_raw(tmp_path / name, {"text": [[f"text {name}"]]})
        make_selection(tmp_path / f"{name} selection", tmp_path / name, None)
        assert read_dropped(tmp_path / f"{name} selection", tmp_path / name) == {}
    hashes = [read_json(tmp_path / f"{name} selection" / "details.json") for name in ("one", "two")]
    assert hashes[0].pop("manifest_sha256") != hashes[1].pop("manifest_sha256") and hashes[0] == hashes[1]


def test_a_selection_of_another_text_or_a_damaged_one_is_refused(tmp_path):
    _, marks = marked(tmp_path / "raw")
    make_selection(tmp_path / "selection", tmp_path / "raw", marks)
    described = describe_selection(tmp_path / "selection", tmp_path / "raw")
    assert described.keys() == {"dropped_sha256", "validation_dropped_sha256"}
    path = tmp_path / "selection" / "dropped.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match=r"dropped.parquet: sha256 is \w{64}, details.json says \w{64}; run `py"):
        read_dropped(tmp_path / "selection", tmp_path / "raw")
    path.unlink()
    with pytest.raises(IntegrityError, match=r"dropped\.parquet: sha256 is no file, details\.json says"):
        read_dropped(tmp_path / "selection", tmp_path / "raw")
    path.write_bytes(content)
    write_raw(tmp_path / "raw", {"text": [["another"]]})
    with pytest.raises(IntegrityError, match=r"selection: made from another version of .*raw; run `dvc repro`"):
        read_dropped(tmp_path / "selection", tmp_path / "raw")


def test_counts_are_added_up_in_the_order_of_the_rules():
    of = lambda documents: {"documents": documents, "characters": 10 * documents}  # noqa: E731
    documents = {
        "a": {"train": {"dropped": {"exact_duplicates": of(2)}}, "validation": {"dropped": {}}},
        "b": {"train": {"dropped": {"min_chars": of(1), "exact_duplicates": of(3)}}},
    }
    assert list(add_up(documents).items()) == [("min_chars", of(1)), ("exact_duplicates", of(5))]

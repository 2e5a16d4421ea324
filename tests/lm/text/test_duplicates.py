"""Duplicates are those of a plain comparison of texts, for any size of blocks and buckets."""

import random
import tracemalloc

import numpy as np
import pytest

from lm.text import duplicates
from lm.text.duplicates import (
    KINDS,
    Digests,
    count_duplicates,
    digest,
    flag_duplicates,
    iter_duplicates,
    write_digests,
)


def flags_of(tmp_path, train, validation):
    splits = [
        write_digests([texts[:2], texts[2:]], tmp_path / name)
        for name, texts in zip("ab", (train, validation), strict=True)
    ]
    return flag_duplicates(*splits)


def rows_of(flags):
    """Return document → its kinds, of the documents that are duplicates."""
    found = {}
    for columns in iter_duplicates(flags):
        assert list(columns) == ["document", *KINDS] and all(columns[kind].dtype == bool for kind in KINDS)
        for i, document in enumerate(columns["document"].tolist()):
            found[document] = {kind for kind in KINDS if columns[kind][i]}
    return found


def plain(own, others):
    """Compute the definition, document by document."""
    found = {}
    for name, change in (("exact", str), ("folded", lambda text: " ".join(text.split()))):
        texts, other_texts = [change(text) for text in own], {change(text) for text in others}
        for i, text in enumerate(texts):
            kinds = {f"{name}_within"} if text in texts[:i] else set()
            kinds |= {f"{name}_across"} if text in other_texts else set()
            found[i] = found.get(i, set()) | kinds
    return {document: kinds for document, kinds in found.items() if kinds}


def test_duplicates_within_and_across(tmp_path):
    train, validation = ["a b", "a b", "a  b", "c", "only"], ["c", "a\nb", "new", "new"]
    flags = flags_of(tmp_path, train, validation)
    assert [len(each) for each in flags] == [5, 4] and all(each.dtype == np.uint8 for each in flags)
    assert rows_of(flags[0]) == plain(train, validation) and rows_of(flags[1]) == plain(validation, train)
    assert [count_duplicates(each) for each in flags] == [
        {"exact_within": 1, "exact_across": 1, "folded_within": 2, "folded_across": 4},
        {"exact_within": 1, "exact_across": 1, "folded_within": 1, "folded_across": 2},
    ]


@pytest.mark.parametrize(("bucket", "block"), [(1 << 22, 1 << 20), (40, 7), (3, 1000), (1, 64)])
def test_the_flags_are_those_of_a_plain_comparison(tmp_path, monkeypatch, bucket, block):
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", bucket)
    monkeypatch.setattr(duplicates, "_BLOCK_DOCUMENTS", block)
    draw = random.Random(1)
    texts = [f"text{draw.choice(['', ' ', '  '])} {number}" for number in range(80)]
    train, validation = (draw.choices(texts, k=number) for number in (150, 61))
    validation += ["new", " new"]
    flags = flags_of(tmp_path, train, validation)
    assert rows_of(flags[0]) == plain(train, validation) and rows_of(flags[1]) == plain(validation, train)
    assert count_duplicates(flags[0]) == {
        kind: sum(kind in each for each in plain(train, validation).values()) for kind in KINDS
    }


def test_without_duplicates_nothing_is_yielded(tmp_path):
    flags = flags_of(tmp_path, ["a", "b", "c"], ["d"])
    assert list(iter_duplicates(flags[0])) == [] and not any(count_duplicates(flags[1]).values())


def test_the_bytes_of_documents_are_kept_and_digests_are_of_the_text(tmp_path):
    written = write_digests([["naïve é"], ["漢", " a  b "]], tmp_path / "x")
    assert (written.documents, written.read("utf8_bytes", 0, 9).tolist()) == (3, [9, 3, 6])
    assert written.read("utf8_bytes", 1, 2).tolist() == [3]
    assert written.read("exact", 2, 3).tolist() == [digest(" a  b ")]
    assert written.read("folded", 0, 3).tolist() == [digest("naïve é"), digest("漢"), digest("a b")]


def test_texts_that_differ_have_digests_of_64_bits_that_differ():
    texts = ["", "a", "a ", "é", "\ud800", "\ud801", "?"]
    assert len({digest(text) for text in texts}) == len(texts) and all(0 <= digest(text) < 2**64 for text in texts)


def test_finding_duplicates_keeps_a_byte_for_each_document(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", 1 << 16)
    monkeypatch.setattr(duplicates, "_BLOCK_DOCUMENTS", 1 << 15)
    digests = np.random.default_rng(1).integers(0, 1 << 64, 1_000_000, np.uint64)
    digests[-1] = digests[0]
    train, validation = Digests(tmp_path / "train", len(digests)), Digests(tmp_path / "validation", 10)
    for field in ("exact", "folded"):
        digests.tofile(train.file(field))
        digests[:10].tofile(validation.file(field))
    tracemalloc.start()
    flags, _ = flag_duplicates(train, validation)
    rows = {document: kinds for document, kinds in rows_of(flags).items() if "exact_within" in kinds}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == {len(digests) - 1: set(KINDS)}
    assert peak < len(digests) + 60 * (1 << 16)

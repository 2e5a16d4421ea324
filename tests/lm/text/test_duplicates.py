"""Duplicates are those of a plain comparison of texts."""

import random

import pytest

from lm.text.duplicates import KINDS, digest_texts, duplicates_of, flag_duplicates


def rows_of(flags):
    """Return document → its kinds, of the documents that are duplicates."""
    columns = duplicates_of(flags)
    return {
        document: {kind for kind in KINDS if columns[kind][i]}
        for i, document in enumerate(columns["document"].tolist())
    }


def plain(own, others):
    """Compute the definition, document by document."""
    found = {}
    for name, change in (("exact", str), ("folded", lambda text: " ".join(text.split()))):
        texts = [change(text) for text in own]
        other_texts = {change(text) for text in others}
        for i, text in enumerate(texts):
            kinds = {f"{name}_within"} if text in texts[:i] else set()
            kinds |= {f"{name}_across"} if text in other_texts else set()
            found[i] = found.get(i, set()) | kinds
    return {document: kinds for document, kinds in found.items() if kinds}


def drawn(count):
    draw = random.Random(count)
    return draw.choices([f"text{draw.choice(['', ' ', '  '])} {i}" for i in range(80)], k=count)


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        (["a b", "a b", "a  b", "c", "only"], ["c", "a\nb", "new", "new"]),
        (drawn(150), [*drawn(61), "new", " new"]),
        (["a", "b", "c"], ["d"]),
    ],
)
def test_duplicates_are_those_of_a_plain_comparison(train, validation):
    flags = flag_duplicates(digest_texts(train), digest_texts(validation))
    assert [rows_of(each) for each in flags] == [plain(train, validation), plain(validation, train)]

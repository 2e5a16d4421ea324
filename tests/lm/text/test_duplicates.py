"""Duplicates are those of a plain comparison of texts."""

import random

import pytest

from lm.text.duplicates import KINDS, digest_texts, duplicates_of, flag_duplicates


def kinds_of(flags) -> dict[int, set[str]]:
    """Return document → its kinds, of the documents that are duplicates."""
    columns = duplicates_of(flags)
    kinds = {}
    for i, document in enumerate(columns["document"].tolist()):
        kinds[document] = {kind for kind in KINDS if columns[kind][i]}
    return kinds


def folded(text: str) -> str:
    return " ".join(text.split())


def plain_kinds(own: list[str], others: list[str]) -> dict[int, set[str]]:
    """Compute the definition, document by document."""
    kinds = {}
    for i, text in enumerate(own):
        before = own[:i]
        checks = {
            "exact_within": text in before,
            "exact_across": text in others,
            "folded_within": folded(text) in [folded(other) for other in before],
            "folded_across": folded(text) in [folded(other) for other in others],
        }
        found = {kind for kind, is_duplicate in checks.items() if is_duplicate}
        if found:
            kinds[i] = found
    return kinds


def random_texts(count: int) -> list[str]:
    """Return texts of which many are equal, or equal but for white space."""
    draw = random.Random(count)
    texts = [f"text{draw.choice(['', ' ', '  '])} {i}" for i in range(80)]
    return draw.choices(texts, k=count)


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        (["a b", "a b", "a  b", "c", "only"], ["c", "a\nb", "new", "new"]),
        (random_texts(150), [*random_texts(61), "new", " new"]),
        (["a", "b", "c"], ["d"]),
    ],
)
def test_duplicates_are_those_of_a_plain_comparison(train, validation):
    in_train, in_validation = flag_duplicates(digest_texts(train), digest_texts(validation))

    assert kinds_of(in_train) == plain_kinds(train, validation)
    assert kinds_of(in_validation) == plain_kinds(validation, train)

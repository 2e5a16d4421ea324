"""The rules of one document's text: their formulas, their borders, their order, and their speed."""

import dataclasses

import numpy as np
import pytest

from lm.core.errors import ParamsError
from lm.core.params import coerce, read_section
from lm.text.rules import (
    KEPT,
    RULES,
    Selection,
    alphanumeric_fraction,
    alphanumeric_table,
    first_broken_rules,
    longest_line,
    repeated_line_fraction,
)
from support import ROOT

OFF = read_section(ROOT / "presets.yaml", "selections.none", Selection)


def broken(texts, **rules):
    """Return the names of the first broken rules; None for a document that breaks none."""
    codes = first_broken_rules(texts, dataclasses.replace(OFF, **rules))
    assert codes.dtype == np.uint8
    return [None if code == KEPT else RULES[code] for code in codes]


def test_the_formulas():
    assert [longest_line(text) for text in ("abc", "a\nbcd\n", "\n\n", "漢字\nx")] == [3, 3, 0, 2]
    assert alphanumeric_fraction("a1 é漢;\N{GRINNING FACE}-") == 4 / 8
    assert alphanumeric_fraction("\n") == 0
    assert repeated_line_fraction("ab\nab\nab\nc") == 4 / 10
    assert repeated_line_fraction("one\ntwo\n\n\n\n") == 0
    assert repeated_line_fraction("ab\n ab") == 0, "white space counts"


def test_letters_and_digits_are_those_of_every_script():
    table = alphanumeric_table()
    assert len(table) == 0x110000 and not table[0xD800:0xE000].any()
    assert table[[ord(c) for c in "aZ09éßжא漢ई٣"]].all()
    assert not table[[ord(c) for c in " \n\0-_;«…\N{GRINNING FACE}\u0301"]].any()


@pytest.mark.parametrize(
    ("rule", "limit", "kept", "dropped"),
    [
        ("min_chars", 3, "éé漢", "éé"),
        ("max_chars", 3, "éé漢", "éé漢a"),
        ("max_line_chars", 3, "abc\nabc", "abcd\nab"),
        ("min_alphanumeric_fraction", 0.5, "ab--", "ab---"),
        ("max_repeated_line_fraction", 0.4, "ab\nab\nab\nc", "ab\nab\nab\n"),
    ],
)
def test_a_document_at_the_limit_stays(rule, limit, kept, dropped):
    assert broken([kept, dropped], **{rule: limit}) == [None, rule]
    assert broken([kept, dropped]) == [None, None]


def test_the_first_broken_rule_is_named():
    text = "--\n--\n--\n"
    assert RULES[:5] == (
        "min_chars", "max_chars", "max_line_chars", "min_alphanumeric_fraction", "max_repeated_line_fraction",
    )  # fmt: skip
    limits = dict(zip(RULES[:5], (20, 4, 1, 0.5, 0.1), strict=True)) | {"min_chars": 3}
    for rule in RULES[1:5]:
        assert broken([text, "ab"], **limits) == [rule, "min_chars"]
        limits[rule] = None


def test_limits_that_contradict_each_other_are_refused():
    section = dataclasses.asdict(OFF) | {"min_chars": 9, "max_chars": 8}
    with pytest.raises(ParamsError, match=r"x\.min_chars is 9; it must be at most max_chars, which is 8"):
        coerce(section, Selection, "x", "presets.yaml")

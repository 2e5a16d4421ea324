"""The rules of one document's text: their formulas, their borders, their order, and their speed."""

import dataclasses

import numpy as np
import pytest

from lm.core.params import read_section
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


def broken(texts: list[str], **rules) -> list[str | None]:
    """Return the name of the first rule that each document breaks; None for a document that breaks none."""
    codes = first_broken_rules(texts, dataclasses.replace(OFF, **rules))
    assert codes.dtype == np.uint8
    return [None if code == KEPT else RULES[code] for code in codes]


def test_each_rule_measures_characters():
    assert longest_line("a\nbcd\n") == 3
    assert longest_line("漢字\nx") == 2

    assert alphanumeric_fraction("a1 é漢;\N{GRINNING FACE}-") == 4 / 8
    assert alphanumeric_fraction("\n") == 0

    assert repeated_line_fraction("ab\nab\nab\nc") == 4 / 10
    assert repeated_line_fraction("one\ntwo\n\n\n\n") == 0, "empty lines have no characters"
    assert repeated_line_fraction("ab\n ab") == 0, "white space makes another line"


def code_points(characters: str) -> list[int]:
    return [ord(character) for character in characters]


def test_letters_and_digits_are_those_of_every_script():
    table = alphanumeric_table()

    assert len(table) == 0x110000
    assert table[code_points("aZ09éßжא漢ई٣")].all()
    assert not table[code_points(" \n\0-_;«…\N{GRINNING FACE}\u0301")].any()
    assert not table[0xD800:0xE000].any(), "surrogates"


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


LIMITS = {
    "max_chars": 4,
    "max_line_chars": 1,
    "min_alphanumeric_fraction": 0.5,
    "max_repeated_line_fraction": 0.1,
}


def test_the_first_broken_rule_is_named():
    breaks_all = "--\n--\n--\n"

    assert broken([breaks_all, "ab"], min_chars=3, **LIMITS) == ["max_chars", "min_chars"]


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="min_chars is 9; it must be at most max_chars, which is 8"):
        dataclasses.replace(OFF, min_chars=9, max_chars=8)

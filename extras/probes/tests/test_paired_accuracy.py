"""Accuracies on the minimal pairs of two models, and McNemar's test."""

import pyarrow as pa
import pytest

from extras.probes.paired_accuracy import compare_pairs, mcnemar

WRONG_NATS = {"right": 3.0, "tie": 2.0, "wrong": 1.0}


def table(*outcomes: str, first_document=0, wrong="she") -> pa.Table:
    """Return the table of a model: one pair in each document, right, tie or wrong."""
    rows = [
        {"kind": "pronoun", "document": document, "character": 5, "right": "he", "wrong": wrong, "right_nats": 2.0,
         "wrong_nats": WRONG_NATS[outcome]}
        for document, outcome in enumerate(outcomes, first_document)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(("only_a", "only_b", "p_value"), [
    (0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (5, 0, 2 / 32), (3, 7, 352 / 1024), (5000, 5000, 1.0),
])  # fmt: skip
def test_the_p_value_is_that_of_a_fair_coin(only_a, only_b, p_value):
    assert mcnemar(only_a, only_b) == pytest.approx(p_value, rel=1e-6)


def test_two_models_are_compared_on_the_pairs_that_both_have():
    a = table(*["right"] * 10, *["wrong"] * 8)
    b = table(*["right"] * 9, "wrong", *["right"] * 6, *["wrong"] * 2)
    found = compare_pairs(a, b)["pronoun"]
    assert found == (18, 10 / 18, 15 / 18, 1, 6, pytest.approx(2 * (1 + 7) / 2**7))
    assert compare_pairs(table("right", "right", "wrong"), table("right", "wrong", first_document=1))["pronoun"][0] == 2
    assert compare_pairs(table("right"), table("right", wrong="it")) == {}


def test_a_tie_is_half_right_and_two_pairs_of_one_place_are_one_trial():
    found = compare_pairs(table("tie", "tie", "tie"), table("right", "tie", "wrong"))["pronoun"]
    assert found == (3, 0.5, 0.5, 1, 1, 1.0)
    a, b = (pa.concat_tables([table(x), table(x, wrong="it")]) for x in ("wrong", "right"))
    assert compare_pairs(a, b)["pronoun"][:5] == (2, 0.0, 1.0, 0, 1)

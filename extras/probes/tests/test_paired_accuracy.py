"""compare: accuracies on the minimal pairs of two runs, and McNemar's test."""

import pyarrow as pa
import pytest

from extras.probes.paired_accuracy import compare_pairs, mcnemar

WRONG_NATS = {"right": 3.0, "tie": 2.0, "wrong": 1.0}


def table(*outcomes: str, kind="pronoun", first_document=0, wrong="she") -> pa.Table:
    """Return the table of a run: one pair in each document, right, tie or wrong."""
    documents = range(first_document, first_document + len(outcomes))
    rows = [
        {"kind": kind, "document": d, "character": 5, "right": "he", "wrong": wrong, "right_nats": 2.0,
         "wrong_nats": WRONG_NATS[outcome]}
        for d, outcome in zip(documents, outcomes, strict=True)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(("only_a", "only_b", "p_value"), [
    (0, 0, 1.0), (5, 5, 1.0), (0, 1, 1.0), (0, 5, 2 / 32), (5, 0, 2 / 32), (1, 9, 22 / 1024), (3, 7, 352 / 1024),
    (2, 6, 74 / 256), (6, 16, 220112 / 2**22),
])  # fmt: skip
def test_the_p_value_is_that_of_a_fair_coin(only_a, only_b, p_value):
    assert mcnemar(only_a, only_b) == pytest.approx(p_value, rel=1e-6)


def test_thousands_of_discordant_pairs_do_not_overflow():
    assert mcnemar(5000, 5000) == 1 and 0 < mcnemar(4000, 4300) < 0.01 and mcnemar(0, 3000) == 0


def test_two_runs_are_compared_pair_by_pair():
    a = table(*["right"] * 10, *["wrong"] * 8)
    b = table(*["right"] * 9, "wrong", *["right"] * 6, *["wrong"] * 2)
    found = compare_pairs(a, b)["pronoun"]
    assert found == (18, 10 / 18, 15 / 18, 1, 6, pytest.approx(2 * (1 + 7) / 2**7))
    assert compare_pairs(b, a)["pronoun"] == (18, 15 / 18, 10 / 18, 6, 1, found.p_value)


def test_only_pairs_that_both_runs_have_are_counted():
    found = compare_pairs(table("right", "right", "wrong"), table("right", "wrong", first_document=1))
    assert found["pronoun"] == (2, 0.5, 0.5, 0, 0, 1.0)
    assert compare_pairs(table("right"), table("right", wrong="it")) == {}


def test_kinds_are_compared_apart():
    a, b = (pa.concat_tables([table(x), table(y, kind="bracket")]) for x, y in (("right", "wrong"), ("right", "right")))
    found = compare_pairs(a, b)
    assert (found["pronoun"].only_b, found["bracket"].only_b) == (0, 1)


def test_a_tie_is_half_right_and_loses_to_a_right_pair():
    found = compare_pairs(table("tie", "tie", "tie"), table("right", "tie", "wrong"))["pronoun"]
    assert found == (3, 0.5, 0.5, 1, 1, 1.0)


def test_two_pairs_of_one_place_are_one_trial():
    a, b = (pa.concat_tables([table(x, wrong="she"), table(x, wrong="it")]) for x in ("wrong", "right"))
    assert compare_pairs(a, b)["pronoun"][:5] == (2, 0.0, 1.0, 0, 1)

"""What differs between recorded runs, and until which step two of them had the same bits."""

import pytest

from evidence.difference import Options, difference
from evidence.runs import Group
from support.made_up_runs import facts_of, run
from tools.compare.facts import same_until, what_differs

WIDER = {"p": 1}  # the parameters of another configuration


def test_parameters_and_inputs_that_differ_are_named_with_both_values():
    a = run("a", params={"x": 1, "same": 1}, file="0123456789abc")
    b = run("b", params={"y": None, "same": 1}, file="f" * 32)

    rows = what_differs(Group("a", [a], []), Group("b", [b], []), facts_of(a, b))

    assert rows == [
        ("x", "1", "(none)"),
        ("y", "(none)", "null"),
        ("file", "0123456789", "f" * 10),
    ]


def test_the_seed_differs_only_between_single_runs():
    a = run("a", seed=1)
    b = run("b", seed=2)
    again = run("again", seed=3)

    of_single_runs = what_differs(Group("a", [a], []), Group("b", [b], []), facts_of(a, b))
    of_two_and_one = what_differs(Group("a", [a, again], []), Group("b", [b], []), facts_of(a, b))

    assert of_single_runs == [("train.seed", "1", "2")]
    assert of_two_and_one == []


def test_the_documents_that_changed_most_come_first_whatever_the_direction():
    a = run("a")
    b = run("b", params=WIDER)
    b.values[7] += 3000
    b.values[3] -= 5000

    found = difference(Group("a", [a], []), Group("b", [b], []), Options())

    assert found.most_changed(2).tolist() == [3, 7]


# Until which step two runs had the same bits.

LOSSES = ("6.5", "4.25", "3.75")
DIGESTS = ("aaa0", "bbb0", "ccc0")


def curve(losses=LOSSES, digests=DIGESTS) -> list[dict]:
    """Return validations at the steps 0, 200 and 400."""
    return [
        {"step": step, "val_loss": loss, "checkpoint_digest": digest}
        for step, loss, digest in zip(("0", "200", "400"), losses, digests, strict=True)
    ]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        pytest.param(curve(), ["identical"], id="all equal"),
        pytest.param(
            curve(("6.5", "4.25", "3.5"), ("aaa0", "bbb0", "ccc1")),
            ["identical until step 200", "step 400", "losses 3.75 and 3.5", "digests ccc0 and ccc1"],
            id="other loss and weights at the end",
        ),
        pytest.param(
            curve(digests=("aaa0", "bbb1", "ccc1")),
            ["identical until step 0", "step 200", "losses 4.25 and 4.25", "digests bbb0 and bbb1"],
            id="other weights in the middle",
        ),
        pytest.param(
            curve(digests=("aaa1", "bbb0", "ccc0")),
            ["different from step 0 on", "losses 6.5 and 6.5", "digests aaa0 and aaa1"],
            id="other weights at the beginning",
        ),
        pytest.param(
            curve()[:2],
            ["identical until step 200, the last validation of `b`"],
            id="shorter",
        ),
    ],
)
def test_the_first_validation_that_differs_is_named(other, said):
    a = run("a", curve=curve(), **{"src/lm": "1"})
    b = run("b", curve=other, **{"src/lm": "2"})

    text = same_until("a", "b", facts_of(a, b))

    for words in said:
        assert words in text


def test_nothing_is_said_of_runs_whose_bits_cannot_be_compared():
    a = run("a", curve=curve())
    without_a_digest = curve(digests=("aaa0", "bbb0", ""))

    for other in (run("b"), run("b", curve=without_a_digest), run("b", curve=curve(), data="f")):
        assert same_until("a", "b", facts_of(a, other)) is None


@pytest.mark.parametrize(("code", "cause"), [("2", "the code"), ("1", "the machine")])
def test_equal_weights_with_other_losses_are_no_proof_of_other_weights(code, cause):
    a = run("a", curve=curve(), **{"src/lm": "1"})
    b = run("b", curve=curve(losses=("9.0", "9.0", "9.0")), **{"src/lm": code})

    text = same_until("a", "b", facts_of(a, b))

    assert "equal weights at step 0" in text
    assert f"{cause} differs" in text

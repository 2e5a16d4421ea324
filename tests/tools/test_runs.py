"""What differs between recorded runs, and until which step two of them had the same bits."""

import pytest

from evidence.runs import Group
from support.made_up_runs import facts_of, run
from tools.compare.facts import different_inputs, different_parameters, same_until

WIDER = {"p": 1}  # the parameters of another configuration


def test_parameters_and_inputs_that_differ_are_named_with_both_values():
    a = run("a", params={"x": 1, "same": 1}, file="0123456789abc")
    b = run("b", params={"y": None, "same": 1}, file="f" * 32)
    groups = Group("a", [a], []), Group("b", [b], [])

    assert different_parameters(*groups, facts_of(a, b)) == [("x", 1, "(none)"), ("y", "(none)", None)]
    assert different_inputs(*groups, facts_of(a, b)) == [("file", [], "0123456789abc", "f" * 32)]


def test_the_seed_differs_only_between_single_runs():
    a = run("a", seed=1)
    b = run("b", seed=2)
    again = run("again", seed=3)

    of_single_runs = different_parameters(Group("a", [a], []), Group("b", [b], []), facts_of(a, b))
    of_two_and_one = different_parameters(Group("a", [a, again], []), Group("b", [b], []), facts_of(a, b))

    assert of_single_runs == [("train.seed", 1, 2)]
    assert of_two_and_one == []


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
    ("other", "step"),
    [
        pytest.param(curve(), 400, id="all equal"),
        pytest.param(curve(losses=("6.5", "4.25", "3.5")), 200, id="another loss at the end"),
        pytest.param(curve(digests=("aaa0", "bbb1", "ccc0")), 0, id="other weights in the middle"),
        pytest.param(curve(digests=("aaa1", "bbb0", "ccc0")), None, id="other weights at the beginning"),
        pytest.param(curve()[:2], 200, id="shorter"),
    ],
)
def test_two_runs_have_the_same_bits_until_the_last_validation_before_one_differs(other, step):
    a = run("a", curve=curve())
    b = run("b", curve=other, **{"src/lm": "2"})

    assert same_until(a.facts, b.facts) == step


def test_losses_without_digests_do_not_show_the_same_bits():
    without = run("a", curve=curve(digests=("aaa0", "", "")))

    assert same_until(without.facts, without.facts) == 0

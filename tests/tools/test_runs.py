"""What differs between recorded runs, and until which step two of them had the same bits."""

import pytest

from evidence.runs import Group
from support.made_up_runs import facts_of, run
from tools.compare.facts import different_parameters, same_until


def test_the_seed_is_no_difference_of_groups():
    a = run("a", seed=1)
    b = run("b", seed=2)
    again = run("again", seed=3)

    groups = Group("a", [a, again], []), Group("b", [b], [])
    assert different_parameters(*groups, facts_of(a, b, again)) == []


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
        (curve(losses=("6.5", "4.25", "3.5")), 200),  # another loss at the end
        (curve(digests=("aaa0", "bbb1", "ccc0")), 0),  # other weights in the middle
        (curve(digests=("aaa1", "bbb0", "ccc0")), None),  # other weights at the beginning
        (curve()[:2], 200),  # shorter
    ],
)
def test_two_runs_have_the_same_bits_until_the_last_validation_before_one_differs(other, step):
    a = run("a", curve=curve())
    b = run("b", curve=other, **{"src/lm": "2"})

    assert same_until(a.facts, b.facts) == step


def test_losses_without_digests_do_not_show_the_same_bits():
    without = run("a", curve=curve(digests=("aaa0", "", "")))

    assert same_until(without.facts, without.facts) == 0

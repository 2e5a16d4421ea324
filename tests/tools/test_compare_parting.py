"""compare: until which step two runs of the same parameters and data have the same bits."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tools.compare.figure import _draw_panel
from tools.compare.parting import parting, partings
from tools.compare.report import report
from tools.compare.runs import Group, Run, compare_groups, group_by_seed

LOSSES, DIGESTS = ("6.5", "4.25", "3.75"), ("aaa0", "bbb0", "ccc0")


def rows(losses=LOSSES, digests=DIGESTS):
    """Validations at the steps 0, 200, 400."""
    pairs = enumerate(zip(losses, digests, strict=True))
    return [
        {"step": str(200 * i), "tokens": "0", "val_loss": loss, "state_digest": digest} for i, (loss, digest) in pairs
    ]


def run(name, validations, seed=1, **inputs):
    nats, sizes = np.linspace(50, 90, 30), np.full(30, 100)
    return Run(name, nats, sizes, None, None, {"train.seed": seed}, inputs, [1, 1, 1, 1.0], None, validations)


def words(a, b):
    """Return the two clauses about runs with these validations."""
    return parting(run("a", a), run("b", b))[2:]


def test_runs_with_equal_digests_are_identical():
    assert words(rows(), rows()) == ("identical", "")


def test_the_first_validation_that_differs_is_named_with_what_differs():
    other = rows(("6.5", "4.25", "3.5"), ("aaa0", "bbb0", "ccc1"))
    assert words(rows(), other) == (
        "identical until step 200",
        "at step 400 the validation losses are 3.75 and 3.5, and the digests of the state are ccc0 and ccc1",
    )
    assert words(rows(), rows(digests=("aaa0", "bbb1", "ccc1"))) == (
        "identical until step 0",
        "at step 200 both have the validation loss 4.25, and the digests of the state are bbb0 and bbb1",
    )
    assert words(rows(), rows(("6.5", "4.5", "3.75"))) == (
        "identical until step 0",
        "at step 200 the validation losses are 4.25 and 4.5, and the digest of the state is bbb0 in both",
    )


def test_runs_that_begin_differently_have_no_step_in_common():
    until, then = words(rows(), rows(digests=("aaa1", "bbb0", "ccc0")))
    assert until == "different from step 0 on" and then.startswith("at step 0 both have the validation loss 6.5")


def test_a_run_that_ends_earlier_is_named():
    assert words(rows(), rows()[:2]) == ("identical until step 200", "the last validation of `b`")


@pytest.mark.parametrize(
    "other",
    [
        run("b", rows(), seed=2),
        run("b", rows(), **{"data/processed_datasets/train.bin": "ff"}),
        run("b", []),
        run("b", [{name: row[name] for name in ("step", "tokens", "val_loss")} for row in rows()]),
        run("b", rows(digests=("aaa0", "bbb0", ""))),
    ],
    ids=["parameters", "data", "no curve", "no column", "no digest"],
)
def test_nothing_is_said_of_other_parameters_or_data_or_without_digests(other):
    assert parting(run("a", rows()), other) is None and parting(other, run("a", rows())) is None


def test_code_and_packages_may_differ():
    a = run("a", rows(), **{"src/lm/train": "1", "requirements.txt": "1", "data/x": "1"})
    b = run("b", rows(), **{"src/lm/train": "2", "requirements.txt": "2", "data/x": "1"})
    assert parting(a, b).until == "identical"


def test_runs_of_a_group_are_paired_by_their_seeds():
    first = Group([run("a1", rows()), run("a2", rows(), seed=2)])
    again = Group([run("b1", rows()), run("b2", rows(digests=("aaa0", "bbb0", "x")), seed=2)])
    found = [(each.a, each.b, each.until) for each in partings(first, again)]
    assert found == [("a1", "b1", "identical"), ("a2", "b2", "identical until step 200")]


def test_the_report_and_the_picture_say_it():
    runs = [run("a", rows()), run("b", rows(digests=("aaa0", "bbb0", "x")))]
    comparison = compare_groups(*group_by_seed(runs), 1, 0.95, 99)
    text = "\n".join(report(group_by_seed(runs), [comparison], {}, 0, "95 %"))
    assert (
        "- Training of `a` and `b`: identical until step 200; at step 400 both have the validation loss 3.75, "
        "and the digests of the state are ccc0 and x.\n" in text
    )
    _, axes = plt.subplots()
    _draw_panel(axes, comparison, "95 %")
    assert "training of a and b: identical until step 200" in [each.get_text() for each in axes.texts]
    plt.close()


def test_the_report_and_the_picture_are_silent_about_runs_of_other_parameters():
    runs = [run("a", rows()), dataclasses.replace(run("b", rows()), params={"train.seed": 1, "p": 1})]
    comparison = compare_groups(*group_by_seed(runs), 1, 0.95, 99)
    assert "Training of" not in "\n".join(report(group_by_seed(runs), [comparison], {}, 0, "95 %"))
    _, axes = plt.subplots()
    _draw_panel(axes, comparison, "95 %")
    assert not [each for each in axes.texts if "training of" in each.get_text()]
    plt.close()

"""Runs and their groups by seed, the differences B - A between two groups, and how long two runs had the same bits."""

from dataclasses import replace

import numpy as np
import pytest

from evidence.difference import Comparison, Options, compare_groups, compare_runs, holm
from evidence.runs import Group, make_groups
from support.made_up_runs import SOURCES, MadeUpRun, facts_of, run, score_of, seeds_of
from tools.compare.facts import same_until, what_differs

WIDER = {"p": 1}  # the parameters of another configuration
DEEPER = {"p": 2}


def compared(*runs: MadeUpRun, confidence: float = 0.95) -> Comparison:
    """Return the comparison of the two groups that these runs form."""
    a, b = make_groups(list(runs))
    return compare_groups(a, b, seed=1, confidence=confidence, resamples=99)


# Groups, and what differs between them.


def test_runs_that_differ_only_in_seed_are_one_group():
    """Another configuration, the same seed again and other code are groups of their own."""
    runs = [
        run("a-1", seed=1),
        run("w-1", seed=1, params=WIDER),
        run("a-2", seed=2),
        run("w-2", seed=2, params=WIDER),
        run("again", seed=1),
        run("other code", seed=3, code="f"),
    ]

    groups = make_groups(runs)

    assert [[each.name for each in group.runs] for group in groups] == [
        ["a-1", "a-2"],
        ["w-1", "w-2"],
        ["again"],
        ["other code"],
    ]


def test_parameters_and_inputs_that_differ_are_named_with_both_values():
    a = run("a", params={"x": 1, "same": 1}, file="0123456789abc")
    b = run("b", params={"y": None, "same": 1}, file="f" * 32)

    rows = what_differs(Group([a]), Group([b]), facts_of(a, b))

    assert rows == [
        ("x", 1, "(none)"),
        ("y", "(none)", None),
        ("file", "0123456789", "f" * 10),
    ]


def test_the_seed_differs_only_between_single_runs():
    a = run("a", seed=1)
    b = run("b", seed=2)
    again = run("again", seed=3)

    of_single_runs = what_differs(Group([a]), Group([b]), facts_of(a, b))
    of_two_and_one = what_differs(Group([a, again]), Group([b]), facts_of(a, b))

    assert of_single_runs == [("train.seed", 1, 2)]
    assert of_two_and_one == []


# Differences.


def test_the_documents_that_changed_most_come_first_whatever_the_direction():
    a = run("a")
    b = run("b", params=WIDER)
    b.values[7] += 3000
    b.values[3] -= 5000

    comparison = compared(a, b)

    assert comparison.most_changed(2).tolist() == [3, 7]


def test_the_baseline_is_a_and_has_an_interval_of_the_same_confidence():
    a = run("a")
    b = run("b", seed=2, shift=0.05, params=WIDER)

    wide = compared(a, b)
    narrow = compared(a, b, confidence=0.5)

    assert wide.baseline.value == pytest.approx(score_of(a))
    assert narrow.baseline.high - narrow.baseline.low < 0.6 * (wide.baseline.high - wide.baseline.low)
    assert narrow.documents.high - narrow.documents.low < 0.6 * (wide.documents.high - wide.documents.low)


def mixture_of_two() -> tuple[MadeUpRun, MadeUpRun]:
    """Return two runs on documents of two sources; B differs most in one of them."""
    a = replace(run("a", seed=1), sources=SOURCES)
    b = replace(run("b", seed=2, params=WIDER), sources=SOURCES)
    b.values[SOURCES == "headers"] += 1000
    return a, b


def test_sources_are_compared_only_if_all_runs_have_the_same():
    a, b = mixture_of_two()

    for others in (None, SOURCES[::-1]):
        assert compared(a, replace(b, sources=others)).sources == {}


def test_a_source_without_text_is_left_out():
    """It has no bits per byte."""
    a, b = mixture_of_two()
    sizes = np.where(SOURCES == "headers", a.sizes, 0)

    comparison = compared(replace(a, sizes=sizes), replace(b, sizes=sizes))

    assert list(comparison.sources) == ["headers"]


def test_each_family_of_comparisons_is_corrected_for_their_number():
    runs = [
        *seeds_of("a", (1, 2, 3)),
        *seeds_of("b", (4, 5, 6), shift=2e-4, params=WIDER),
        *seeds_of("c", (7, 8, 9), params=DEEPER),
    ]

    found = compare_runs([replace(each, sources=SOURCES) for each in runs], Options(resamples=99))

    families = [
        lambda comparison: [comparison.documents],
        lambda comparison: [comparison.seeds],
        lambda comparison: list(comparison.sources.values()),
    ]
    for estimates_of in families:
        of_alone = [estimate for each in found.alone for estimate in estimates_of(each)]
        of_together = [estimate for each in found.corrected for estimate in estimates_of(each)]
        assert of_together == holm(of_alone)
        assert of_together != of_alone


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

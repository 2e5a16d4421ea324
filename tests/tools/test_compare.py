"""What compare says of made-up runs: warnings, and the answer for the terminal.

The differences themselves are tested in tests/evidence, runs of real experiments in test_compare_experiments.py.
"""

import pytest

from evidence.difference import Options, compare
from support.made_up_runs import MadeUpRun, facts_of, run, seeds_of
from tools.compare.answer import groups_to_extend, summary
from tools.compare.facts import notes_of

WIDER = {"p": 1}  # the parameters of another configuration


def summary_of(*runs: MadeUpRun, commands=()) -> list[str]:
    """Return the lines that the terminal shows."""
    return summary(compare(runs, Options(resamples=999)), facts_of(*runs), list(commands), unfinished="")


def warnings_of(*runs: MadeUpRun) -> dict[str, str]:
    """Return kind → sentence of the warnings about the only comparison."""
    (difference,) = compare(runs, Options(resamples=999)).differences
    return {note.kind: note.text for note in notes_of(difference, facts_of(*runs))}


# Warnings.


@pytest.mark.parametrize("name", ["train.seq_len", "eval.stride_fraction", "train.attend_across_documents"])
def test_other_context_is_warned_of_right_after_the_answer(name):
    lines = summary_of(run("a", params={name: 0}), run("b", seed=2, shift=-0.05, params={name: 1}))

    warning = f"`{name}` differs: the two were scored with different context."
    assert lines[1] == warning
    assert lines.count(warning) == 1


def test_a_group_has_the_evaluations_on_the_test_split_before_its_last_run_and_what_holds_of_any_run():
    first, second = seeds_of("a", (1, 2))
    others = seeds_of("b", (3, 4), params=WIDER)

    seen = "seen by the start: 2 of 5 documents"
    found = warnings_of(first.but(num_earlier_evaluations=2, is_lossy=True, seen=seen), second, *others)

    assert "`a-1…a-2` was run after" in found["after_test_reads"]
    assert "2 evaluations" in found["after_test_reads"]
    assert found["lossy_tokenizer"].startswith("`a-1…a-2`: ")
    assert found["seen_by_start"] == f"`a-1…a-2`: {seen}."
    own = {"after_test_reads", "lossy_tokenizer", "seen_by_start"}
    assert found.keys() - warnings_of(first, second, *others).keys() == own


LOWER = [{"val_loss": "3.5"}, {"val_loss": "3.0"}, {"val_loss": "3.25"}]
HIGHER = [{"val_loss": "3.75"}, {"val_loss": "3.25"}]


@pytest.mark.parametrize(
    ("of_a", "of_b", "why"),
    [
        ({}, {"params": WIDER}, "only some of the tokens"),
        ({}, {"data/tokenizer": "2"}, "the tokens of the two hold different text"),
        ({"params": {"train.seq_len": 256}}, {"params": {"train.seq_len": 512}}, "`train.seq_len` changes which"),
    ],
)
def test_a_validation_loss_that_points_the_other_way_is_explained(of_a, of_b, why):
    said = summary_of(run("a", curve=HIGHER, **of_a), run("b", 2, 0.05, curve=LOWER, **of_b))

    (text,) = [line for line in said if line.startswith("The validation loss points the other way")]
    assert "3.2500 → 3.0000" in text
    assert why in text


def test_a_validation_loss_that_agrees_or_is_unknown_is_not_explained():
    for a, b in ((LOWER, HIGHER), (LOWER, LOWER), (HIGHER, []), ([], LOWER)):
        assert "validation_loss" not in warnings_of(run("a", curve=a), run("b", 2, 0.05, WIDER, curve=b))


# The answer.


@pytest.mark.parametrize(
    ("params", "code", "difference"),
    [
        ({}, "1", "data/raw"),  # nothing else
        ({"p": None}, "1", "p (none) → null"),  # a parameter
        ({}, "2", "src/lm/model"),  # code
    ],
)
def test_what_stages_make_is_named_as_a_difference_only_if_nothing_else_differs(params, code, difference):
    a = run("a", **{"data/raw": "1", "src/lm/model": "1"})
    b = run("b", params=params, **{"data/raw": "2", "src/lm/model": code})

    assert f"Differs: {difference}." in summary_of(a, b)


# More seeds.


@pytest.mark.parametrize(
    ("others", "asked_for"),
    [
        ([run("b", 4, -0.5, WIDER)], ["a-1…a-3", "b"]),  # over documents
        (seeds_of("b", (4, 5, 6), 0.0, WIDER), ["a-1…a-3", "b-4…b-6"]),  # not shown
        (seeds_of("b", (4, 5, 6), -0.5, WIDER), []),  # shown over seeds
        ([run("again", 1, -0.5)], []),  # two machines
        ([], ["a-1…a-3"]),  # a single group
    ],
)
def test_more_seeds_are_asked_for_until_a_difference_over_seeds_is_shown(others, asked_for):
    found = compare([*seeds_of("a", (1, 2, 3)), *others], Options(resamples=999))

    assert [side.name for side in groups_to_extend(found)] == asked_for

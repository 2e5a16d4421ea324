"""What compare says of made-up runs: warnings, and the answer for the terminal.

The differences themselves are tested in test_runs.py, runs of real experiments in test_compare_experiments.py.
"""

import pytest

from evidence.difference import Comparisons, Difference, Options, compare
from evidence.runs import Group
from support.made_up_runs import MadeUpRun, facts_of, run, seeds_of
from support.markdown import rows_of
from tools.compare import cli
from tools.compare.answer import Origin, cite, groups_to_extend, summary
from tools.compare.facts import notes_of
from tools.record.parameters import Difference as Changed

WIDER = {"p": 1}  # the parameters of another configuration


def found_of(*runs: MadeUpRun, **options) -> Comparisons:
    return compare(runs, Options(resamples=999, **options))


def comparisons_of(*runs: MadeUpRun) -> list[Difference]:
    return found_of(*runs).corrected


def line_of(text: str, start: str) -> str:
    """Return the only line that begins with these words."""
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line


def summary_of(*runs: MadeUpRun, commands=(), **options) -> list[str]:
    """Return the lines that the terminal shows."""
    return summary(found_of(*runs, **options), facts_of(*runs), list(commands), unfinished="")


# To quote.


def test_a_citation_has_the_difference_both_intervals_and_what_was_measured():
    runs = [*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5, 6), 0.05, WIDER)]
    found = found_of(*runs)
    comparison = found.corrected[0]

    changes = [Changed("train.max_tokens", 900, 100)]
    text = "\n".join(cite(found, facts_of(*runs), Origin("headers", "c0ffee" * 11, ["abcdef", "fedcba"], changes)))

    over_documents = f"{comparison.documents.low:+.4f} to {comparison.documents.high:+.4f}"
    over_seeds = f"{comparison.seeds.low:+.4f} to {comparison.seeds.high:+.4f}"
    said = line_of(text, "On 40 validation documents")
    assert f"a difference of {comparison.documents.value:+.4f} (worse)." in said
    assert f"95 % interval over documents is {over_documents}, and" in said
    assert (
        f"over seeds {over_seeds} (3 and 3 independent runs). The interval over seeds decides. Differs: p (none) → 1."
        in said
    )
    made_by = "Code and parameters: commits abcdef, fedcba; `a-1…a-3` has train.max_tokens 100 instead of 900."
    assert f"SHA-256 c0ffeec0ffee. {made_by}" in line_of(text, "Table: ")
    assert "\n\n\n" not in text
    baseline, other = [row for row in rows_of(text) if row[1] == "3"]
    assert baseline[3:] == ["–"] * 4
    assert other[4:6] == [over_documents, over_seeds]


# Warnings.


def warnings_of(*runs: MadeUpRun) -> dict[str, str]:
    """Return kind → sentence of the warnings about the only comparison."""
    (comparison,) = comparisons_of(*runs)
    return {note.kind: note.text for note in notes_of(comparison, facts_of(*runs))}


@pytest.mark.parametrize("name", ["train.seq_len", "eval.stride_fraction", "train.attend_across_documents"])
def test_other_context_is_warned_of_right_after_the_answer(name):
    a = run("a", seed=1, params={name: 0})
    b = run("b", seed=2, shift=-0.05, params={name: 1})

    warning = warnings_of(a, b)["other_context"]
    lines = summary_of(a, b)

    assert f"`{name}`" in warning
    assert lines[1] == warning
    assert lines.count(warning) == 1


def test_a_group_has_the_looks_at_the_test_split_of_the_run_that_came_last():
    first, second = seeds_of("a", (1, 2))
    others = seeds_of("b", (3, 4), params=WIDER)

    text = warnings_of(first.but(num_earlier_looks=2), second, *others)["after_test_reads"]

    assert "`a-1…a-2`" in text
    assert "2 looks" in text


def test_a_lossy_tokenizer_is_warned_of_with_its_run():
    a = run("a")
    b = run("b", params=WIDER)

    lossy = warnings_of(a, b.but(is_lossy=True))
    lossless = warnings_of(a, b)

    assert lossy["lossy_tokenizer"].startswith("`b`: ")
    assert "lossy_tokenizer" not in lossless


LOWER = [{"val_loss": "3.5"}, {"val_loss": "3.0"}, {"val_loss": "3.25"}]
HIGHER = [{"val_loss": "3.75"}, {"val_loss": "3.25"}]


@pytest.mark.parametrize(
    ("of_a", "of_b", "why"),
    [
        ({}, {"params": WIDER}, "of some of the tokens only"),
        ({}, {"data/tokenizer": "2"}, "the tokens of the two hold different text"),
        ({"params": {"train.seq_len": 256}}, {"params": {"train.seq_len": 512}}, "`train.seq_len` changes of which"),
    ],
)
def test_a_validation_loss_that_points_the_other_way_is_explained(of_a, of_b, why):
    a = run("a", curve=HIGHER, **of_a)
    b = run("b", seed=2, shift=0.05, curve=LOWER, **of_b)

    said = summary_of(a, b)
    text = warnings_of(a, b)["validation_loss"]

    (differs,) = [line for line in said if line.startswith("Differs: ")]
    assert said.index(text) < said.index(differs)
    assert "3.2500 → 3.0000" in text
    assert why in text


def test_a_validation_loss_that_agrees_or_is_unknown_is_not_explained():
    for a, b in ((LOWER, HIGHER), (LOWER, LOWER), (HIGHER, []), ([], LOWER)):
        assert "validation_loss" not in warnings_of(run("a", curve=a), run("b", 2, 0.05, WIDER, curve=b))


# The answer.


@pytest.mark.parametrize(
    ("params", "code", "difference"),
    [
        pytest.param({}, "1", "data/raw", id="nothing else"),
        pytest.param(WIDER, "1", "p (none) → 1", id="a parameter"),
        pytest.param({"p": None}, "1", "p (none) → null", id="no value"),
        pytest.param({}, "2", "src/lm/model", id="code"),
    ],
)
def test_what_stages_make_is_named_as_a_difference_only_if_nothing_else_differs(params, code, difference):
    a = run("a", **{"data/raw": "1", "src/lm/model": "1"})
    b = run("b", params=params, **{"data/raw": "2", "src/lm/model": code})

    assert f"Differs: {difference}." in summary_of(a, b)


# More seeds.


def test_more_seeds_are_asked_for_until_a_difference_over_seeds_is_shown():
    a = seeds_of("a", (1, 2, 3))

    def asked_for(*b: MadeUpRun) -> list[str]:
        return [side.name for side in groups_to_extend(found_of(*a, *b))]

    assert asked_for(run("b", 4, -0.5, WIDER)) == ["a-1…a-3", "b"]
    assert asked_for(*seeds_of("b", (4, 5, 6), 0.0, WIDER)) == ["a-1…a-3", "b-4…b-6"]
    assert asked_for(*seeds_of("b", (4, 5, 6), -0.5, WIDER)) == []

    # No seed tells two machines apart, and a single group needs more.
    assert asked_for(run("again", 1, -0.5)) == []
    assert asked_for() == ["a-1…a-3"]


def test_the_time_of_the_missing_seeds_is_that_of_each_of_them(monkeypatch):
    """Four runs of 120 s, and one of 60 s: 9 minutes."""
    a = [run("a", 1).but(train_seconds=120.0)]
    b = [each.but(train_seconds=60.0) for each in seeds_of("b", (1, 2, 3, 4), params=WIDER)]
    monkeypatch.setattr(cli, "queue_commands", lambda *arguments: ["queue"])
    monkeypatch.setattr(cli, "experiment_names", list)

    sides = [Group("a", a, []), Group("b", b, [])]
    *_, begin, again = cli.commands_for_more_seeds(sides, facts_of(*a, *b), ["a", "b*"])

    assert "about 9 min of training here" in begin
    assert again == "python src compare a 'b*' 'a-seeds-*' b-seeds"


# A single group.


def test_a_single_group_has_the_noise_of_its_seeds_and_the_commands_for_more():
    lines = summary_of(*seeds_of("a", (1, 2, 3)), commands=["more"])

    assert "standard deviation over 3 seeds" in lines[0]
    assert lines[-2:] == ["To run the missing seeds:", "more"]

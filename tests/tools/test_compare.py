"""What compare says of made-up runs: warnings, the tables of the report, and the answer for the terminal.

The differences themselves are tested in test_runs.py, runs of real experiments in test_compare_experiments.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from evidence.difference import Comparison, Comparisons, Options, compare_groups, compare_runs
from evidence.runs import Group
from evidence.spread import detectable_by_runs, detectable_difference, units_needed
from support.made_up_runs import NUM_DOCUMENTS, SOURCES, MadeUpRun, facts_of, run, score_of, seeds_of
from support.markdown import rows_of
from tools.common.parameters import Difference
from tools.compare.answer import MOST_LINES, groups_to_extend, summary
from tools.compare.cite import Origin, citation
from tools.compare.facts import notes_of
from tools.compare.report import report

WIDER = {"p": 1}  # the parameters of another configuration


def found_of(*runs: MadeUpRun, **options) -> Comparisons:
    return compare_runs(runs, Options(resamples=999, **options))


def comparisons_of(*runs: MadeUpRun) -> list[Comparison]:
    return found_of(*runs).corrected


def report_of(*runs: MadeUpRun, **options) -> str:
    previews = dict.fromkeys(range(NUM_DOCUMENTS), "its words")
    lines = report(found_of(*runs, **options), facts_of(*runs), previews, num_listed=3, commands=[])
    return "\n".join(lines)


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

    changes = [Difference("train.max_tokens", 900, 100)]
    text = "\n".join(citation(found, facts_of(*runs), Origin("headers", "c0ffee" * 11, ["abcdef", "fedcba"], changes)))

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


def test_a_citation_of_single_runs_is_decided_over_documents():
    origin = Origin("headers", "c0ffee", ["abcdef"], [])
    runs = run("a"), run("b", 2, 0.05, WIDER)
    text = "\n".join(citation(found_of(*runs), facts_of(*runs), origin))

    assert "The interval over documents decides." in line_of(text, "On 40 validation documents")
    assert line_of(text, "Text: ").endswith("Code and parameters: commit abcdef.")


def test_a_citation_says_that_no_difference_was_shown():
    origin = Origin("headers", "c0ffee", ["abcdef"], [])
    runs = run("a"), run("b", 2, 0.0, WIDER)
    text = "\n".join(citation(found_of(*runs), facts_of(*runs), origin))

    assert " (no difference was shown). " in line_of(text, "On 40 validation documents")


def test_a_run_beside_itself_is_not_cited():
    same = found_of(run("a"), run("b"))

    assert citation(same, {}, Origin("headers", "c0ffee", ["abcdef"], [])) == []


# Verdicts.


def test_the_verdict_of_several_comparisons_follows_from_the_corrected_p():
    a = run("a", seed=1)
    near = run("near", seed=2, shift=0.001, params={"p": 0})
    far = run("far", seed=3, shift=0.05, params={"p": 1})
    same = run("same", seed=4, params={"p": 2})

    alone = comparisons_of(a, near)[0].documents.p_value
    of_near, of_far, _ = [each.documents.p_value for each in comparisons_of(a, near, far, same)]
    text = report_of(a, near, far, same)

    assert alone <= 0.05 < of_near
    assert f"no difference was shown between `a` and `near`; p is {of_near:.2g} after Holm's correction" in text
    assert f"`far` is worse than `a`; p ≤ {of_far:.2g} after Holm's correction" in text


def test_p_of_one_mixture_is_corrected_for_its_sources_and_says_so():
    a = replace(run("a"), sources=SOURCES)
    b = replace(run("b", seed=2, shift=0.01, params=WIDER), sources=SOURCES)

    heading_of_sources = next(row for row in rows_of(report_of(a, b)) if row[0] == "noise from")
    heading = next(row for row in rows_of(report_of(run("a"), run("b", 2, 0.01, WIDER))) if row[0] == "noise from")

    assert heading_of_sources[-1] == "p after Holm"
    assert heading[-1] == "p"


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


def test_a_side_with_a_single_run_is_warned_of():
    a = run("a")
    several = seeds_of("b", (10, 11, 12), params=WIDER)

    assert "only one run of `a` counts," in warnings_of(a, *several)["single_runs"]
    assert "single_runs" not in warnings_of(*seeds_of("a", (1, 2)), *several)


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


def test_only_a_run_that_is_equal_in_all_things_is_the_same_run():
    a = run("a")
    others = [
        run("b", seed=2),
        run("b", params=WIDER),
        run("b", **{"src/lm": "2"}),
        replace(a, name="b", values=a.values + 1e-9),
    ]

    same = replace(a, name="b")

    assert summary_of(a, same) == [warnings_of(a, same)["same_run"]]
    for other in others:
        comparison = compare_groups(Group([a]), Group([other]), 1, 0.95, 99)
        assert "same_run" not in [note.kind for note in notes_of(comparison, facts_of(a, other))]


def test_few_and_dominating_documents_and_a_difference_by_length_are_warned_of():
    """B is worse by a rate that grows with the log of the size."""
    sizes = np.array([9000, *range(500, 539)])
    rates = np.log(sizes) / 10
    a = replace(run("a"), sizes=sizes, values=sizes * 1.0)
    b = replace(run("b", params=WIDER), sizes=sizes, values=sizes * (1 + rates))

    warnings = warnings_of(a, b)

    without_first = (rates[1:] * sizes[1:]).sum() / sizes[1:].sum()
    assert "the 40 count like " in warnings["few_documents"]
    assert f"Document 0 has 31 % of the bytes; without it, Δ is {without_first:+.4f}" in warnings["dominating_document"]
    assert "+1.00" in warnings["depends_on_length"]


def test_many_documents_of_equal_length_are_not_warned_of():
    sizes = np.full(NUM_DOCUMENTS, 1000)
    a = replace(run("a"), sizes=sizes)
    b = replace(run("b", seed=2, params=WIDER), sizes=sizes)

    assert warnings_of(a, b).keys() == {"single_runs"}


# The report.


def test_the_report_begins_with_the_answers_and_has_a_row_for_each_run():
    a = run("a", seed=1)
    b = run("b", seed=2, shift=-0.05, params=WIDER).but(train_seconds=61.0)

    text = report_of(a, b, within=0.01)
    rows = rows_of(text)

    difference, margin, *_ = summary_of(a, b, within=0.01)
    before_the_runs = text.partition("| run ")[0]
    assert difference in before_the_runs
    assert "not equivalent within ±0.01" in margin
    assert margin in before_the_runs
    sentence = line_of(text, "- Documents: ")
    assert "`b` is better than `a`" in sentence
    assert "the 95 % interval excludes zero" in sentence
    assert ["a", "1", f"{score_of(a):.4f}", "1,000", "900", "70", "–"] in rows
    assert ["b", "2", f"{score_of(b):.4f}", "1,000", "900", "70", "61"] in rows


def test_what_could_have_been_shown_is_said_of_documents_and_of_the_side_with_fewer_seeds():
    a = seeds_of("a", range(1, 6))
    b = seeds_of("b", (10, 11, 12), shift=6e-4, params=WIDER)

    (comparison,) = comparisons_of(*a, *b)
    text = report_of(*a, *b)

    of_documents = detectable_difference(comparison.documents)
    of_seeds = detectable_difference(comparison.seeds)
    assert f"With 40 documents, a true difference of {of_documents:.4f} would be shown" in text
    assert f"With 3 seeds of each side, a true difference of {of_seeds:.4f} would be shown" in text
    for found, count, least, means in ((comparison.documents, 40, 2, 1), (comparison.seeds, 3, 2, 2)):
        units = "documents" if means == 1 else "seeds of each side"
        assert f"needs about {units_needed(found, count, least, means)} {units}" in text


def test_a_table_of_what_more_seeds_could_show_has_the_noise_of_the_seeds_that_are_there():
    a = seeds_of("a", (1, 2))
    b = seeds_of("b", (4, 5, 6), params=WIDER)

    rows = rows_of(report_of(*a, *b))

    scores = [score_of(each) for each in b]
    noise = float(np.std(scores, ddof=1))
    differences = [detectable_by_runs(noise, 2, runs) for runs in (2, 3, 5, 10)]
    header = rows.index(["independent seeds of each side", "2", "3", "5", "10"])
    assert rows[header + 2][1:] == [f"{each:.4f}" for each in differences]
    assert any(f"{differences[0]:.4f} with 2 seeds of each side" in line for line in summary_of(*a, *b))
    assert ["b-4…b-6", "3", f"{np.mean(scores):.4f}", f"± {noise:.4f}"] in rows


def test_pairs_of_equal_seeds_are_called_so_everywhere():
    a = seeds_of("a", (1, 2, 3))
    b = seeds_of("b", (3, 2, 1), shift=0.01, params=WIDER)
    noise = np.random.default_rng(1).normal(0, 0.0001, 3)
    b = [replace(each, values=each.values * (1 + extra)) for each, extra in zip(b, noise, strict=True)]

    text = report_of(*a, *b)
    said = summary_of(*a, *b)

    assert "over 3 pairs of equal seeds " in said[0]
    assert any("with 2 pairs of equal seeds, " in line for line in said)
    assert "| pairs of equal seeds " in text
    assert "With 3 pairs of equal seeds, " in line_of(text, "- Seeds: ")
    assert "(Student's t of pairs, 2.0 degrees of freedom)" in text


def test_two_seeds_are_too_few_to_say_what_more_could_show():
    text = report_of(*seeds_of("a", (1, 2)), *seeds_of("b", (4, 5), params=WIDER))

    assert "| independent seeds of each side" not in text
    assert "needs about" not in line_of(text, "- Seeds: ")


def test_the_training_of_every_two_runs_of_the_same_seed_is_compared():
    """By the digests of their checkpoints, whatever the order of the seeds."""
    curve = [{"step": "0", "val_loss": "6.5", "checkpoint_digest": "aaa0"}]
    a = [run(f"a-{seed}", seed, curve=curve, **{"src/lm": "1"}) for seed in (1, 2)]
    b = [run(f"b-{seed}", seed, curve=curve, **{"src/lm": "2"}) for seed in (2, 1)]

    text = report_of(*a, *b)

    compared = [line for line in text.splitlines() if line.startswith("- Training of ")]
    assert compared == [
        "- Training of `a-1` and `b-1`: identical.",
        "- Training of `a-2` and `b-2`: identical.",
    ]


# The answer.


def test_the_answer_is_one_sentence_with_both_intervals_the_one_that_decides_first():
    a = seeds_of("a", (1, 2, 3))
    b = seeds_of("b", (4, 5), shift=-0.01, params=WIDER)

    (comparison,) = comparisons_of(*a, *b)
    sentence = summary_of(*a, *b)[0]

    seeds = comparison.seeds
    documents = comparison.documents
    assert sentence.startswith(f"`b-4…b-5` is better than `a-1…a-3`: {documents.value:+.4f} bits per byte")
    over_seeds = sentence.index(f"over 3 and 2 independent runs {seeds.low:+.4f} to {seeds.high:+.4f}, p ")
    over_documents = sentence.index(f"over 40 documents {documents.low:+.4f} to {documents.high:+.4f}")
    assert over_seeds < over_documents


def test_single_runs_are_called_models_and_their_seeds_unknown():
    a = run("a", seed=1)
    shown = summary_of(a, run("b", seed=2, shift=0.05, params=WIDER))[0]
    not_shown = summary_of(a, run("b", seed=2, params=WIDER))[0]

    assert shown.startswith("The model `b` is worse than the model `a`: +0.0")
    assert not_shown.startswith("No difference was shown between the model `b` and the model `a`: ")
    for sentence in (shown, not_shown):
        assert "over seeds unknown, 1 seed of each side" in sentence


@pytest.mark.parametrize("others", [1, 3, 9])
def test_at_most_ten_lines_follow_the_answers_and_what_is_left_out_is_named(others):
    runs = [run("a", seed=1)]
    for seed in range(2, 2 + others):
        runs.append(run(f"b{seed}", seed, shift=0.1, params={"p": seed}))
    commands = [f"command {i}" for i in range(others + 3)]

    lines = summary_of(*runs, commands=commands)

    shown = [command for command in commands if command in lines]
    assert len(lines) <= others + MOST_LINES
    assert lines[-1].startswith("The report has more: ")
    assert shown in (commands, [])
    assert ("the commands for more seeds" in lines[-1]) == (shown == [])


@pytest.mark.parametrize(
    ("params", "code", "difference"),
    [
        pytest.param({}, "1", "data/raw", id="nothing else"),
        pytest.param(WIDER, "1", "p (none) → 1", id="a parameter"),
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
        return [side.name for side in groups_to_extend(comparisons_of(*a, *b), confidence=0.95)]

    assert asked_for(run("b", 4, -0.5, WIDER)) == ["a-1…a-3", "b"]
    assert asked_for(*seeds_of("b", (4, 5, 6), 0.0, WIDER)) == ["a-1…a-3", "b-4…b-6"]
    assert asked_for(*seeds_of("b", (4, 5, 6), -0.5, WIDER)) == []

    # No seed tells runs of one configuration apart.
    first, second, _ = a
    comparison = compare_groups(Group([first]), Group([second]), 1, 0.95, 99)
    assert groups_to_extend([comparison], confidence=0.95) == []

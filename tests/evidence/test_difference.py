"""Equal seeds are pairs, a margin makes a difference equivalent or not, and scores are better if they are higher."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from evidence.answer import VERSION, answer, answers, equivalence_sentence, notes_of, p_text, signature
from evidence.citation import citation
from evidence.difference import (
    DOCUMENTS,
    SEEDS,
    Comparisons,
    Difference,
    Options,
    compare,
    difference,
    difference_of_items,
    equivalence,
    holm,
    paired,
    welch,
)
from evidence.intervals import Estimate
from evidence.record import record
from evidence.runs import Group, Measure, Run, make_groups, text_hash

NUM_DOCUMENTS = 40
SIZES = np.linspace(500, 4000, NUM_DOCUMENTS).astype(int)


def group(name: str, scores: dict[int | None, float], spread: float = 0.002) -> Group:
    """Return runs with these bits per byte by seed; `spread` is that of their documents."""
    runs = []
    for seed, score in scores.items():
        rates = score + np.random.default_rng(len(name)).normal(0, spread, NUM_DOCUMENTS)
        rates -= rates @ SIZES / SIZES.sum() - score
        values = rates * SIZES
        runs.append(Run(name=f"{name}-{seed}", seed=seed, configuration=name, label=name, values=values, sizes=SIZES))
    return Group(name, runs, [])


def compared(*groups: Group, **options) -> Comparisons:
    runs = [run for group in groups for run in group.runs]
    return compare(runs, Options(resamples=999, **options))


def difference_of(a: Group, b: Group, confidence: float = 0.95) -> Difference:
    return difference(a, b, Options(confidence=confidence, resamples=999))


# The default and weight_decay 0.05 with peak_lr 0.011, seeds 1 to 4, in bits per byte.
DEFAULT = {1: 1.35271, 2: 1.35501, 3: 1.35104, 4: 1.33970}
CHANGED = {4: 1.34794, 3: 1.35461, 2: 1.35757, 1: 1.35862}


# The tests of a difference.


@pytest.mark.parametrize(("num_a", "num_b"), [(2, 2), (3, 7), (12, 5)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_over_seeds_equal_those_of_scipy(num_a, num_b, confidence):
    rng = np.random.default_rng(num_a)
    a = rng.normal(1.3, 0.01, num_a)
    b = rng.normal(1.31, 0.04, num_b)
    pairs = b[:2] - a[:2]
    cases = [(welch(a, b, confidence), stats.ttest_ind(b, a, equal_var=False))]
    cases.append((paired(pairs, confidence), stats.ttest_rel(b[:2], a[:2])))

    for found, expected in cases:
        assert (found.p_value, found.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
        assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(confidence)))


def of_single_items(differences: list[float]) -> Estimate:
    """Return the estimate from one item of each document."""
    return difference_of_items(np.array(differences, float), np.ones(len(differences)))


@pytest.mark.parametrize(
    ("found", "value"),
    [
        pytest.param(welch(np.array([1.0]), np.array([1.5, 1.6])), 0.55, id="a single run of a side"),
        pytest.param(welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])), 1.0, id="equal values of each side"),
        pytest.param(paired(np.array([0.5])), 0.5, id="one pair"),
        pytest.param(paired(np.array([0.1 + 0.2, 0.3])), 0.3, id="equal pairs"),
        pytest.param(of_single_items([1, 2, 1, 2, 1, 0]), 7 / 6, id="five documents that differ"),
        pytest.param(of_single_items([1] * 10), 1.0, id="items without spread"),
    ],
)
def test_few_or_equal_values_have_no_interval(found, value):
    assert found.value == pytest.approx(value)
    assert (found.low, found.p_value) == (None, None)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_holm_equals_the_closed_test_of_all_intersections(count):
    """A hypothesis is rejected if Bonferroni rejects each set of hypotheses that has it."""
    p_values = [*np.random.default_rng(count).random(count) ** 3, None]
    sets = [each for size in range(1, count + 1) for each in combinations(range(count), size)]

    *adjusted, unknown = holm(p_values)

    smallest = {each: min(p_values[i] for i in each) * len(each) for each in sets}
    expected = [max(min(1, smallest[each]) for each in sets if i in each) for i in range(count)]
    assert adjusted == pytest.approx(expected)
    assert unknown is None


# Which runs are compared.


def test_equal_seeds_are_compared_as_pairs_whatever_their_order():
    """The figures of a measured example: t is 4.0 with 3 degrees of freedom, unpaired 1.2."""
    found = difference_of(group("a", DEFAULT), group("bb", CHANGED))

    assert found.are_pairs
    assert found.seeds.value / found.seeds.se == pytest.approx(4.0, abs=0.01)
    assert found.seeds.degrees_of_freedom == 3
    assert found.verdict == "worse"
    assert difference_of(group("a", DEFAULT), group("bb", CHANGED), 0.99).verdict == "not shown"


# A change that costs 0.003 with every seed, and one lucky seed of the baseline: a single new run of seed 2.
LUCKY = {1: 1.3500, 2: 1.3300, 3: 1.3520, 4: 1.3550}


@pytest.mark.parametrize(
    ("of_a", "of_b", "common", "said", "left_out"),
    [
        pytest.param(LUCKY, {2: 1.333}, [2], "The model `bb` is worse than the model `a`: +0.0030",
            "`a-1`, `a-3`, `a-4`", id="one new run"),
        pytest.param(LUCKY, {9: 1.2, 2: 1.333, 1: 1.3531}, [1, 2],
            "is worse than `a`: +0.0030", "`a-3`, `a-4`, `bb-9`", id="some of both sides"),
        pytest.param({2: 1.33, None: 1.2}, {2: 1.333}, [2], "worse than the model `a`: +0.0030",
            "`a-None`", id="a seed that is not known"),
        pytest.param(LUCKY, {2: 1.333, None: 1.2}, [], "No difference was shown between `bb` and `a`: -0.0803", None,
            id="one common seed of several runs"),
        pytest.param({1: 1.35, 3: 1.352}, {2: 1.36}, [],
            "The model `bb` is worse than the 2 models `a` on average: +0.0090", None, id="a mean of several models"),
        pytest.param({1: 1.35, None: 1.36}, {None: 1.37}, [],
            "The model `bb` is worse than the 2 models `a` on average: +0.0150", None,
            id="seeds that are not known"),
    ],
)  # fmt: skip
def test_a_comparison_is_about_the_common_seeds_alone(of_a, of_b, common, said, left_out):
    found = compared(group("a", of_a), group("bb", of_b))
    (each,) = found.differences
    (recorded,) = record(found)["comparisons"]

    # Both intervals are about the same difference.
    assert each.seeds.value == pytest.approx(each.documents.value, abs=1e-12)
    if common:
        assert each.documents.value == pytest.approx(np.mean([of_b[seed] - of_a[seed] for seed in common]))
    else:
        assert each.seeds == welch(each.whole_a.scores, each.whole_b.scores)

    sentence = recorded["sentence"]
    assert said in sentence
    if left_out:
        assert sentence.endswith(f" Left out, without a partner: {left_out}.")
        assert f" The difference of `bb` leaves out {left_out}, without a partner." in citation(found)[-2]
    else:
        assert f"{len(of_a)} and {len(of_b)} independent runs" in sentence
        assert "Left out" not in sentence

    assert (recorded["verdict"] == "not shown") == sentence.startswith("No difference was shown")
    assert recorded["seeds"]["of_candidate"] == (common or list(of_b))
    assert len(recorded["seeds"]["left_out"]) == (len(of_a) + len(of_b) - 2 * len(common) if common else 0)
    both = recorded["baseline_bits_per_byte"], recorded["candidate_bits_per_byte"]
    assert both[1] - both[0] == pytest.approx(recorded["documents"].value)


# Equivalence.


@pytest.mark.parametrize(
    ("basis", "difference", "verdict"),
    [
        (SEEDS, 0.001, "equivalent"),
        (DOCUMENTS, -0.001, "equivalent"),
        (SEEDS, -0.009, "not equivalent"),
        (DOCUMENTS, 0.009, "not equivalent"),
        (SEEDS, 0.005, "not decided"),
        (SEEDS, 0.006, "not decided"),
    ],
)
def test_a_difference_is_equivalent_if_its_interval_is_within_the_margin(basis, difference, verdict):
    noise = {1: 0.0005, 2: -0.0005, 3: 0.0003}
    seeds = [1, 2, 3] if basis == SEEDS else [1]
    a = group("a", {seed: 1.3 for seed in seeds})
    b = group("bb", {seed: 1.3 + difference + noise[seed] for seed in seeds})

    found = equivalence(difference_of(a, b), 0.005)

    assert found.verdict == verdict
    assert found.interval == difference_of(a, b, confidence=0.9).deciding
    assert found.confidence == pytest.approx(0.9)
    if basis == SEEDS:
        above = stats.ttest_rel(b.scores + 0.005, a.scores, alternative="greater").pvalue
        below = stats.ttest_rel(b.scores - 0.005, a.scores, alternative="less").pvalue
        assert (max(above, below) <= 0.05) == (verdict == "equivalent")
    said = equivalence_sentence(difference_of(a, b), found)
    assert said.startswith(f"`bb` and `a`: {verdict} within ±0.005 bits per byte over {basis} (90 % interval ")


def test_the_level_of_equivalence_is_divided_by_the_number_of_comparisons():
    groups = [group(name, DEFAULT) for name in ("a", "bb", "ccc")]

    found = compared(*groups, within=0.005, confidence=0.997)

    assert [each.equivalence.confidence for each in found.differences] == pytest.approx([0.997, 0.997])
    assert found.options.resamples == 1333


# Several comparisons are one family.


def test_the_p_values_that_decide_are_one_family_whatever_they_are_over():
    """One is over documents, two over seeds. All have p ≤ 0.05 alone."""
    nearly = {seed: score + 0.0001 * seed for seed, score in DEFAULT.items()}
    found = compared(group("a", DEFAULT), group("bb", CHANGED), group("ccc", {1: 1.351}), group("dddd", nearly))

    recorded = record(found)["comparisons"]

    assert [each["basis"] for each in recorded] == [SEEDS, DOCUMENTS, SEEDS]
    assert [each["num_tests"] for each in recorded] == [3, 3, 3]
    alone = [each.deciding.p_value for each in found.differences]
    assert max(alone) <= 0.05
    assert [each["p_value_holm"] for each in recorded] == pytest.approx(holm(alone))
    assert [each["verdict"] for each in recorded] == ["not shown", "better", "not shown"]
    assert "after Holm's correction for 3 comparisons" in answers(found)[0]


# Scores, sources and groups.


@pytest.mark.parametrize(("is_higher_better", "verdict"), [(True, "better"), (False, "worse")])
def test_more_points_are_better_or_worse_as_the_table_says(is_higher_better, verdict):
    """20 of 200 answers become right, and 4 wrong: the paired t of items."""
    right = np.zeros((2, 200))
    right[0, :4] = 1
    right[1, 10:30] = 1
    measure = Measure("in score", "score", is_higher_better)
    a, b = (
        Run(name=name, seed=None, configuration=name, values=values, sizes=np.ones(200, int), measure=measure)
        for name, values in zip("ab", right, strict=True)
    )

    (found,) = compare([a, b], Options()).differences

    assert found.documents.value == pytest.approx(16 / 200)
    assert found.documents.se == pytest.approx(np.std(right[1] - right[0], ddof=1) / np.sqrt(200))
    assert found.documents.degrees_of_freedom == pytest.approx(199)
    assert found.verdict == verdict


def test_each_source_with_text_has_its_difference():
    sources = np.array(["x", "y"] * 20, object)
    a, b = (replace(group(name, {1: 1.3 + len(name) / 1000}).runs[0], sources=sources) for name in ("a", "bb"))
    without_y = [replace(run, sizes=np.where(sources == "x", run.sizes, 0)) for run in (a, b)]

    (found,) = compare([a, b], Options(resamples=99)).differences

    is_x = sources == "x"
    assert list(found.sources) == ["x", "y"]
    assert found.sources["x"].value == pytest.approx((b.values - a.values)[is_x].sum() / SIZES[is_x].sum())
    assert list(compare(without_y, Options(resamples=99)).differences[0].sources) == ["x"]


def named(*runs: tuple[str, str, int | None, float], documents: int = 2) -> list[Run]:
    """Return runs of (name, configuration, seed, value)."""
    sizes = np.full(documents, 10)
    return [
        Run(name=name, label=label, configuration=label, seed=seed, values=np.full(documents, value), sizes=sizes)
        for name, label, seed, value in runs
    ]


@pytest.mark.parametrize(
    ("runs", "groups", "said"),
    [
        pytest.param(
            [("a1", "a", 1, 5.0), ("w1", "w", 1, 5.0), ("a2", "a", 2, 6.0)],
            {"a": ["a1", "a2"], "w": ["w1"]}, [], id="by configuration"),
        pytest.param(
            [("b1", "b", None, 5.0), ("b1-resumed", "b", None, 5.0), ("b2", "b", None, 6.0)],
            {"b": ["b1", "b2"]}, ["`b1-resumed` repeats a run of `b`, and does not count."], id="one run twice"),
        pytest.param(
            [("main", "", 1, 5.0), ("workspace", "", 1, 5.0)],
            {"main": ["main"]}, ["`workspace` repeats a run of `main`, and does not count."], id="two names"),
        pytest.param(
            [("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0), ("a3", "a", 3, 5.0), ("b1", "b", 1, 5.1), ("b2", "b", 2, 5.2)],
            {"a": ["a1"], "b": ["b1", "b2"]},
            ["The seed was not used: all runs of `a` have equal losses; no noise is known."], id="no seed"),
        pytest.param(
            [("a1", "a", 1, 5.0), ("a2", "a", 2, 6.0), ("x1", "a", 1, 5.5), ("x2", "a", 2, 6.5)],
            {"a (a1…a2)": ["a1", "a2"], "a (x1…x2)": ["x1", "x2"]}, [], id="two machines"),
    ],
)  # fmt: skip
def test_runs_of_a_group_count_once_and_groups_have_names_of_their_own(runs, groups, said):
    found = compare(named(*runs), Options(resamples=99))

    assert {group.name: [run.name for run in group.runs] for group in found.groups} == groups
    assert [line for line in answers(found) if "repeats" in line or "not used" in line] == said
    recorded = record(found)["groups"]
    assert sum(len(each["repeats"]) for each in recorded) == len(runs) - sum(map(len, groups.values()))


def test_one_rounded_loss_or_equal_scores_of_two_seeds_are_no_repetition():
    of_one_document = named(("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0), documents=1)
    accuracy = Measure("in score", "score", is_higher_better=True)
    of_scores = [replace(run, measure=accuracy) for run in named(("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0))]

    for runs in (of_one_document, of_scores):
        (found,) = make_groups(runs)
        assert [run.name for run in found.runs] == ["a1", "a2"]


# What is said of a difference.


@pytest.mark.parametrize(
    ("p_value", "is_bound", "said"),
    [(0.0412, False, "= 0.041"), (1e-12, False, "< 0.0001"), (0.002, True, "≤ 0.002"), (None, False, "unknown")],
)
def test_a_limit_of_p_is_not_shown_as_its_value(p_value, is_bound, said):
    documents = Estimate(1.0, p_value=0.001, p_is_bound=is_bound)
    found = difference_of(group("a", {1: 1.3}), group("bb", {1: 1.4}))

    assert p_text(found._replace(documents=documents, p_value=p_value)) == said


def test_pairs_of_one_difference_have_no_noise():
    found = difference_of(group("a", DEFAULT), group("bb", CHANGED))

    same = found._replace(seeds=paired(np.array([0.5, 0.5])), p_value=None)

    assert [note.kind for note in notes_of(same)] == ["no_noise"]
    assert "No difference was shown" in answer(same)


@pytest.mark.parametrize(
    ("of_b", "seeds", "interval"),
    [
        ({2: 1.36, 1: 1.35}, "1,2 paired", "paired t over seeds"),
        ({7: 1.36, None: 1.35}, "1,2,3,4 and 7,?", "Welch's t over seeds"),
        ({7: 1.36}, "1,2,3,4 and 7", "bootstrap of 999 over documents"),
    ],
)
def test_a_signature_has_all_that_decides_the_verdict(of_b, seeds, interval):
    (found,) = compared(group("a", DEFAULT), group("bb", of_b), confidence=0.9, within=0.01).differences

    parts = dict(part.split(":") for part in signature(found).split("|"))

    assert parts.pop("text") == text_hash(found.a.runs[0])
    settings = {"confidence": "0.9", "tests": "1", "within": "0.01"}
    measured = {"evidence": VERSION, "unit": "bits_per_byte", "better": "lower", "documents": "40"}
    assert parts == measured | {"seeds": seeds, "interval": interval} | settings


def test_the_document_has_the_figures_of_the_losses():
    """Of two sides with unequal numbers of seeds; the documents are worse, and decide nothing."""
    a = group("a", {1: 1.30, 2: 1.50})
    b = group("bb", {3: 1.35, 4: 1.50, 5: 1.48})

    document = record(compared(a, b))

    (found,) = document["comparisons"]
    for side, recorded in zip((a, b), document["groups"], strict=True):
        assert recorded["bits_per_byte"] == pytest.approx(side.scores.mean())
        assert recorded["standard_deviation"] == pytest.approx(side.scores.std(ddof=1))
    assert found["seeds"]["value"] == pytest.approx(b.scores.mean() - a.scores.mean())
    se = np.sqrt(a.scores.var(ddof=1) / 2 + b.scores.var(ddof=1) / 3)
    assert found["seeds"]["se"] == pytest.approx(se)
    assert found["documents"].low > 0
    assert found["verdict"] == "not shown"
    assert found["p_value_holm"] == found["seeds"]["p_value"]

"""Equal seeds are pairs, a margin makes a difference equivalent or not, and scores are better if they are higher."""

from dataclasses import replace

import numpy as np
import pytest

from evidence.answer import answer, answers, equivalence_sentence, notes_of, signature
from evidence.difference import (
    DOCUMENTS,
    SEEDS,
    Difference,
    Options,
    common_seeds,
    compare,
    difference,
    equivalence,
    holm,
    paired,
    welch,
)
from evidence.record import record
from evidence.runs import Group, Measure, Run, make_groups

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


def compared(a: Group, b: Group, confidence: float = 0.95) -> Difference:
    return difference(a, b, Options(confidence=confidence, resamples=999))


# The default and weight_decay 0.05 with peak_lr 0.011, seeds 1 to 4, in bits per byte.
DEFAULT = {1: 1.35271, 2: 1.35501, 3: 1.35104, 4: 1.33970}
CHANGED = {4: 1.34794, 3: 1.35461, 2: 1.35757, 1: 1.35862}


def test_equal_seeds_are_compared_as_pairs_whatever_their_order():
    """The figures of a measured example: t is 4.0 with 3 degrees of freedom, unpaired 1.2."""
    found = compared(group("a", DEFAULT), group("bb", CHANGED))

    assert found.basis == SEEDS
    assert found.is_paired
    assert found.seeds.value / found.seeds.se == pytest.approx(4.0, abs=0.01)
    assert found.seeds.degrees_of_freedom == 3
    assert found.verdict(found.deciding, 0.95) == "worse"


# A change that costs 0.003 with every seed, and one lucky seed of the baseline: a single new run of seed 2.
LUCKY = {1: 1.3500, 2: 1.3300, 3: 1.3520, 4: 1.3550, 5: 1.3480}


@pytest.mark.parametrize(
    ("of_a", "of_b", "common", "said", "left_out"),
    [
        pytest.param(LUCKY, {2: 1.333}, [2], "`bb` is worse than the model `a`, with seed 2 of both: +0.0030",
            "the seeds 1, 3, 4, 5 of `a`", id="one new run"),
        pytest.param({2: 1.333}, LUCKY, [2], "`bb` is better than the model `a`, with seed 2 of both: -0.0030",
            "the seeds 1, 3, 4, 5 of `bb`", id="one run of the baseline"),
        pytest.param(LUCKY, {2: 1.333, 1: 1.3531}, [1, 2], "is worse than `a`, with the seeds 1, 2 of both: +0.0030",
            "the seeds 3 to 5 of `a`", id="two pairs, in another order"),
        pytest.param(LUCKY, {1: 1.3532, 2: 1.333, 3: 1.3551, 9: 1.2}, [1, 2, 3],
            "`bb` is worse than `a`, with the seeds 1 to 3 of both: +0.0031", "the seeds 4, 5 of `a`, seed 9 of `bb`",
            id="some of both sides"),
        pytest.param(LUCKY, {2: 1.333, None: 1.2}, [], "No difference was shown between `bb` and `a`: -0.0805", None,
            id="one common seed of several runs"),
        pytest.param({1: 1.35, 3: 1.352}, {2: 1.36}, [],
            "The model `bb` is worse than the 2 models `a` on average: +0.0090", None, id="a mean of several models"),
        pytest.param({1: 1.35, None: 1.36}, {None: 1.37, 8: 1.39}, [], "No difference was shown between `bb` and `a`",
            None, id="seeds that are not known"),
        pytest.param({2: 1.33, None: 1.2}, {2: 1.333}, [2], "worse than the model `a`, with seed 2 of both: +0.0030",
            "1 run of `a` without a seed", id="a seed that is not known"),
    ],
)  # fmt: skip
def test_a_comparison_is_about_the_common_seeds_alone(of_a, of_b, common, said, left_out):
    found = compared(group("a", of_a), group("bb", of_b))
    sentence = answer(found, 1, 0.95)
    (recorded,) = record(compare([*group("a", of_a).runs, *group("bb", of_b).runs], Options()))["comparisons"]

    expected = sum(of_b[seed] - of_a[seed] for seed in common) / max(1, len(common))
    assert found.seeds.value == pytest.approx(found.documents.value, abs=1e-12)
    if common:
        assert found.documents.value == pytest.approx(expected)
    else:
        assert found.seeds == welch(found.sides.whole_a.scores, found.sides.whole_b.scores)
    assert said in sentence
    if left_out:
        assert sentence.endswith(f" Left out, without a partner: {left_out}.")
    else:
        assert "Left out" not in sentence
        assert f"{len(of_a)} and {len(of_b)} independent runs" in sentence
    assert recorded["seeds"]["common"] == common
    assert recorded["seeds"]["of_candidate"] == (len(common) or len(of_b))
    assert len(recorded["seeds"]["left_out"]) == (len(of_a) + len(of_b) - 2 * len(common) if common else 0)
    assert recorded["candidate_bits_per_byte"] - recorded["baseline_bits_per_byte"] == pytest.approx(
        recorded["difference"]
    )


def test_one_pair_and_pairs_with_equal_differences_have_no_interval():
    one = paired(np.array([0.5]))
    equal = paired(np.array([0.5, 0.5]))

    assert (one.value, one.se, one.low) == (0.5, None, None)
    assert (equal.value, equal.low) == (0.5, None)


@pytest.mark.parametrize(
    ("difference", "within", "verdict"),
    [
        (0.001, 0.005, "equivalent"),
        (-0.001, 0.005, "equivalent"),
        (0.009, 0.005, "not equivalent"),
        (-0.009, 0.005, "not equivalent"),
        (0.005, 0.005, "not decided"),
    ],
)
@pytest.mark.parametrize("basis", [SEEDS, DOCUMENTS])
def test_a_difference_is_equivalent_if_its_interval_is_within_the_margin(basis, difference, within, verdict):
    noise = {1: 0.0005, 2: -0.0005, 3: 0.0003}
    num_seeds = 3 if basis == SEEDS else 1
    a = group("a", {seed: 1.3 for seed in list(noise)[:num_seeds]})
    b = group("bb", {seed: 1.3 + difference + noise[seed] for seed in list(noise)[:num_seeds]})

    found = equivalence(compared(a, b), within, Options(resamples=999), num_tests=1)

    narrow = compared(a, b, confidence=0.9).deciding
    assert found.verdict == verdict
    assert (found.low, found.high) == (narrow.low, narrow.high)
    assert found.confidence == pytest.approx(0.9)
    said = equivalence_sentence(compared(a, b), found).lower()
    assert verdict.split()[-1] in said
    assert ("not" in said) == verdict.startswith("not")


def test_the_level_of_equivalence_is_divided_by_the_number_of_comparisons():
    runs = [run for name in ("a", "bb", "ccc") for run in group(name, DEFAULT).runs]

    found = compare(runs, Options(within=0.005, resamples=199))

    assert [each.confidence for each in found.equivalences] == pytest.approx([0.95, 0.95])
    assert found.options.resamples == 199
    assert compare(runs, Options(within=0.005, confidence=0.99, resamples=199)).options.resamples == 399


def test_what_is_better_alone_and_not_after_the_correction_is_not_better():
    """Two groups with p = 0.04 each."""
    runs = group("a", {seed: 1.3 + seed / 1000 for seed in range(4)}).runs
    for name in ("bb", "ccc"):
        runs = runs + group(name, {seed: 1.29 + seed / 1000 + 0.00498 * (-1) ** seed for seed in range(4)}).runs

    found = compare(runs, Options(resamples=99))

    assert [each.seeds.p_value for each in found.alone] == pytest.approx([0.04, 0.04], abs=0.001)
    assert [each.verdict(each.seeds, 0.95) for each in found.alone] == ["better", "better"]
    assert found.not_better() == ["bb (not shown)", "ccc (not shown)"]


def scored(name: str, is_right: np.ndarray, is_higher_better: bool) -> Group:
    measure = Measure("in score", "score", is_higher_better)
    sizes = np.ones(len(is_right), int)
    return Group(
        name, [Run(name=name, seed=None, configuration=name, values=is_right, sizes=sizes, measure=measure)], []
    )


@pytest.mark.parametrize(("is_higher_better", "verdict"), [(True, "better"), (False, "worse")])
def test_more_points_are_better_or_worse_as_the_table_says(is_higher_better, verdict):
    """20 of 200 answers become right, and 4 wrong: the paired t of items."""
    a = np.zeros(200)
    a[:4] = 1
    b = np.zeros(200)
    b[10:30] = 1

    found = compared(scored("a", a, is_higher_better), scored("b", b, is_higher_better))

    assert found.documents.value == pytest.approx(16 / 200)
    assert found.documents.se == pytest.approx(np.std(b - a, ddof=1) / np.sqrt(200))
    assert found.verdict(found.deciding, 0.95) == verdict


# Several comparisons are one family.


def test_the_p_values_that_decide_are_one_family_whatever_they_are_over():
    """One is over documents, two over seeds, and one compares two machines."""
    runs = [*group("a", DEFAULT).runs, *group("bb", CHANGED).runs, *group("ccc", {1: 1.351}).runs]
    runs += group("dddd", {seed: score + 0.0001 * seed for seed, score in DEFAULT.items()}).runs
    again = group("a", {1: 1.36}, spread=0.003).runs[0]

    found = compare([*runs, again], Options(resamples=999))

    assert [each.basis for each in found.alone] == [SEEDS, DOCUMENTS, SEEDS, DOCUMENTS]
    assert [each.is_of_one_configuration for each in found.alone] == [False, False, False, True]
    assert found.num_tests == 3
    expected = [each.p_value for each in holm([each.deciding for each in found.alone[:3]])]
    assert [each.deciding.p_value for each in found.corrected[:3]] == expected
    assert [each.documents for each in found.corrected[:1]] == [each.documents for each in found.alone[:1]]
    assert found.corrected[3].deciding == found.alone[3].deciding
    assert "after Holm's correction for 3 comparisons" in answers(found)[0]
    assert "after Holm" not in answers(found)[3]
    recorded = record(found)["comparisons"]
    assert [each["p_value_holm"] for each in recorded] == [*expected, None]
    assert [each["seeds"]["p_value_holm"] for each in recorded] == [expected[0], None, expected[2], None]
    assert [each["documents"]["p_value_holm"] for each in recorded] == [None, expected[1], None, None]


def test_a_source_is_corrected_with_all_sources():
    sources = np.array(["x", "y"] * 20, object)
    runs = [
        replace(run, sources=sources) for name in ("a", "bb") for run in group(name, {1: 1.3 + len(name) / 1000}).runs
    ]

    found = compare(runs, Options(resamples=999))

    alone = list(found.alone[0].sources.values())
    assert list(found.alone[0].sources) == ["x", "y"]
    assert list(found.corrected[0].sources.values()) == holm(alone) != alone
    other = [runs[0], replace(runs[1], sources=sources[::-1])]
    assert compare(other, Options(resamples=999)).alone[0].sources == {}
    without_text = [replace(run, sizes=np.where(sources == "x", run.sizes, 0)) for run in runs]
    assert list(compare(without_text, Options(resamples=999)).alone[0].sources) == ["x"]


# Groups.


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
            {"a": ["a1", "a2"], "w1": ["w1"]}, [], id="by configuration"),
        pytest.param(
            [("b1", "b", None, 5.0), ("b1-resumed", "b", None, 5.0), ("b2", "b", None, 6.0)],
            {"b": ["b1", "b2"]}, ["`b1-resumed` and `b1` are the same run, which counts once."], id="one run twice"),
        pytest.param(
            [("main", "", 1, 5.0), ("workspace", "", 1, 5.0)],
            {"main": ["main"]}, ["`workspace` and `main` are the same run, which counts once."], id="two names"),
        pytest.param(
            [("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0), ("a3", "a", 3, 5.0)],
            {"a": ["a1"]},
            ["The seed was not used: all 3 runs of `a` have equal losses; no noise is known."], id="no seed"),
        pytest.param(
            [("a1", "a", 1, 5.0), ("a2", "a", 2, 6.0), ("x1", "a", 1, 5.5), ("x2", "a", 2, 6.5)],
            {"a (a1…a2)": ["a1", "a2"], "a (x1…x2)": ["x1", "x2"]}, [], id="two machines"),
    ],
)  # fmt: skip
def test_runs_of_a_group_count_once_and_groups_have_names_of_their_own(runs, groups, said):
    found = compare(named(*runs), Options(resamples=99))

    assert {group.name: [run.name for run in group.runs] for group in found.groups} == groups
    assert [line for line in answers(found) if "same run" in line or "not used" in line] == said
    recorded = record(found)["groups"]
    assert [each["unused_seed"] for each in recorded] == ["not used" in " ".join(said)] * len(groups)
    assert sum(len(each["repeats"]) for each in recorded) == len(runs) - sum(map(len, groups.values()))


def test_one_rounded_loss_or_equal_scores_of_two_seeds_are_no_repetition():
    of_one_document = named(("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0), documents=1)
    accuracy = Measure("in score", "score", is_higher_better=True)
    of_scores = [replace(run, measure=accuracy) for run in named(("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0))]

    for runs in (of_one_document, of_scores):
        (found,) = make_groups(runs)
        assert [run.name for run in found.runs] == ["a1", "a2"]


def test_a_baseline_without_a_used_seed_has_no_partners():
    a = make_groups(named(("a1", "a", 1, 5.0), ("a2", "a", 2, 5.0)))[0]
    b = make_groups(named(("b1", "b", 1, 5.1), ("b2", "b", 2, 5.3)))[0]

    sides = common_seeds(a, b)

    assert not sides.left_out
    assert len(sides.b.runs) == 2


def test_pairs_of_one_difference_have_no_noise():
    found = compared(group("a", DEFAULT), group("a2", {seed: score + 0.5 for seed, score in DEFAULT.items()}, spread=0))

    same = Difference(found.sides, found.documents, paired(np.array([0.5, 0.5])), {})

    assert "no_noise" in [note.kind for note in notes_of(same)]
    assert same.verdict(same.deciding, 0.95) == "not shown"


def test_a_signature_has_all_that_decides_the_figures():
    found = compared(group("a", DEFAULT), group("bb", {2: 1.36, 1: 1.35}))

    parts = signature(found, Options(seed=3, resamples=499, confidence=0.9)).split("|")

    assert parts[0].startswith("text:")
    assert parts[1:] == ["docs:40", "a:a[1,2]", "b:bb[1,2]", "basis:pairs", "conf:0.9", "resamples:499", "rng:3", "v:2"]
    other_text = compared(
        *(Group(name, [replace(group(name, {1: 1.3}).runs[0], sizes=SIZES + 1)], []) for name in "ab")
    )
    assert signature(other_text, Options()).split("|")[0] != parts[0]


def test_the_document_has_the_figures_of_the_losses():
    """Of two sides with unequal numbers of seeds; the documents are worse, and decide nothing."""
    a = group("a", {1: 1.30, 2: 1.50})
    b = group("bb", {3: 1.35, 4: 1.50, 5: 1.48})

    document = record(compare([*a.runs, *b.runs], Options(resamples=999)))

    (found,) = document["comparisons"]
    for side, recorded in zip((a, b), document["groups"], strict=True):
        assert recorded["bits_per_byte"] == pytest.approx(side.scores.mean())
        assert recorded["standard_deviation"] == pytest.approx(side.scores.std(ddof=1))
    assert document["documents"]["utf8_bytes"] == SIZES.sum()
    assert document["documents"]["effective_number"] == pytest.approx(SIZES.sum() ** 2 / (SIZES**2).sum())
    assert document["baseline"]["bits_per_byte"] == pytest.approx(1.4)
    assert found["seeds"]["difference"] == pytest.approx(b.scores.mean() - a.scores.mean())
    se = np.sqrt(a.scores.var(ddof=1) / 2 + b.scores.var(ddof=1) / 3)
    assert found["seeds"]["standard_error"] == pytest.approx(se)
    assert found["documents"]["verdict"] == "worse"
    assert found["verdict"] == found["seeds"]["verdict"] == "not shown"
    for key in ("difference", "p_value_holm", "detectable_difference"):
        assert found[key] == found["seeds"][key]

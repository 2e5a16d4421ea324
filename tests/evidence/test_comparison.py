"""Equal seeds are pairs, a margin makes a difference equivalent or not, and scores are better if they are higher."""

import numpy as np
import pytest
from scipy.special import stdtrit

from evidence.answer import answer, power_line
from evidence.difference import (
    DOCUMENTS,
    SEEDS,
    Comparison,
    Options,
    compare_groups,
    compare_runs,
    equivalence,
    paired,
    welch,
)
from evidence.errors import WrongInput
from evidence.record import record
from evidence.runs import Group, Measure, Run
from evidence.spread import detectable_by_runs, detectable_by_seeds, detectable_difference

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
    return Group(runs)


def compared(a: Group, b: Group, confidence: float = 0.95) -> Comparison:
    return compare_groups(a, b, seed=1, confidence=confidence, resamples=999)


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
        pytest.param(LUCKY, {2: 1.333}, [2], "`bb-2` is worse than the model `a`, with seed 2 of both: +0.0030",
            "the seeds 1, 3, 4, 5 of `a`", id="one new run"),
        pytest.param({2: 1.333}, LUCKY, [2], "`bb` is better than the model `a-2`, with seed 2 of both: -0.0030",
            "the seeds 1, 3, 4, 5 of `bb`", id="one run of the baseline"),
        pytest.param(LUCKY, {2: 1.333, 1: 1.3531}, [1, 2], "is worse than `a`, with the seeds 1, 2 of both: +0.0030",
            "the seeds 3 to 5 of `a`", id="two pairs, in another order"),
        pytest.param(LUCKY, {1: 1.3532, 2: 1.333, 3: 1.3551, 9: 1.2}, [1, 2, 3],
            "`bb` is worse than `a`, with the seeds 1 to 3 of both: +0.0031", "the seeds 4, 5 of `a`, seed 9 of `bb`",
            id="some of both sides"),
        pytest.param(LUCKY, {2: 1.333, None: 1.2}, [], "No difference was shown between `bb` and `a`: -0.0805", None,
            id="one common seed of several runs"),
        pytest.param({2: 1.33, None: 1.2}, {2: 1.333}, [2], "worse than the model `a`, with seed 2 of both: +0.0030",
            "1 run of `a` without a seed", id="a seed that is not known"),
    ],
)  # fmt: skip
def test_a_comparison_is_about_the_common_seeds_alone(of_a, of_b, common, said, left_out):
    found = compared(group("a", of_a), group("bb", of_b))
    sentence = answer(found, 1, 0.95)
    (recorded,) = record(compare_runs([*group("a", of_a).runs, *group("bb", of_b).runs], Options()))["comparisons"]

    expected = np.mean([of_b[seed] - of_a[seed] for seed in common]) if common else None
    assert found.seeds.value == pytest.approx(found.documents.value, abs=1e-12)
    assert expected is None or found.documents.value == pytest.approx(expected)
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


def test_a_mean_of_several_models_is_called_so():
    found = compared(group("a", {1: 1.35, 3: 1.352}), group("bb", {2: 1.36}))

    sentence = answer(found, 1, 0.95)

    assert found.basis == DOCUMENTS
    assert found.documents.value == pytest.approx(1.36 - 1.351)
    assert sentence.startswith("The model `bb-2` is worse than the 2 models `a` on average: +0.0090")
    assert "over seeds unknown, 2 and 1 independent runs" in sentence


UNKNOWN = {"a": (1.35, 1.36), "bb": (1.37, 1.39)}


@pytest.mark.parametrize("seeds", [(1, 6, 7, 5), (6, 7, 8), (None, None)])
def test_other_or_unknown_seeds_are_independent_runs(seeds):
    changed = Group([group("bb", {seed: score}).runs[0] for seed, score in zip(seeds, CHANGED.values(), strict=False)])

    found = compared(group("a", DEFAULT), changed)

    assert not found.is_paired
    assert found.seeds == pytest.approx(welch(np.array(list(DEFAULT.values())), changed.scores))


def test_two_sides_of_unknown_seeds_are_independent():
    a, b = (Group([group(name, {None: score}).runs[0] for score in scores]) for name, scores in UNKNOWN.items())

    found = compared(a, b)

    assert found.seeds == pytest.approx(welch(a.scores, b.scores))


@pytest.mark.parametrize(
    "seeds", [pytest.param((1, 2, 3, 4), id="pairs"), pytest.param((5, 6, 7, 8), id="independent")]
)
def test_the_confidence_is_that_of_the_interval_of_the_verdict_and_of_what_more_seeds_would_show(seeds):
    a = group("a", DEFAULT)
    b = group("bb", dict(zip(seeds, CHANGED.values(), strict=True)))

    sure = compared(a, b)
    unsure = compared(a, b, confidence=0.5)

    df = sure.seeds.degrees_of_freedom
    ratio = stdtrit(df, 0.75) / stdtrit(df, 0.975)
    assert unsure.seeds.high - unsure.seeds.value == pytest.approx(ratio * (sure.seeds.high - sure.seeds.value))
    p_value = sure.deciding.p_value
    assert sure.verdict(sure.deciding, 1 - p_value) == "worse"
    assert sure.verdict(sure.deciding, 1 - p_value + 1e-6) == "not shown"
    of_sure = detectable_by_seeds(sure, 0.95).differences[5]
    of_unsure = detectable_by_seeds(sure, 0.5).differences[5]
    num_means = 1 if sure.is_paired else 2
    assert of_unsure / of_sure == pytest.approx(
        detectable_by_runs(1, 3, 5, 0.5, num_means) / detectable_by_runs(1, 3, 5, 0.95, num_means)
    )


def test_one_pair_and_pairs_with_equal_differences_have_no_interval():
    one = paired(np.array([0.5]))
    equal = paired(np.array([0.5, 0.5]))

    assert (one.value, one.se, one.low) == (0.5, None, None)
    assert (equal.value, equal.low) == (0.5, None)


def test_what_more_pairs_would_show_follows_from_the_spread_of_the_differences():
    found = compared(group("a", DEFAULT), group("bb", CHANGED))

    detectable = detectable_by_seeds(found, 0.95)

    of_two = paired(np.array([-1.0, 1.0]) * found.seeds.se * 2 / np.sqrt(2))
    assert of_two.se == pytest.approx(found.seeds.se * np.sqrt(2))  # of two pairs instead of four
    assert detectable.is_of_pairs
    assert detectable.differences[2] == pytest.approx(detectable_difference(of_two))


def test_nothing_is_said_of_more_seeds_of_one_configuration():
    found = compared(group("a", DEFAULT), group("a", CHANGED))

    assert detectable_by_seeds(found, 0.95).differences == {}
    assert power_line(found, 0.95) == ""


def test_two_pairs_are_too_few_to_know_their_spread():
    found = compared(group("a", DEFAULT), group("bb", {4: 1.34794, 3: 1.35461, 9: 1.35}))

    assert not detectable_by_seeds(found, 0.95).is_of_pairs


def test_without_pairs_more_seeds_are_reckoned_as_independent():
    found = compared(group("a", DEFAULT), group("bb", {8: 1.35, 9: 1.36}))

    detectable = detectable_by_seeds(found, 0.95)

    assert not detectable.is_of_pairs
    deviation = np.std(list(DEFAULT.values()), ddof=1)  # that of the side with three seeds or more
    assert detectable.differences[5] == pytest.approx(detectable_by_runs(deviation, 3, 5))
    assert "if seeds move both sides independently" in power_line(found, 0.95)


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

    found = equivalence(compared(a, b), within, seed=1, confidence=0.95, resamples=999, num_comparisons=1)

    narrow = compared(a, b, confidence=0.9).deciding
    assert found.verdict == verdict
    assert (found.low, found.high) == (narrow.low, narrow.high)
    assert found.confidence == pytest.approx(0.9)


def test_a_difference_just_outside_the_margin_needs_the_wider_interval():
    """It is outside with a confidence of 90 %, and not with 95 %."""
    a = group("a", {1: 1.3, 2: 1.3, 3: 1.3, 4: 1.3})
    b = group("bb", {1: 1.309, 2: 1.310, 3: 1.311, 4: 1.310})
    narrow = compared(a, b, confidence=0.9).seeds
    wide = compared(a, b).seeds
    between = (narrow.low + wide.low) / 2
    beyond = wide.low - 1e-5

    verdicts = [equivalence(compared(a, b), within, 1, 0.95, 99, num_comparisons=1) for within in (between, beyond)]

    assert [found.verdict for found in verdicts] == ["not decided", "not equivalent"]


def test_the_level_of_equivalence_is_divided_by_the_number_of_comparisons():
    runs = [run for name in ("a", "bb", "ccc") for run in group(name, DEFAULT).runs]

    found = compare_runs(runs, Options(within=0.005, resamples=199))

    assert [each.confidence for each in found.equivalences] == pytest.approx([0.95, 0.95])
    with pytest.raises(WrongInput, match="--resamples is 78; it must be at least 99"):
        compare_runs(runs, Options(resamples=78))
    with pytest.raises(WrongInput, match="--resamples is 199; it must be at least 399"):
        compare_runs(runs, Options(within=0.005, confidence=0.99, resamples=199))


def test_what_is_better_alone_and_not_after_the_correction_is_not_better():
    """Two groups with p = 0.04 each."""
    runs = group("a", dict.fromkeys(range(4), 1.3)).runs
    for name in ("bb", "ccc"):
        runs = runs + group(name, {seed: 1.29 + 0.00498 * (-1) ** seed for seed in range(4)}).runs

    found = compare_runs(runs, Options(resamples=99))

    assert [each.seeds.p_value for each in found.alone] == pytest.approx([0.04, 0.04], abs=0.001)
    assert [each.verdict(each.seeds, 0.95) for each in found.alone] == ["better", "better"]
    assert found.not_better() == ["bb (not shown)", "ccc (not shown)"]


def test_two_sides_at_the_margin_are_rarely_called_equivalent():
    """At most 5 % of cases, also for several comparisons together."""
    rng = np.random.default_rng(3)
    called = 0
    for _ in range(300):
        differences = rng.normal(0.005, 0.002, 4)
        a = group("a", dict.fromkeys(range(4), 1.3))
        b = group("bb", {seed: 1.3 + differences[seed] for seed in range(4)})
        found = equivalence(compared(a, b), 0.005, seed=1, confidence=0.95, resamples=99, num_comparisons=1)
        called += found.verdict == "equivalent"

    assert 0.02 * 300 < called < 0.085 * 300


def scored(name: str, is_right: np.ndarray, is_higher_better: bool) -> Group:
    measure = Measure("in score", "score", is_higher_better)
    sizes = np.ones(len(is_right), int)
    return Group([Run(name=name, seed=None, configuration=name, values=is_right, sizes=sizes, measure=measure)])


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

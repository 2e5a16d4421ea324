"""The spread over seeds, the power of the tests that will be used, and what a single group says of its noise."""

import numpy as np
import pytest

import evidence
from evidence.answer import answers
from evidence.difference import Options, compare, difference, paired, welch
from evidence.record import record
from evidence.runs import Group, Run
from evidence.spread import (
    POWER,
    detectable_ratio,
    noise_of,
    pooled,
    power,
    spread_of,
    what_more_seeds_show,
)

SIZES = np.array([100, 200])


def group(name: str, scores: dict[int | None, float]) -> Group:
    """Return runs of two documents with these bits per byte by seed."""
    runs = [
        Run(name=f"{name}-{seed}", seed=seed, configuration=name, label=name, values=score * SIZES, sizes=SIZES)
        for seed, score in scores.items()
    ]
    return Group(name, runs, [])


OF_A = {1: 1.350, 2: 1.355, 3: 1.351, 4: 1.340}
OF_B = {1: 1.3512, 2: 1.3575, 3: 1.3521, 7: 1.39}


@pytest.mark.parametrize(
    ("df", "low", "high"),  # of chi-square tables at 0.025 and 0.975
    [(2, 7.37776, 0.0506356), (9, 19.0228, 2.70039)],
)
def test_the_interval_of_a_deviation_equals_printed_tables(df, low, high):
    values = np.random.default_rng(1).normal(0, 1, df + 1)

    found = spread_of(values)

    sd = np.std(values, ddof=1)
    assert found.interval(0.95) == pytest.approx((sd * (df / low) ** 0.5, sd * (df / high) ** 0.5), rel=2e-5)


def test_spreads_are_pooled_by_their_degrees_of_freedom():
    a, b = np.array([1.0, 2.0]), np.array([1.0, 4.0, 7.0])

    assert pooled([spread_of(a), spread_of(b)]) == pytest.approx(((0.5 + 2 * 9) / 3, 3))


# Power.


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_a_detectable_difference_is_shown_in_four_of_five_simulations(seeds):
    """By the tests themselves, with a known spread."""
    rng = np.random.default_rng(seeds)
    of_pairs = detectable_ratio(seeds, True, 0.95)
    of_sides = detectable_ratio(seeds, False, 0.95)

    pairs = [paired(each).p_value <= 0.05 for each in rng.normal(of_pairs, 1, (2000, seeds))]
    sides = [welch(a, b + of_sides).p_value <= 0.05 for a, b in rng.normal(0, 1, (2000, 2, seeds))]

    assert np.mean(pairs) == pytest.approx(POWER, abs=0.04)
    assert np.mean(sides) == pytest.approx(POWER, abs=0.04)


def test_a_very_large_difference_is_always_shown():
    """SciPy's noncentral t is not a number for some of these."""
    found = [power(ratio, 19, True, 0.95) for ratio in np.linspace(5, 40, 400)]

    assert min(found) > 0.999
    assert power(1000.0, 2, False, 0.95) == pytest.approx(1)


# What more seeds would show.


@pytest.mark.parametrize(
    ("of_b", "samples"),
    [
        pytest.param(OF_B, [[0.0012, 0.0025, 0.0011]], id="three common seeds: pairs alone"),
        pytest.param({1: 1.35, 8: 1.36, 9: 1.352}, [[*OF_A.values()], [1.35, 1.36, 1.352]], id="both sides"),
        pytest.param({1: 1.35, 2: 1.36}, [[*OF_A.values()]], id="only the side of three seeds or more"),
    ],
)
def test_more_seeds_show_what_the_spread_of_pairs_or_of_the_sides_lets_them(of_b, samples):
    shown = what_more_seeds_show(difference(group("a", OF_A), group("b", of_b), Options(confidence=0.9)))

    are_pairs = of_b == OF_B
    assert shown.are_pairs == are_pairs
    spread = pooled([spread_of(np.array(sample)) for sample in samples])
    assert (shown.standard_deviation, shown.low, shown.high) == pytest.approx((spread.sd, *spread.interval(0.9)))
    assert list(shown.detectable) == [2, 3, 5, 10]
    for seeds, shown_by in shown.detectable.items():
        assert power(shown_by / spread.sd, seeds, are_pairs, 0.9) == pytest.approx(POWER)


def test_nothing_is_said_of_fewer_seeds_or_without_a_spread():
    two = difference(group("a", {1: 1.35, 2: 1.36}), group("b", {1: 1.35, 2: 1.36}), Options())

    assert what_more_seeds_show(two) is None
    assert noise_of([group("a", dict.fromkeys((1, 2, 3), 1.5))], 0.95) is None


# A single group.


def test_a_single_group_gives_its_noise():
    found = compare(group("a", OF_A).runs, Options(confidence=0.8))

    said, seeds, sentence = answers(found)
    document = record(found)

    scores = np.array(list(OF_A.values()))
    low, high = spread_of(scores).interval(0.8)
    deviation = f"{scores.std(ddof=1):.4f} bits per byte is the standard deviation over 4 seeds"
    assert said == f"`a`: {deviation}; the mean is {scores.mean():.4f}."
    assert seeds.startswith("Seeds: 1 (1.3500, a-1), 2 (1.3550, a-2), ")
    assert f"(80 % interval {low:.4f} to {high:.4f})" in sentence
    noise = document["groups"][0]["noise"]
    assert noise == evidence.noise(group("a", OF_A).runs, confidence=0.8)
    assert (noise.low, noise.high) == pytest.approx((low, high))
    assert noise.detectable[5] == pytest.approx(scores.std(ddof=1) * detectable_ratio(5, False, 0.8))
    assert document["comparisons"] == []


@pytest.mark.parametrize(
    ("scores", "said"),
    [({1: 1.3}, "because only one run counts"), ({1: 1.3, None: 1.4}, "over 2 seeds, which are too few")],
)
def test_nothing_is_extrapolated_from_fewer_than_three_seeds(scores, said):
    found = compare(group("a", scores).runs, Options())

    first, seeds = answers(found)

    assert said in first
    assert ("unknown (1.4000, a-None)" in seeds) == (None in scores)
    assert record(found)["groups"][0]["noise"] is None

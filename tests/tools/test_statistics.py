"""Statistics of comparisons: intervals contain the true value, p-values are uniform without a difference."""

import math

import numpy as np
import pytest

from support.loss_cases import LN2, corpus
from tools.common.statistics import (
    bits_per_byte,
    effective_documents,
    paired_difference,
    standard_error,
    student_t_p_value,
    student_t_quantile,
    welch,
)


def test_difference_of_ratios_of_sums():
    nats_a, nats_b, sizes = np.array([10.0, 1.0]), np.array([11.0, 3.0]), np.array([100, 1])
    found = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(0))
    assert found.bits_per_byte == pytest.approx(3 / 101 / LN2)
    assert found.bits_per_byte == pytest.approx(bits_per_byte(nats_b, sizes) - bits_per_byte(nats_a, sizes))


def test_interval_equals_a_bootstrap_written_as_loops():
    nats_a, nats_b, sizes = corpus(np.random.default_rng(1), 40, 0.05)
    found = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(2))
    excess, draw = (nats_b - nats_a) / LN2, np.random.default_rng(3)

    def ratio_and_se(bits, lengths):
        ratio = sum(bits) / sum(lengths)
        squares = sum((x - ratio * n) ** 2 for x, n in zip(bits, lengths, strict=True))
        return ratio, math.sqrt(len(bits) / (len(bits) - 1) * squares) / sum(lengths)

    delta, se = ratio_and_se(excess, sizes)
    drawn = []
    for _ in range(4000):
        chosen = draw.integers(40, size=40)
        ratio, its_se = ratio_and_se(excess[chosen], sizes[chosen])
        drawn.append(abs(ratio - delta) / its_se)
    assert (found.bits_per_byte, found.se) == pytest.approx((delta, se))
    assert (found.high - found.low) / 2 == pytest.approx(np.quantile(drawn, 0.95) * se, rel=0.06)
    assert (found.high + found.low) / 2 == pytest.approx(delta)
    assert found.p_value == pytest.approx(np.mean(np.array(drawn) >= abs(delta) / se), abs=0.02)


def test_without_a_difference_intervals_contain_zero_and_p_is_uniform():
    rng, held, p_values = np.random.default_rng(4), [], []
    for _ in range(500):
        found = paired_difference(*corpus(rng, 96, 0.0), rng, resamples=399)
        held.append(found.low <= 0 <= found.high)
        p_values.append(found.p_value)
    p_values = np.array(p_values)
    assert 0.925 <= np.mean(held) <= 0.975
    for level in (0.05, 0.25, 0.5, 0.75):
        assert np.mean(p_values <= level) == pytest.approx(level, abs=0.025 if level == 0.05 else 0.07)


def test_interval_of_a_true_difference_contains_it():
    rng = np.random.default_rng(5)
    found = [paired_difference(*corpus(rng, 96, -0.08), rng, resamples=399) for _ in range(200)]
    assert 0.91 <= np.mean([f.low <= -0.08 <= f.high for f in found]) <= 0.985
    assert np.mean([f.p_value < 0.05 for f in found]) > 0.75


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.03, 0.04, 0.08])
def test_p_and_interval_agree(shift):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = paired_difference(*corpus(rng, 30, shift), rng, resamples=999)
        assert (found.p_value <= 0.05) == (not found.low <= 0 <= found.high)


def test_same_seed_gives_the_same_result_for_any_block_size(monkeypatch):
    data = corpus(np.random.default_rng(6), 50, 0.02)
    first = paired_difference(*data, np.random.default_rng(1), resamples=999)
    assert first == paired_difference(*data, np.random.default_rng(1), resamples=999)
    assert first != paired_difference(*data, np.random.default_rng(2), resamples=999)
    monkeypatch.setattr("tools.common.statistics._BLOCK", 120)
    assert first == paired_difference(*data, np.random.default_rng(1), resamples=999)


def test_pairing_removes_the_variation_between_documents():
    nats_a, nats_b, sizes = corpus(np.random.default_rng(7), 96, 0.0)
    paired = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(1))
    assert paired.se < standard_error(nats_a, sizes) / 2


def test_too_few_documents_give_no_interval():
    rng = np.random.default_rng(8)
    alone = paired_difference(np.array([1.0]), np.array([2.0]), np.array([10]), rng)
    assert alone.bits_per_byte == pytest.approx(0.1 / LN2) and alone.se is alone.low is alone.p_value is None
    with np.errstate(all="raise"):  # half the resamples repeat one document
        for _ in range(20):
            two = paired_difference(*corpus(rng, 2), rng, resamples=199)
            assert two.se > 0 and two.low is two.high is two.p_value is None
    assert standard_error(np.array([1.0]), np.array([10])) is None


def test_equal_losses_give_zero_with_p_one():
    nats, _, sizes = corpus(np.random.default_rng(9), 20)
    found = paired_difference(nats, nats.copy(), sizes, np.random.default_rng(0))
    assert (found.bits_per_byte, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_effective_number_of_unequal_documents():
    assert effective_documents(np.full(7, 300)) == pytest.approx(7)
    assert effective_documents(np.array([1000, 1, 1, 1])) == pytest.approx(1, abs=0.01)


# Two-sided quantiles and tails of Student's t, from printed tables.
@pytest.mark.parametrize(
    ("confidence", "df", "t"),
    [(0.95, 1, 12.7062), (0.95, 4, 2.77645), (0.99, 10, 3.16927), (0.99, 30, 2.75000), (0.9, 1000, 1.64638)],
)
def test_student_t_equals_printed_tables(confidence, df, t):
    assert student_t_quantile(confidence, df) == pytest.approx(t, abs=2e-5)
    assert student_t_p_value(-t, df) == pytest.approx(1 - confidence, abs=1e-5)


def test_student_t_of_one_degree_is_cauchy():
    for t in (0.1, 1, 3, 50):
        assert student_t_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert student_t_p_value(2, 1) > student_t_p_value(2, 1.5) > student_t_p_value(2, 2)


def test_welch_equals_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    found = welch(np.array(b), np.array(a))
    assert found.bits_per_byte / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.bits_per_byte < found.high < 0


def test_welch_holds_its_level_with_unequal_spreads():
    rng = np.random.default_rng(10)
    p_values = [welch(rng.normal(1, 0.01, 5), rng.normal(1, 0.03, 4)).p_value for _ in range(1500)]
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=0.018)


def test_a_single_run_gives_no_interval_over_seeds():
    found = welch(np.array([1.0]), np.array([1.5, 1.6]))
    assert found.bits_per_byte == pytest.approx(0.55) and found.se is found.low is found.p_value is None
    assert welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])).p_value is None

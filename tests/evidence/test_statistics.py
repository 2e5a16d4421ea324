"""Statistics of comparisons equal printed tables and published examples, and keep their promises in simulations."""

import numpy as np
import pytest

from evidence.answer import p_text
from evidence.difference import Difference, common_seeds, difference_of_items, holm, paired, welch
from evidence.intervals import Estimate
from evidence.runs import Group, Run

NUM_SIMULATIONS = 400


def test_welch_equals_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = np.array([27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4])
    b = np.array([27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4])

    found = welch(b, a)

    assert found.value / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.value < found.high < 0


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


def test_single_items_give_the_paired_t_test():
    differences = [1, -1, 1, 1, 0, 1, 1, 0]  # six differ

    found = of_single_items(differences)

    assert found.value == pytest.approx(0.5)
    assert found.se == pytest.approx(np.std(differences, ddof=1) / np.sqrt(8))
    assert found.degrees_of_freedom == pytest.approx(7)
    assert found.low < 0.5 < found.high


@pytest.mark.parametrize("num_documents", [12, 80])
def test_items_of_one_document_count_as_dependent(num_documents):
    """False positives within three standard errors of 5 %; with the items as independent there would be far more.

    Each document has 1 to 12 items, in which one model is a little better, by chance.
    """
    rng = np.random.default_rng(num_documents)
    by_document = 0
    by_item = 0
    for _ in range(NUM_SIMULATIONS):
        document = np.repeat(np.arange(num_documents), rng.integers(1, 13, num_documents))
        advantage = rng.normal(0, 0.25, num_documents)[document] / 2
        is_right = rng.random((2, len(document))) < np.clip([0.5 - advantage, 0.5 + advantage], 0, 1)
        differences = is_right[1].astype(float) - is_right[0]
        by_document += difference_of_items(np.bincount(document, differences), np.bincount(document)).p_value <= 0.05
        by_item += of_single_items(differences).p_value <= 0.05

    standard_error = np.sqrt(0.05 * 0.95 / NUM_SIMULATIONS)
    assert by_document / NUM_SIMULATIONS == pytest.approx(0.05, abs=3 * standard_error)
    assert by_item / NUM_SIMULATIONS > 0.12


def test_holm_equals_a_worked_example():
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("p_value", "is_bound", "said"),
    [(0.0412, False, "= 0.041"), (1e-12, False, "< 0.0001"), (0.002, True, "≤ 0.002"), (None, False, "unknown")],
)
def test_a_limit_of_p_is_not_shown_as_its_value(p_value, is_bound, said):
    side = Group("a", [Run(name="a", seed=1, values=np.ones(2), sizes=np.ones(2))], [])
    documents = Estimate(1.0, p_value=0.001, p_is_bound=is_bound)

    assert p_text(Difference(common_seeds(side, side), documents, Estimate(1.0), {}, p_value)) == said

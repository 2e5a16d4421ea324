"""Statistics of comparisons: Student's t and Welch's test equal printed tables and published examples."""

import numpy as np
import pytest

from tools.common.statistics import student_t_p_value, student_t_quantile, welch


# Two-sided quantiles and tails of Student's t, from printed tables.
@pytest.mark.parametrize(
    ("confidence", "df", "t"), [(0.95, 1, 12.7062), (0.95, 4, 2.77645), (0.99, 10, 3.16927), (0.9, 1000, 1.64638)]
)
def test_student_t_equals_printed_tables(confidence, df, t):
    assert student_t_quantile(confidence, df) == pytest.approx(t, abs=2e-5)
    assert student_t_p_value(-t, df) == pytest.approx(1 - confidence, abs=1e-5)


def test_welch_equals_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    found = welch(np.array(b), np.array(a))
    assert found.value / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.value < found.high < 0


def test_a_single_run_gives_no_interval_over_seeds():
    found = welch(np.array([1.0]), np.array([1.5, 1.6]))
    assert found.value == pytest.approx(0.55) and found.se is found.low is found.p_value is None
    assert welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])).p_value is None

"""Simulate how often the intervals of `compare` contain a known truth, and how often p is small.

Documents: each trial draws documents from a known population and tests its true value. Populations: the 96 pairs of
benchmarks/results/optimizers.csv, drawn with replacement; log-normal sizes like those of the pairs, with a difference
that falls with the length as in the pairs, or that is independent of it; and the value of one model. Items: right and
wrong answers, of which each document has several. Seeds: normal scores of few runs.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evidence.difference import difference_of_items
from evidence.intervals import Estimate, ratio_interval
from evidence.spread import spread_of

PAIRS = Path(__file__).parents[1] / "results/optimizers.csv"
TRIALS = 2000
RESAMPLES = 399
LEVELS = (0.01, 0.05, 0.25, 0.5)
TRUTH = 0.3  # of simulated differences over seeds, in standard deviations

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]  # sizes and values of n documents


def populations() -> dict[str, tuple[float, Draw]]:
    """Return name → (true ratio, draw)."""
    with open(PAIRS, encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    sizes, a, b = np.array(rows, dtype=float)[:, 1:].T
    return {
        "difference, committed pairs": committed(sizes, b - a),
        "difference that depends on length": lognormal(sizes, b - a, depends=True),
        "difference independent of length": lognormal(sizes, b - a, depends=False),
        "one model, committed losses": committed(sizes, a),
        "one model, loss that depends on length": lognormal(sizes, a, depends=True),
    }


def committed(sizes: np.ndarray, rates: np.ndarray) -> tuple[float, Draw]:
    """Return documents of these sizes and rates, drawn with replacement."""

    def draw(rng, count):
        chosen = rng.integers(len(sizes), size=count)
        return sizes[chosen], rates[chosen] * sizes[chosen]

    return float(rates @ sizes / sizes.sum()), draw


def lognormal(sizes: np.ndarray, rates: np.ndarray, depends: bool) -> tuple[float, Draw]:
    """Return documents of log-normal sizes, whose rates are linear in the log size or independent of it."""
    logs = np.log(sizes)
    mean = logs.mean()
    variance = logs.var()
    slope, start = np.polyfit(logs, rates, 1)
    scatter = rates - start - slope * logs
    if not depends:
        slope = 0.0

    def draw(rng, count):
        drawn = rng.normal(mean, math.sqrt(variance), count)
        return np.exp(drawn), np.exp(drawn) * (slope * (drawn - mean) + rng.choice(scatter, count))

    return float(slope * variance), draw  # weighted by bytes, log sizes are larger by their variance


def of_documents(truth: float, draw: Draw, count: int, trials: int = TRIALS) -> dict[str, float]:
    """Return how often p of the difference from the truth is small, and how often ±1.96 standard errors cover it."""
    rng = np.random.default_rng(count)
    p_values = []
    held = []
    for _ in range(trials):
        sizes, values = draw(rng, count)
        found = ratio_interval(values - truth * sizes, sizes, rng, 0.95, RESAMPLES)
        p_values.append(found.p_value)
        ratio = values.sum() / sizes.sum()
        se = math.sqrt(count / (count - 1) * np.square(values - ratio * sizes).sum()) / sizes.sum()
        held.append(abs(ratio - truth) <= 1.96 * se)
    return fractions(p_values) | {"coverage of 1.96 standard errors": float(np.mean(held))}


def fractions(p_values: list[float]) -> dict[str, float]:
    """Return how often p is at most some levels; the 95 % interval excludes the truth where p is at most 0.05."""
    below = {f"p <= {level}": float(np.mean(np.array(p_values) <= level)) for level in LEVELS}
    return {"coverage": 1 - below["p <= 0.05"], **below}


def of_items(count: int, trials: int = TRIALS) -> dict[str, float]:
    """Return the same for answers: 1 to 12 items a document, in which one model is slightly better by chance."""
    rng = np.random.default_rng(count)
    p_values = []
    for _ in range(trials):
        sizes = rng.integers(1, 13, count)
        skill = rng.normal(0, 0.25, count)
        right_in_b = rng.binomial(sizes, np.clip(0.5 + skill / 2, 0, 1))
        right_in_a = rng.binomial(sizes, np.clip(0.5 - skill / 2, 0, 1))
        found = difference_of_items((right_in_b - right_in_a).astype(float), sizes)
        p_values.append(found.p_value)
    return fractions(p_values)


def of_seeds(estimate: Callable[[np.random.Generator], Estimate]) -> dict[str, float]:
    """Return how often the interval over seeds contains the true difference."""
    rng = np.random.default_rng(1)
    found = [estimate(rng) for _ in range(TRIALS)]
    return {"coverage": float(np.mean([each.low <= TRUTH <= each.high for each in found]))}


def of_deviation(seeds: int) -> dict[str, float]:
    """Return how often the interval of the standard deviation contains the true one."""
    rng = np.random.default_rng(seeds)
    found = [spread_of(values).interval(0.95) for values in rng.normal(0, 1, (TRIALS, seeds))]
    return {"coverage": float(np.mean([low <= 1 <= high for low, high in found]))}

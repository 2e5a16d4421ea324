"""Measure how often the 95 % intervals of `compare` hold the truth, and how often p is small without a difference.

    python benchmarks/interval_coverage.py [TRIALS]      # a few minutes on one core

Each trial draws documents from a known population and tests its true value. Populations: the 96 committed pairs of
benchmarks/results/optimizers.csv, drawn with replacement; log-normal sizes like those of the pairs, with a difference
that falls with the length as in the pairs, or that is independent of it; and the figure of one model.
Writes benchmarks/results/interval_coverage.json.
"""

import csv
import math
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from lm.core.files import write_json  # noqa: E402
from lm.evaluate.intervals import ratio_interval  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
RESAMPLES = 399


def populations() -> dict[str, tuple]:
    """Return name → (true ratio, function that draws sizes and values of n documents)."""
    with open(RESULTS / "optimizers.csv", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    sizes, a, b = np.array(rows, dtype=float)[:, 1:].T
    logs = np.log(sizes)
    mean, variance = logs.mean(), logs.var()

    def pairs(rates):
        def draw(rng, count):
            chosen = rng.integers(len(sizes), size=count)
            return sizes[chosen], rates[chosen] * sizes[chosen]

        return float(rates @ sizes / sizes.sum()), draw

    def lognormal(rates, depends):
        slope, start = np.polyfit(logs, rates, 1)
        scatter, slope = rates - start - slope * logs, slope * depends

        def draw(rng, count):
            drawn = rng.normal(mean, math.sqrt(variance), count)
            return np.exp(drawn), np.exp(drawn) * (slope * (drawn - mean) + rng.choice(scatter, count))

        return float(slope * variance), draw

    return {
        "difference, committed pairs": pairs(b - a), "difference that depends on length": lognormal(b - a, True),
        "difference independent of length": lognormal(b - a, False), "one model, committed losses": pairs(a),
        "one model, loss that depends on length": lognormal(a, True),
    }  # fmt: skip


def measure(truth: float, draw, count: int, trials: int) -> dict:
    """Return fractions of trials: 95 % intervals that hold the truth, p at most some levels, and ±1.96 errors."""
    rng, p_values, held = np.random.default_rng(count), [], []
    for _ in range(trials):
        sizes, values = draw(rng, count)
        found = ratio_interval(values - truth * sizes, sizes, rng, 0.95, RESAMPLES)
        p_values.append(found.p_value)
        ratio = values.sum() / sizes.sum()
        se = math.sqrt(count / (count - 1) * np.square(values - ratio * sizes).sum()) / sizes.sum()
        held.append(abs(ratio - truth) <= 1.96 * se)
    below = {f"p <= {level}": float(np.mean(np.array(p_values) <= level)) for level in (0.01, 0.05, 0.25, 0.5)}
    return {"coverage": 1 - below["p <= 0.05"], **below, "coverage of 1.96 standard errors": float(np.mean(held))}


def main() -> None:
    """Measure all populations with 24 and 96 documents; print and write the fractions."""
    trials, found = int(sys.argv[1]) if len(sys.argv) > 1 else 2000, {}
    for name, (truth, draw) in populations().items():
        found[name] = {str(count): measure(truth, draw, count, trials) for count in (24, 96)}
        print(name, found[name], flush=True)
    write_json(RESULTS / "interval_coverage.json", {"trials": trials, "resamples": RESAMPLES, "coverage": found})


if __name__ == "__main__":
    main()

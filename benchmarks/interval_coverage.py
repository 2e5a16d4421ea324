"""Measure how often the 95 % intervals of `compare` and `scaling` hold the truth, and how often p is small without one.

    python benchmarks/interval_coverage.py              # half an hour on one core
    python benchmarks/interval_coverage.py documents    # the intervals of `compare` alone, a few minutes
    python benchmarks/interval_coverage.py scaling      # the intervals of `scaling` alone

documents: each trial draws documents from a known population and tests its true value. Populations: the 96 committed
pairs of benchmarks/results/optimizers.csv, drawn with replacement; log-normal sizes like those of the pairs, with a
difference that falls with the length as in the pairs, or that is independent of it; and the figure of one model.

scaling: each trial draws the losses of the 18 runs of benchmarks/results/scaling.json from a known law with scatter,
fits the law, and compares its intervals with the known parameters and with two more runs. Laws: three terms of equal
size with scatter of 1 % and 5 %, and the law of the committed runs with their own residuals.

Writes benchmarks/results/interval_coverage.json.
"""

import csv
import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from extras.scaling import law  # noqa: E402
from lm.core.files import write_json  # noqa: E402
from lm.evaluate.intervals import ratio_interval  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
TRIALS, RESAMPLES = 2000, 399
SCALING_TRIALS, SCALING_RESAMPLES = 200, 199


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


def committed_runs() -> law.Runs:
    """Return the runs of benchmarks/results/scaling.json."""
    runs = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))["runs"]
    columns = (
        np.array([run[name] for run in runs], float) for name in ("parameters", "tokens", "flops", "bits_per_byte")
    )
    return law.Runs([run["name"] for run in runs], *columns)


def laws(runs: law.Runs) -> dict[str, tuple]:
    """Return name → (true law (5,), function that draws the scatter of n log losses)."""
    log_n, log_d = np.log(runs.parameters).mean(), np.log(runs.tokens).mean()
    equal = np.array([0.34 * log_n, 0.34, 0.37 * log_d, 0.37, 0.0]) + math.log(0.5) * np.array([1, 0, 1, 0, 1])
    fitted = law.fit_law(runs)
    residuals = np.log(runs.bits_per_byte / law.loss(fitted, runs.parameters, runs.tokens))
    residuals = (residuals - residuals.mean()) * math.sqrt(len(residuals) / (len(residuals) - law.NUM_PARAMETERS))
    return {
        "three equal terms, scatter 1 %": (equal, lambda rng, count: rng.normal(0, 0.01, count)),
        "three equal terms, scatter 5 %": (equal, lambda rng, count: rng.normal(0, 0.05, count)),
        "committed law and residuals": (fitted, lambda rng, count: rng.choice(residuals, count)),
    }  # fmt: skip


def measure_scaling(runs: law.Runs, truth: np.ndarray, scatter, trials: int) -> dict[str, float]:
    """Return name → fraction of trials whose 95 % interval held a parameter, or the loss of one more run."""
    rng, held = np.random.default_rng(1), Counter()
    middle = (float(np.median(runs.parameters)), float(np.median(runs.tokens)))
    largest = (2 * runs.parameters.max(), 2 * runs.tokens.max())
    for seed in range(trials):
        losses = law.loss(truth, runs.parameters, runs.tokens) * np.exp(scatter(rng, len(runs.names)))
        found = law.fit(runs._replace(bits_per_byte=losses), SCALING_RESAMPLES, seed)
        values, drawn = law.named(found.law), law.named(found.resampled)
        for name, value in law.named(truth).items():
            one = law.interval(float(values[name]), drawn[name], 0.95, len(losses))
            held[name] += one.low <= value <= one.high
        for name, size in (("a run within the sweep", middle), ("a run of 4 times the compute", largest)):
            value = law.loss(truth, *size)[0] * math.exp(scatter(rng, 1)[0])
            one = law.predict(found, *size, 0.95, seed)
            held[name] += one.low <= value <= one.high
    return {name: count / trials for name, count in held.items()}


def main() -> None:
    """Measure what is named; print and write the fractions, and keep the others."""
    chosen, path = sys.argv[1:] or ["documents", "scaling"], RESULTS / "interval_coverage.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    if "documents" in chosen:
        found |= {"trials": TRIALS, "resamples": RESAMPLES, "coverage": {}}
        for name, (truth, draw) in populations().items():
            found["coverage"][name] = {str(count): measure(truth, draw, count, TRIALS) for count in (24, 96)}
            print(name, found["coverage"][name], flush=True)
    if "scaling" in chosen:
        runs, coverage = committed_runs(), {}
        for name, (truth, scatter) in laws(runs).items():
            coverage[name] = measure_scaling(runs, truth, scatter, SCALING_TRIALS)
            print(name, coverage[name], flush=True)
        found["scaling"] = {"trials": SCALING_TRIALS, "resamples": SCALING_RESAMPLES, "coverage": coverage}
    write_json(path, found)


if __name__ == "__main__":
    main()

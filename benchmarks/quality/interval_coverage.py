"""Measure how often the 95 % intervals of `compare` contain the truth, and how often p is small without a difference.

    PYTHONPATH=src:benchmarks python benchmarks/quality/interval_coverage.py  # writes results/interval_coverage.json

`simulations.py` describes the simulated data.
"""

from evidence.difference import paired, welch
from quality.simulations import RESAMPLES, TRIALS, TRUTH, of_deviation, of_documents, of_items, of_seeds, populations
from result import RESULTS, write_result


def main() -> None:
    coverage: dict[str, dict] = {}
    for name, (truth, draw) in populations().items():
        coverage[name] = {str(count): of_documents(truth, draw, count) for count in (24, 96)}
    coverage["answers, several items a document"] = {str(count): of_items(count) for count in (24, 96)}
    pairs = {}
    independent = {}
    unequal = {}
    deviation = {}
    for seeds in (2, 3, 5, 10):
        pairs[str(seeds)] = of_seeds(lambda rng, n=seeds: paired(rng.normal(TRUTH, 1, n)))
        independent[str(seeds)] = of_seeds(lambda rng, n=seeds: welch(rng.normal(0, 1, n), rng.normal(TRUTH, 1, n)))
        unequal[str(seeds)] = of_seeds(lambda rng, n=seeds: welch(rng.normal(0, 1, n), rng.normal(TRUTH, 3, n)))
        if seeds > 2:
            deviation[str(seeds)] = of_deviation(seeds)
    coverage["seeds, pairs"] = pairs
    coverage["seeds, independent runs"] = independent
    coverage["seeds, one side spreads three times as far"] = unequal
    coverage["deviation over seeds"] = deviation
    write_result(RESULTS / "interval_coverage.json", trials=TRIALS, resamples=RESAMPLES, coverage=coverage)


if __name__ == "__main__":
    main()

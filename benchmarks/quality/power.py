"""Simulate how often `compare` shows a difference for which it claims 80 %.

    PYTHONPATH=src:benchmarks python benchmarks/quality/power.py      # a minute on one core; writes results/power.json

The sides have 2, 3, 5 or 10 seeds each, as pairs of equal seeds or as independent runs. The difference is the one that
`compare` prints: for a known spread, for the spread that a pilot of three seeds measures, and for the upper end of the
pilot's interval.
"""

import numpy as np

from evidence.difference import paired, welch
from evidence.spread import SEEDS_OF_EACH_SIDE, detectable_ratio, spread_of
from result import RESULTS, write_result

TRIALS = 10_000
PILOT = 3  # seeds
CONFIDENCE = 0.95


def shown(differences: np.ndarray, seeds: int, are_pairs: bool, rng: np.random.Generator) -> float:
    """Return the fraction of comparisons with p ≤ 0.05, one for each true difference, where seeds have deviation 1."""
    count = 0
    for difference in differences:
        if are_pairs:
            found = paired(rng.normal(difference, 1, seeds), CONFIDENCE)
        else:
            found = welch(rng.normal(0, 1, seeds), rng.normal(difference, 1, seeds), CONFIDENCE)
        count += found.p_value is not None and found.p_value <= 1 - CONFIDENCE
    return count / len(differences)


def measure(seeds: int, are_pairs: bool, rng: np.random.Generator) -> dict[str, float]:
    """Return the claimed difference in standard deviations, and the fractions that are shown."""
    ratio = detectable_ratio(seeds, are_pairs, CONFIDENCE)
    pilots = [spread_of(values) for values in rng.normal(0, 1, (TRIALS, PILOT))]
    as_measured = np.array([pilot.sd for pilot in pilots])
    at_upper_end = np.array([pilot.interval(CONFIDENCE)[1] for pilot in pilots])
    return {
        "difference": ratio,
        "shown_with_known_spread": shown(np.full(TRIALS, ratio), seeds, are_pairs, rng),
        "shown_by_pilot_of_3": shown(ratio * as_measured, seeds, are_pairs, rng),
        "shown_by_upper_end_of_pilot": shown(ratio * at_upper_end, seeds, are_pairs, rng),
    }


def main() -> None:
    rng = np.random.default_rng(1)
    found = {}
    for name, are_pairs in (("pairs", True), ("independent", False)):
        found[name] = {str(seeds): measure(seeds, are_pairs, rng) for seeds in SEEDS_OF_EACH_SIDE}
    write_result(RESULTS / "power.json", trials=TRIALS, **found)


if __name__ == "__main__":
    main()

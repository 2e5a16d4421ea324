"""How far seeds spread the score of one configuration, and the smallest change that more runs would show."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from evidence.answer import by_count
from evidence.runs import BITS_PER_BYTE, Measure
from evidence.spread import LEAST_SEEDS, POWER, Deviation, detectable_by_runs, deviation

NOISE = "reprolm.noise/1"  # the schema of its JSON
RUNS_OF_EACH_SIDE = (1, 2, 3, 5, 8)
PAIRS = (2, 3, 5, 8)


@dataclasses.dataclass(frozen=True)
class ScoredRun:
    """A run of which only its score counts."""

    name: str
    seed: int | None
    score: float


@dataclasses.dataclass(frozen=True)
class Noise:
    """The runs of one configuration, one for each seed, and their deviation over seeds."""

    name: str
    runs: list[ScoredRun]
    deviation: Deviation | None  # of two seeds or more
    detectable: dict[int, float]  # independent runs of each side → difference; {} with fewer than LEAST_SEEDS
    of_pairs: list[float]  # the deviation of pairs of equal seeds with each other configuration, smallest first
    detectable_by_pairs: dict[int, float]  # pairs of equal seeds → difference; {} with fewer than LEAST_SEEDS
    measure: Measure

    @property
    def typical_pair(self) -> float | None:
        """Return the median deviation of pairs, which one large change does not move; None if none is known."""
        return float(np.median(self.of_pairs)) if self.of_pairs else None


def measure_noise(
    name: str,
    runs: list[ScoredRun],
    others: Sequence[Sequence[ScoredRun]],
    confidence: float,
    measure: Measure = BITS_PER_BYTE,
) -> Noise:
    """Return the noise of the runs of one configuration; `others` are those of other configurations, for the pairs.

    If no pairs are known, two sides count as independent: the deviation of a pair is then √2 times that over seeds.
    """
    scores = np.array([run.score for run in runs])
    spread = deviation(scores, confidence) if len(runs) > 1 else None
    of_pairs = sorted(deviations_of_pairs(runs, others))
    noise = Noise(name, runs, spread, {}, of_pairs, {}, measure)
    if spread is None or spread.num_seeds < LEAST_SEEDS:
        return noise
    df = spread.degrees_of_freedom
    of_a_pair = noise.typical_pair or math.sqrt(2) * spread.value
    return dataclasses.replace(
        noise,
        detectable={count: detectable_by_runs(spread.value, df, count, confidence) for count in RUNS_OF_EACH_SIDE},
        detectable_by_pairs={count: detectable_by_runs(of_a_pair, df, count, confidence, 1) for count in PAIRS},
    )


def deviations_of_pairs(runs: Sequence[ScoredRun], others: Sequence[Sequence[ScoredRun]]) -> list[float]:
    """Return the standard deviation of the differences of equal seeds, for each other with LEAST_SEEDS of them.

    One whose scores are all the same is no change, such as other code that computes the same bits.
    """
    score_of = {run.seed: run.score for run in runs if run.seed is not None}
    found = []
    for other in others:
        differences = [run.score - score_of[run.seed] for run in other if run.seed in score_of]
        if len(differences) >= LEAST_SEEDS and any(differences):
            found.append(float(np.std(differences, ddof=1)))
    return found


def describe(noise: Noise, confidence: float) -> list[str]:
    """Return what a terminal shows."""
    spread = noise.deviation
    unit = noise.measure.unit
    named = [("unknown" if run.seed is None else run.seed, run) for run in noise.runs]
    seeds = ", ".join(f"{seed} ({run.score:.4f}, {run.name})" for seed, run in named)
    if spread is None:
        return [f"{noise.name}: the noise of seeds is not known, because only one seed has a run: {seeds}."]
    if spread.low is None:
        return [
            f"{noise.name}: {spread.value:.4f} {unit} is the standard deviation over 2 seeds, which are too "
            "few to conclude from.",
            f"seeds: {seeds}",
        ]
    mean = np.mean([run.score for run in noise.runs])
    alone = noise.detectable[1]
    several = {count: difference for count, difference in noise.detectable.items() if count > 1}
    return [
        f"{noise.name}: {spread.value:.4f} {unit} is the standard deviation over {spread.num_seeds} "
        f"seeds ({100 * confidence:g} % interval {spread.low:.4f} to {spread.high:.4f}); the mean is {mean:.4f}.",
        f"seeds: {seeds}",
        pairs_sentence(noise),
        f"smallest change shown in about {100 * POWER:g} % of cases, in {unit}:",
        f"  {by_count(noise.detectable_by_pairs, 'pairs of equal seeds')}",
        f"  {by_count(several, 'independent runs of each side')}",
        f"  {alone:.4f} with 1 run of each side, if this noise is known to be that of both",
    ]


def pairs_sentence(noise: Noise) -> str:
    """Return how far the differences of equal seeds spread, or what is assumed of them."""
    of_pairs = noise.of_pairs
    if not of_pairs:
        return (
            f"pairs: no other configuration has {LEAST_SEEDS} of these seeds, so they count as independent; "
            "equal seeds can move both sides together, and pairs then show smaller changes"
        )
    several = f", the median of {len(of_pairs)} ({of_pairs[0]:.4f} to {of_pairs[-1]:.4f})" if len(of_pairs) > 1 else ""
    others = "other configurations" if len(of_pairs) > 1 else "one other configuration"
    return (
        f"pairs: {noise.typical_pair:.4f} is the standard deviation of the differences of equal seeds with "
        f"{others}{several}"
    )


def noise_record(noise: Noise) -> dict:
    """Return what `describe` says as a mapping for JSON; docs/json.md describes it."""
    spread = noise.deviation
    key = noise.measure.key
    return {
        "revision": noise.name,
        "num_seeds": len(noise.runs),
        key: float(np.mean([run.score for run in noise.runs])),
        "standard_deviation": None if spread is None else spread.value,
        "low": None if spread is None else spread.low,
        "high": None if spread is None else spread.high,
        "runs": [{"name": run.name, "seed": run.seed, key: run.score} for run in noise.runs],
        "detectable_by_runs": [
            {"runs_of_each_side": count, "difference": difference} for count, difference in noise.detectable.items()
        ],
        "pairs": {"num_configurations": len(noise.of_pairs), "standard_deviation": noise.typical_pair},
        "detectable_by_pairs": [
            {"pairs": count, "difference": difference} for count, difference in noise.detectable_by_pairs.items()
        ],
    }

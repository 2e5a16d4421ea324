"""How far seeds spread the score of one configuration, and the smallest change that more runs would show."""

import dataclasses

import numpy as np

from evidence.power import LEAST_SEEDS, POWER, Deviation, detectable_by_runs, deviation
from evidence.runs import BITS_PER_BYTE, Measure

NOISE = "reprolm.noise/1"  # the schema of its JSON
RUNS_OF_EACH_SIDE = (1, 2, 3, 5, 8)


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
    detectable: dict[int, float]  # runs of each side → difference; {} with fewer than LEAST_SEEDS
    measure: Measure


def measure_noise(name: str, runs: list[ScoredRun], confidence: float, measure: Measure = BITS_PER_BYTE) -> Noise:
    """Return the noise of the runs of one configuration."""
    scores = np.array([run.score for run in runs])
    spread = deviation(scores, confidence) if len(runs) > 1 else None
    detectable = {}
    if spread is not None and spread.num_seeds >= LEAST_SEEDS:
        for count in RUNS_OF_EACH_SIDE:
            detectable[count] = detectable_by_runs(spread.value, spread.degrees_of_freedom, count, confidence)
    return Noise(name, runs, spread, detectable, measure)


def describe(noise: Noise, confidence: float) -> list[str]:
    """Return what a terminal shows."""
    spread = noise.deviation
    unit = noise.measure.unit
    seeds = ", ".join(f"{run.seed} ({run.score:.4f}, {run.name})" for run in noise.runs)
    if spread is None:
        return [f"{noise.name}: the noise of seeds is not known, because only one seed has a run: {seeds}."]
    if spread.low is None:
        return [
            f"{noise.name}: {spread.value:.4f} {unit} is the standard deviation over 2 seeds, which are too "
            "few to conclude from.",
            f"seeds: {seeds}",
        ]
    mean = np.mean([run.score for run in noise.runs])
    lines = [
        f"{noise.name}: {spread.value:.4f} {unit} is the standard deviation over {spread.num_seeds} "
        f"seeds ({100 * confidence:g} % interval {spread.low:.4f} to {spread.high:.4f}); the mean is {mean:.4f}.",
        f"seeds: {seeds}",
        f"smallest change shown in about {100 * POWER:g} % of cases, in {unit}:",
    ]
    for count, difference in noise.detectable.items():
        of_each = "run " if count == 1 else "runs"
        known = ", if this noise is known to be that of both" if count == 1 else ""
        lines.append(f"  {difference:.4f} with {count} {of_each} of each side{known}")
    return lines


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
    }

"""Simulate nights of judged changes: how many false ones are kept, and how many real gains are found.

A night tries 100 changes, one after the other, each against the best so far. Losses are in standard deviations of the
noise of seeds. Every judgement is that of `evidence judge --go-on`, by its own code. The base keeps its runs for all
judgements of a night, so these depend on each other. Runs of both sides with the same seed correlate; a wide candidate
has a larger spread, and no correlation. The greedy rule runs each change once, and keeps it if its loss is the
lowest.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evidence.judge.decision import LOOKS, MOST_SEEDS, Figures
from evidence.judge.judgements import Judgement, Pair, judge
from evidence.judge.night import seeds_of_base

TRIES = 100
GAINS = 10  # real ones among the tries
SMALL_CHANGES = ((0.97, 1.0),)  # correlation of equal seeds, and its share: of small changes, as measured
ALL_CHANGES = ((0.97, 0.6), (0.8, 0.2), (0.0, 0.2))  # large changes lose it
UNPAIRED = ((0.0, 1.0),)


class Night(NamedTuple):
    """What is tried in a night: gains in standard deviations, correlations and their shares, and wide candidates."""

    num_gains: int = 0
    gain: float = 2.0
    correlations: tuple[tuple[float, float], ...] = SMALL_CHANGES
    wide_share: float = 0.0
    wide_factor: float = 10.0  # the spread of a wide candidate
    base_luck: float = 0.0  # by how much all runs of the first base are unlucky together
    draw: Callable[[np.random.Generator, int], np.ndarray] = lambda rng, count: rng.normal(0, 1, count)

    def effects(self, rng: np.random.Generator) -> np.ndarray:
        """Return how each change moves the loss, (TRIES,)."""
        effects = np.zeros(TRIES)
        effects[rng.choice(TRIES, self.num_gains, replace=False)] = -self.gain
        return effects

    def losses(self, rng: np.random.Generator, base: np.ndarray, is_gain: bool) -> np.ndarray:
        """Return the losses of a candidate around its mean, for the seeds of `base` (MOST_SEEDS,)."""
        own = self.draw(rng, MOST_SEEDS)
        if not is_gain and rng.random() < self.wide_share:
            return self.wide_factor * own
        values, shares = zip(*self.correlations, strict=True)
        correlation = rng.choice(values, p=shares)
        return correlation * base + math.sqrt(1 - correlation**2) * own


def judged_night(rng: np.random.Generator, night: Night) -> dict[str, int]:
    """Return what a night of judged changes kept, and how many runs it took."""
    former: list[Judgement] = []
    kept_false = 0
    kept_gains = 0
    mean = 0.0
    base_name = "base"
    base = night.base_luck + night.draw(rng, MOST_SEEDS)  # around its mean
    for number, effect in enumerate(night.effects(rng), start=1):
        name = str(number)
        candidate = night.losses(rng, base, effect < 0)
        pair = Pair(base_name, name, base_name, name, "", "", 1, 0.0)
        judged = judge_change(former, pair, mean + base, mean + effect + candidate)
        if judged.is_kept:
            kept_gains += effect < 0
            kept_false += effect >= 0
            base_name = name
            base = candidate
            mean += effect

    # Each side was run once for each of its seeds.
    seeds_of: dict[str, int] = {}
    for judged in former:
        seeds_of[judged.pair.base] = max(judged.figures.base_seeds, seeds_of.get(judged.pair.base, 0))
        seeds_of[judged.pair.candidate] = judged.figures.seeds
    return {"kept_false": int(kept_false), "kept_gains": int(kept_gains), "runs": sum(seeds_of.values())}


def judge_change(former: list[Judgement], pair: Pair, base: np.ndarray, candidate: np.ndarray) -> Judgement:
    """Judge a change with ever more seeds until it is decided; both sides have the losses of MOST_SEEDS runs."""
    seeds = LOOKS[0]
    while True:
        former.append(judge(former, pair, figures_of(base[: seeds_of_base(seeds)], candidate[:seeds])))
        seeds += former[-1].decision.more_seeds
        if not former[-1].decision.more_seeds:
            return former[-1]


def figures_of(base: np.ndarray, candidate: np.ndarray) -> Figures:
    """Return the figures of two sides; the interval over documents excludes zero, the worst case without a gain."""
    pairs = candidate - base[: len(candidate)]
    means = (float(base.mean()), float(candidate.mean()), float(pairs.mean()))
    deviations = (float(base.std(ddof=1)), float(candidate.std(ddof=1)), float(pairs.std(ddof=1)))
    return Figures(len(candidate), len(base), *means, *deviations, -1.0, -0.5)


def greedy_night(rng: np.random.Generator, night: Night) -> dict[str, int]:
    """Return what the greedy rule kept."""
    kept_false = 0
    kept_gains = 0
    mean = 0.0
    best = rng.normal()
    for effect in night.effects(rng):
        measured = rng.normal(mean + effect)
        if measured < best:
            best = measured
            mean += effect
            kept_gains += effect < 0
            kept_false += effect >= 0
    return {"kept_false": int(kept_false), "kept_gains": int(kept_gains), "runs": TRIES + 1}


def nights(rule, count: int, night: Night) -> dict[str, float]:
    """Return the shares and means over `count` nights."""
    found = [rule(np.random.default_rng([1, night.num_gains, number]), night) for number in range(count)]
    false = np.array([each["kept_false"] for each in found])
    gains = np.array([each["kept_gains"] for each in found])
    return {
        "nights": count,
        "nights_with_a_false_one": float(np.mean(false > 0)),
        "false_share_of_kept": float(np.mean(false / np.maximum(1, false + gains))),
        "kept_gains": float(gains.mean()),
        "runs": float(np.mean([each["runs"] for each in found])),
    }


def heavy_tailed(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_t(3, count) / math.sqrt(3)


def skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw losses of which a few are lucky."""
    return 1 - rng.exponential(1, count)


WORLDS = {
    "small_changes": Night(),
    "all_changes": Night(correlations=ALL_CHANGES),
    "all_changes_1_percent_wide": Night(correlations=ALL_CHANGES, wide_share=0.01),
    "all_changes_3_percent_wide": Night(correlations=ALL_CHANGES, wide_share=0.03),
    "all_changes_wide": Night(correlations=ALL_CHANGES, wide_share=0.1),
    "all_changes_three_times_wide": Night(correlations=ALL_CHANGES, wide_share=0.1, wide_factor=3.0),
    "all_changes_heavy_tails": Night(correlations=ALL_CHANGES, draw=heavy_tailed),
    "all_changes_skewed": Night(correlations=ALL_CHANGES, draw=skewed),
    "all_changes_unlucky_base": Night(correlations=ALL_CHANGES, base_luck=0.5),
    "unpaired": Night(correlations=UNPAIRED),
    "unpaired_wide": Night(correlations=UNPAIRED, wide_share=0.1),
}

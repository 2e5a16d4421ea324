"""Simulate nights of judged changes: how many false ones are kept, and how many real gains are found.

A night tries 100 changes, one after the other, each against the best so far. Losses are in standard deviations over
seeds. The code of `evidence judge` makes every judgement. The base keeps its runs for all judgements of a night, so
these depend on each other. Runs of both sides with the same seed correlate. A wide candidate has a larger spread, and
no correlation. A fresh pair that disagrees with the others, as 1 % of honest ones do, is not simulated: another seed is
drawn. In rounded worlds a run prints its loss to half a standard deviation.

Rival rules: the greedy one runs each change once, and keeps it if its loss is the lowest. Three others run three seeds.
The mean must be lower in 95 % of bootstrap resamples (two more seeds run only if the first one is lower than the mean
of the base), or Welch's test, on one side, must have p < 0.05, or p < 0.01.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from evidence.judge.decision import LOOKS, MOST_SEEDS, Figures, Fresh
from evidence.judge.judgements import Judgement, Pair, judge
from evidence.judge.night import seeds_of_base

TRIES = 100
GAINS = 10  # real ones among the tries
SMALL_CHANGES = ((0.97, 1.0),)  # correlation of equal seeds, and its share: of small changes, as measured
ALL_CHANGES = ((0.97, 0.6), (0.8, 0.2), (0.0, 0.2))  # large changes lose it
UNPAIRED = ((0.0, 1.0),)


class Change(NamedTuple):
    """How the losses of a change depend on those of its base: their correlation, and the spread of the change."""

    correlation: float
    spread: float


class Night(NamedTuple):
    """The changes of a night: gains in standard deviations, correlations and their shares, and wide candidates."""

    num_gains: int = 0
    gain: float = 2.0
    correlations: tuple[tuple[float, float], ...] = SMALL_CHANGES
    wide_share: float = 0.0
    wide_factor: float = 10.0  # the spread of a wide candidate
    base_luck: float = 0.0  # by how much all runs of the first base are worse
    digit: float = 0.0  # the last digit that a run prints; 0: losses are exact
    draw: Callable[[np.random.Generator, int], np.ndarray] = lambda rng, count: rng.normal(0, 1, count)

    def effects(self, rng: np.random.Generator) -> np.ndarray:
        """Return how each change moves the loss, (TRIES,)."""
        effects = np.zeros(TRIES)
        effects[rng.choice(TRIES, self.num_gains, replace=False)] = -self.gain
        return effects

    def change(self, rng: np.random.Generator, is_gain: bool) -> Change:
        """Draw a change. Only one that is not a gain can be wide: its seeds spread `wide_factor` times as far."""
        if not is_gain and rng.random() < self.wide_share:
            return Change(0.0, self.wide_factor)
        values, shares = zip(*self.correlations, strict=True)
        return Change(rng.choice(values, p=shares), 1.0)

    def printed(self, losses: np.ndarray) -> np.ndarray:
        """Return losses as a run prints them."""
        return np.round(losses / self.digit) * self.digit if self.digit else losses

    def losses(self, rng: np.random.Generator, change: Change, base: np.ndarray) -> np.ndarray:
        """Return the losses of a change around its mean, for the seeds of `base` (S,)."""
        own = self.draw(rng, len(base))
        return change.correlation * base + change.spread * math.sqrt(1 - change.correlation**2) * own

    def fresh(self, rng: np.random.Generator, changes: Sequence[Change], effect: float) -> Fresh:
        """Return the losses of the last but one and the last of all changes with a new seed."""
        base = losses = self.draw(rng, 1)
        for change in changes:
            base = losses
            losses = self.losses(rng, change, base)
        base, losses = self.printed(base), self.printed(losses + effect)
        return Fresh(10_000, float(base[0]), float(losses[0]))


def judged_night(rng: np.random.Generator, night: Night) -> dict[str, int]:
    """Return what a night of judged changes kept, and how many runs it took."""
    former: list[Judgement] = []
    kept_false = 0
    kept_gains = 0
    mean = 0.0
    base_name = "base"
    base = night.base_luck + night.draw(rng, MOST_SEEDS)  # around its mean
    kept: list[Change] = []
    for number, effect in enumerate(night.effects(rng), start=1):
        name = str(number)
        change = night.change(rng, effect < 0)
        candidate = night.losses(rng, change, base)
        pair = Pair(base_name, name, base_name, name, "", "", "", 1, 0.0)
        fresh = functools.partial(night.fresh, rng, [*kept, change], effect)
        of_base = night.printed(mean + base)
        of_candidate = night.printed(mean + effect + candidate)
        judged = judge_change(former, pair, of_base, of_candidate, fresh)
        if judged.is_kept:
            kept_gains += effect < 0
            kept_false += effect >= 0
            base_name = name
            base = candidate
            mean += effect
            kept.append(change)

    # Each side was run once for each of its seeds, and once for each fresh one.
    seeds_of: dict[str, int] = {}
    for judged in former:
        seeds_of[judged.pair.base] = max(judged.figures.base_seeds, seeds_of.get(judged.pair.base, 0))
        seeds_of[judged.pair.candidate] = judged.figures.seeds
    runs = sum(seeds_of.values()) + 2 * sum(judged.fresh is not None for judged in former)
    return {"kept_false": int(kept_false), "kept_gains": int(kept_gains), "runs": runs}


def judge_change(
    former: list[Judgement], pair: Pair, base: np.ndarray, candidate: np.ndarray, fresh: Callable[[], Fresh]
) -> Judgement:
    """Judge a change with ever more seeds until it is decided; both sides have the losses of MOST_SEEDS runs."""
    for seeds in LOOKS:
        figures = figures_of(base[: seeds_of_base(seeds)], candidate[:seeds])
        judged = judge(former, pair, figures)
        if judged.is_kept:
            judged = judge(former, pair, figures, fresh())
        former.append(judged)
        if judged.decision.answer != "undecided":
            break
    return judged


def figures_of(base: np.ndarray, candidate: np.ndarray) -> Figures:
    """Return the figures of two sides of which a run gives one number, or whose documents pass: the worst case."""
    pairs = candidate - base[: len(candidate)]
    means = (float(base.mean()), float(candidate.mean()), float(pairs.mean()))
    deviations = (float(base.std(ddof=1)), float(candidate.std(ddof=1)), float(pairs.std(ddof=1)))
    return Figures(len(candidate), len(base), *means, *deviations, documents_low=None, documents_high=None)


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


def night_of_three_seeds(keeps: Callable[[np.ndarray, np.ndarray], bool], first_must_be_lower: bool = False):
    """Return the night of a rule that runs three seeds of each change, which do not correlate."""

    def night_of(rng: np.random.Generator, night: Night) -> dict[str, int]:
        kept_false = 0
        kept_gains = 0
        runs = 3
        mean = 0.0
        base = night.draw(rng, 3)
        for effect in night.effects(rng):
            candidate = mean + effect + night.draw(rng, 3)
            is_tried = not first_must_be_lower or candidate[0] < base.mean()
            runs += 3 if is_tried else 1
            if is_tried and candidate.mean() < base.mean() and keeps(base, candidate):
                base = candidate
                mean += effect
                kept_gains += effect < 0
                kept_false += effect >= 0
        return {"kept_false": int(kept_false), "kept_gains": int(kept_gains), "runs": runs}

    return night_of


def is_lower_in_resamples(base: np.ndarray, candidate: np.ndarray) -> bool:
    """Return whether the mean of the candidate is lower in 95 % of all pairs of bootstrap resamples."""
    resamples = np.array(list(itertools.product(range(3), repeat=3)))
    means = candidate[resamples].mean(1)
    return bool((means[:, None] < base[resamples].mean(1)).mean() >= 0.95)


def is_lower_by_welch(level: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    """Return a rule: Welch's test of three runs of each side, one-sided, has p below `level`."""

    def keeps(base: np.ndarray, candidate: np.ndarray) -> bool:
        variances = np.array([base.var(ddof=1), candidate.var(ddof=1)]) / 3
        t = (candidate.mean() - base.mean()) / math.sqrt(variances.sum())
        df = variances.sum() ** 2 / (variances**2 / 2).sum()
        return bool(stdtr(df, t) < level)

    return keeps


RIVALS = {
    "greedy": greedy_night,
    "bootstrap": night_of_three_seeds(is_lower_in_resamples, first_must_be_lower=True),
    "welch_0.05": night_of_three_seeds(is_lower_by_welch(0.05)),
    "welch_0.01": night_of_three_seeds(is_lower_by_welch(0.01)),
}


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
    "all_changes_wide": Night(correlations=ALL_CHANGES, wide_share=0.1),
    "all_changes_three_times_wide": Night(correlations=ALL_CHANGES, wide_share=0.1, wide_factor=3.0),
    "all_changes_often_three_times_wide": Night(correlations=ALL_CHANGES, wide_share=0.3, wide_factor=3.0),
    "all_changes_heavy_tails": Night(correlations=ALL_CHANGES, draw=heavy_tailed),
    "all_changes_skewed": Night(correlations=ALL_CHANGES, draw=skewed),
    "all_changes_unlucky_base": Night(correlations=ALL_CHANGES, base_luck=0.5),
    "small_changes_rounded": Night(digit=0.5),
    "all_changes_rounded": Night(correlations=ALL_CHANGES, digit=0.5),
    "unpaired": Night(correlations=UNPAIRED),
    "unpaired_wide": Night(correlations=UNPAIRED, wide_share=0.1),
}

"""Simulate nights of judged changes: how many false ones are kept, and how many real gains are found.

    python quality/judge.py [--nights 2000]

A night tries 100 changes, one after the other, each against the best so far. Losses are in standard deviations of the
noise of seeds. Every judgement is that of `python src judge --go-on`, which begins with 3 seeds of each side. The base
keeps its runs for all judgements of a night, so these depend on each other. The greedy rule runs each change once, and
keeps it if its loss is the lowest so far.
"""

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np

from evidence.differences import welch
from evidence.judge.levels import FALSE_RATE, next_level, share
from harness import RESULTS
from lm.core.files import write_json
from tools.judge.decision import MOST_SEEDS, Decision, Figures, decide
from tools.judge.judgements import Judgement, Pair, noise_of

Level = Callable[[Sequence[bool]], float]  # of the next judgement, given which ones kept their change

TRIES = 100
FIRST_SEEDS = 3
GAINS = 10  # real ones among the tries
GAIN = 2.0  # of each, in standard deviations


def spending_level(kept: Sequence[bool]) -> float:
    """Return the level of alpha spending: FALSE_RATE in the same shares, of which nothing is earned back."""
    return FALSE_RATE * share(len(kept) + 1)


def judge_change(former: list[Judgement], pair: Pair, a: np.ndarray, b: np.ndarray, level: Level) -> Judgement:
    """Judge a change with ever more seeds until it is decided; a and b have the losses of MOST_SEEDS runs.

    Intervals over documents exclude zero, the worst case for a change that is none.
    """
    seeds = FIRST_SEEDS
    while True:
        figures = figures_of(a[:seeds], b[:seeds])
        decision = decision_of(former, pair, figures, level)
        if decision.answer == "keep":  # the interval over seeds takes long to compute, and decides only here
            over_seeds = welch(a[:seeds], b[:seeds])
            figures = figures._replace(seeds_low=over_seeds.low, seeds_high=over_seeds.high)
            decision = decision_of(former, pair, figures, level)
        former.append(Judgement(len(former) + 1, pair, figures, decision))
        seeds += decision.more_seeds
        if not decision.more_seeds:
            return former[-1]


def decision_of(former: list[Judgement], pair: Pair, figures: Figures, level: Level) -> Decision:
    """Return the decision that follows on `former`."""
    return decide(figures, noise_of(former, pair, figures), level([each.is_kept for each in former]))


def figures_of(a: np.ndarray, b: np.ndarray) -> Figures:
    """Return the figures of losses (seeds,) of base and candidate; all intervals exclude zero."""
    difference = float(b.mean() - a.mean())
    spread_a = float(a.std(ddof=1))
    spread_b = float(b.std(ddof=1))
    interval = (-1.0, -0.5)
    return Figures(len(a), float(a.mean()), float(b.mean()), difference, spread_a, spread_b, *interval, *interval)


def judged_night(rng: np.random.Generator, effects: np.ndarray, level: Level = next_level) -> dict[str, float]:
    """Return what a night of judged changes kept; `effects` (TRIES,) move the loss, 0 for a change that is none."""
    former: list[Judgement] = []
    kept_false = 0
    kept_gains = 0
    loss = 0.0
    base = "base"
    base_losses = rng.normal(loss, 1, MOST_SEEDS)
    for number, effect in enumerate(effects, start=1):
        candidate = str(number)
        losses = rng.normal(loss + effect, 1, MOST_SEEDS)
        pair = Pair(base, candidate, base, candidate, "", "", 0, 0)
        if judge_change(former, pair, base_losses, losses, level).is_kept:
            if effect < 0:
                kept_gains += 1
            else:
                kept_false += 1
            base = candidate
            base_losses = losses
            loss += effect

    # Each side was run once for each of its seeds.
    seeds_of = {}
    for judged in former:
        seeds_of[judged.pair.base] = judged.figures.seeds
        seeds_of[judged.pair.candidate] = judged.figures.seeds
    return {"kept_false": kept_false, "kept_gains": kept_gains, "runs": sum(seeds_of.values())}


def spending_night(rng: np.random.Generator, effects: np.ndarray) -> dict[str, float]:
    """Return what a night kept under alpha spending."""
    return judged_night(rng, effects, spending_level)


def greedy_night(rng: np.random.Generator, effects: np.ndarray) -> dict[str, float]:
    """Return what the greedy rule kept."""
    kept_false = 0
    kept_gains = 0
    loss = 0.0
    best = rng.normal()
    for effect in effects:
        measured = rng.normal(loss + effect)
        if measured < best:
            best = measured
            loss += effect
            if effect < 0:
                kept_gains += 1
            else:
                kept_false += 1
    return {"kept_false": kept_false, "kept_gains": kept_gains, "runs": len(effects) + 1}


def nights(night, count: int, num_gains: int, seed: int = 1) -> dict[str, float]:
    """Return the shares and means over `count` nights with `num_gains` real gains at random places."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, num_gains, number])
        effects = np.zeros(TRIES)
        effects[rng.choice(TRIES, num_gains, replace=False)] = -GAIN
        found.append(night(rng, effects))
    false = np.array([each["kept_false"] for each in found])
    gains = np.array([each["kept_gains"] for each in found])
    false_shares = false / np.maximum(1, false + gains)
    return {
        "nights": count,
        "nights_with_a_false_one": float(np.mean(false > 0)),
        "false_share_of_kept": float(np.mean(false_shares)),
        "false_share_standard_error": float(np.std(false_shares) / math.sqrt(count)),
        "kept_false": float(false.mean()),
        "kept_gains": float(gains.mean()),
        "runs": float(np.mean([each["runs"] for each in found])),
    }


def main() -> None:
    """Simulate nights without and with real gains, by the judge and by the greedy rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=2000)
    args = parser.parse_args()
    result = {
        "tries": TRIES,
        "gains": GAINS,
        "gain_in_standard_deviations": GAIN,
        "first_seeds": FIRST_SEEDS,
        "most_seeds": MOST_SEEDS,
    }
    rules = {"judge": judged_night, "alpha_spending": spending_night, "greedy": greedy_night}
    for name, night in rules.items():
        result[name] = {
            "no_gains": nights(night, args.nights, 0),
            "with_gains": nights(night, args.nights, GAINS),
        }
    write_json(RESULTS / "judge.json", result)


if __name__ == "__main__":
    main()

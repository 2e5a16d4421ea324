"""The report of a scaling law as Markdown, and the same numbers as JSON."""

from typing import NamedTuple

import numpy as np

from extras.scaling.law import Fit, Frontier, Interval, Runs, interval, loss, named, on_frontier
from tools.common.tables import table

SYMBOLS = {"E": "E, bits per byte", "A": "A", "alpha": "α", "B": "B", "beta": "β"}
NO_FLOOR = 0.05  # an E below this fraction of the least loss cannot be told from none


class Wanted(NamedTuple):
    """A run to predict: parameters, tokens, FLOP, and the losses that the law and the frontier expect."""

    parameters: float
    tokens: float
    flops: float
    law: Interval
    frontier: Interval | None


class Scaling(NamedTuple):
    """Everything that is reported; the entropy is in bits per byte."""

    runs: Runs
    fit: Fit
    work: tuple[float, float]  # (k, γ) of the training FLOP k N^γ D
    frontier: Frontier | None
    held_back: dict[int, Interval]  # run → its prediction from smaller runs
    wanted: list[Wanted]
    entropy: float | None  # of the text, where it is known
    varies: list[str]  # names of the parameters in which the runs differ
    confidence: float

    @property
    def fitted(self) -> np.ndarray:
        return loss(self.fit.law, self.runs.parameters, self.runs.tokens)

    def parameter_intervals(self) -> dict[str, Interval]:
        """Return E, A, alpha, B, beta with their intervals."""
        values, drawn = named(self.fit.law), named(self.fit.resampled)
        count = len(self.runs.names)
        return {name: interval(float(values[name]), drawn[name], self.confidence, count) for name in values}


def report(scaling: Scaling) -> list[str]:
    runs, losses, fitted, best = scaling.runs, scaling.runs.bits_per_byte, scaling.fitted, on_frontier(scaling.runs)
    percent, frontier = f"{100 * scaling.confidence:g} % interval", scaling.frontier
    run_rows = [
        [runs.names[i], f"{runs.parameters[i]:,.0f}", f"{runs.tokens[i]:,.0f}", f"{runs.flops[i]:.3g}",
         f"{losses[i]:.4f}", f"{fitted[i]:.4f}", error(float(fitted[i]), float(losses[i])), "yes" if best[i] else ""]
        for i in np.lexsort((runs.tokens, runs.parameters))
    ]  # fmt: skip
    lines = [
        f"# Scaling law of {len(runs.names)} runs", "",
        *table(["run", "parameters", "tokens", "FLOP", "bits per byte", "law", "error", "frontier"], run_rows),
        *describe_law(scaling, percent),
        "## The largest runs, predicted from the others", "",
    ]  # fmt: skip
    if held := scaling.held_back:
        held_rows = [
            [runs.names[i], f"{losses[i]:.4f}", f"{one.value:.4f}", between(one), error(one.value, float(losses[i]))]
            for i, one in held.items()
        ]
        num_inside = sum(bool(one.low <= losses[i] <= one.high) for i, one in held.items())
        factor = runs.flops.max() / np.delete(runs.flops, list(held)).max()
        lines += table(["run", "bits per byte", "predicted", percent, "error"], held_rows)
        lines += [f"{num_inside} of {len(held)} are inside their intervals, at {factor:.2g} times the others' compute."]
    else:
        lines += ["There are too few runs to hold any back, so predictions beyond them are unchecked."]
    lines += ["", "## The frontier", ""]
    if frontier:
        lines += [
            f"{best.sum()} runs have the least loss for their compute: L = {frontier.a:.4g} · C^-{frontier.b:.4f}, "
            f"standard error {100 * frontier.spread:.2g} %. It has no floor: far out it predicts too low a loss."
        ]
    else:
        lines += ["One run has the least loss for its compute: too few for a power law."]
    if scaling.wanted:
        lines += ["", "## Predicted", "", *describe_predictions(scaling, percent)]
    lines += [
        "", "N: all parameters, the tied embedding once. D: tokens seen by the best model, repeated ones again. C: its "
        "training FLOP. The fit minimizes the Huber loss of log L, δ = 0.001 (Hoffmann et al. 2022, approach 3). "
        "Intervals: bootstrap of residuals, widened by Student's t; a prediction's includes the scatter of one run.",
    ]  # fmt: skip
    if scaling.varies:
        lines += ["", f"Parameters that differ between these runs: `{'`, `'.join(scaling.varies)}`."]
    return [*lines, ""]


def describe_law(scaling: Scaling, percent: str) -> list[str]:
    """Return the lines about the parameters of the law; they say if it contradicts the entropy of the text."""
    intervals, (k, gamma), entropy = scaling.parameter_intervals(), scaling.work, scaling.entropy
    floor, alpha, beta = intervals["E"], intervals["alpha"].value, intervals["beta"].value
    errors = 100 * np.abs(scaling.fitted / scaling.runs.bits_per_byte - 1)
    rows = [[SYMBOLS[name], f"{one.value:.4g}", between(one, ".4g")] for name, one in intervals.items()]
    grows = (
        f"parameters grow as C^{beta / (alpha + gamma * beta):.2f} and tokens as C^{alpha / (alpha + gamma * beta):.2f}"
    )
    lines = [
        "## L(N, D) = E + A / N^α + B / D^β", "", *table(["parameter", "value", percent], rows),
        f"- Error of the fit: {np.median(errors):.2g} % in the median, {errors.max():.2g} % at most.",
        f"- For the least loss at compute C, {grows} (here C = {k:.3g} N^{gamma:.3f} D).",
    ]  # fmt: skip
    if floor.low < NO_FLOOR * scaling.runs.bits_per_byte.min():
        lines += ["- The losses are too far above a floor to measure E; it may be close to zero."]
    if entropy is not None:
        side = "inside" if floor.low <= entropy <= floor.high else "outside"
        lines += [f"- The entropy of the text is {entropy:.4f} bits per byte, {side} the interval of E."]
        lowest = min([floor.value, *(one.law.value for one in scaling.wanted)])
        if lowest < entropy:
            impossible = f"down to {lowest:.4f} bits per byte, less than the entropy of {entropy:.4f}"
            lines += [f"- **The law is wrong far out:** it predicts {impossible}, which no model can reach."]
    return [*lines, ""]


def describe_predictions(scaling: Scaling, percent: str) -> list[str]:
    """Return the lines about the runs that were asked for."""
    rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{one.flops:.3g}", f"{one.law.value:.4f}", between(one.law),
         "too few runs" if one.frontier is None else f"{one.frontier.value:.4f} ({between(one.frontier)})"]
        for one in scaling.wanted
    ]  # fmt: skip
    lines = table(["parameters", "tokens", "FLOP", "bits per byte", percent, "frontier's power law"], rows)
    factor = max(one.flops for one in scaling.wanted) / scaling.runs.flops.max()
    if factor > 10:
        lines += [f"At {factor:.0f} times the largest run's compute, the intervals hold only if the law does."]
    return lines


def error(predicted: float, measured: float) -> str:
    """Return a prediction's error in percent of the measured loss."""
    return f"{100 * (predicted / measured - 1):+.1f} %"


def between(interval: Interval, digits: str = ".4f") -> str:
    return f"{interval.low:{digits}} to {interval.high:{digits}}"


def as_json(scaling: Scaling) -> dict:
    runs, fitted, best, frontier = scaling.runs, scaling.fitted, on_frontier(scaling.runs), scaling.frontier
    held = {i: predicted._asdict() for i, predicted in scaling.held_back.items()}
    predicted = [one._asdict() | {"law": one.law._asdict(), "frontier": one.frontier and one.frontier._asdict()}
                 for one in scaling.wanted]  # fmt: skip
    return {
        "runs": [
            {"name": name, "parameters": int(runs.parameters[i]), "tokens": int(runs.tokens[i]),
             "flops": runs.flops[i].item(), "bits_per_byte": runs.bits_per_byte[i].item(), "law": fitted[i].item(),
             "on_frontier": bool(best[i]), "predicted_from_smaller_runs": held.get(i)}
            for i, name in enumerate(runs.names)
        ],
        "confidence": scaling.confidence,
        "law": {name: one._asdict() for name, one in scaling.parameter_intervals().items()},
        "flops": {"k": scaling.work[0], "gamma": scaling.work[1]},
        "frontier": frontier and {"a": frontier.a, "b": frontier.b, "spread": frontier.spread},
        "predicted": predicted,
        "entropy_bits_per_byte": scaling.entropy,
        "parameters_that_differ": scaling.varies,
    }  # fmt: skip

"""The report of a scaling law as Markdown, and the same numbers as JSON."""

from typing import NamedTuple

import numpy as np

from tools.common.tables import table
from tools.scaling.law import Fit, Frontier, Interval, Runs, interval, loss, named, on_frontier

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
    """Everything that is reported.

    work: (k, γ) of the training FLOP k N^γ D; held_back: run → its prediction from smaller runs; entropy: of the
    text, where it is known; standard_error: of the largest run's loss over documents, None for a single one; both in
    bits per byte; varies: names of the parameters in which the runs differ.
    """

    runs: Runs
    fit: Fit
    work: tuple[float, float]
    frontier: Frontier | None
    held_back: dict[int, Interval]
    wanted: list[Wanted]
    entropy: float | None
    standard_error: float | None
    varies: list[str]
    confidence: float

    @property
    def percent(self) -> str:
        """Return the confidence of the intervals in percent."""
        return f"{100 * self.confidence:g} %"

    @property
    def fitted(self) -> np.ndarray:
        """Return the law's loss of each run (n,)."""
        return loss(self.fit.law, self.runs.parameters, self.runs.tokens)

    def parameter_intervals(self) -> dict[str, Interval]:
        """Return E, A, alpha, B, beta with their intervals."""
        values, drawn = named(self.fit.law), named(self.fit.resampled)
        count = len(self.runs.names)
        return {name: interval(float(values[name]), drawn[name], self.confidence, count) for name in values}


def report(scaling: Scaling) -> list[str]:
    """Return the lines of the report."""
    runs, fitted, best = scaling.runs, scaling.fitted, on_frontier(scaling.runs)
    rows = [
        [runs.names[i], f"{runs.parameters[i]:,.0f}", f"{runs.tokens[i]:,.0f}", f"{runs.flops[i]:.3g}",
         f"{runs.bits_per_byte[i]:.4f}", f"{fitted[i]:.4f}", error(float(fitted[i]), float(runs.bits_per_byte[i])),
         "yes" if best[i] else ""]
        for i in np.lexsort((runs.tokens, runs.parameters))
    ]  # fmt: skip
    lines = [f"# Scaling law of {len(runs.names)} runs", ""]
    lines += table(["run", "parameters", "tokens", "FLOP", "bits per byte", "law", "error", "frontier"], rows)
    for section in (law_section, held_back_section, frontier_section, how_to_read):
        lines += section(scaling)
    return lines


def error(predicted: float, measured: float) -> str:
    """Return a prediction's error in percent of the measured loss."""
    return f"{100 * (predicted / measured - 1):+.1f} %"


def between(interval: Interval, digits: str = ".4f") -> str:
    """Return the ends of an interval as text."""
    return f"{interval.low:{digits}} to {interval.high:{digits}}"


def law_section(scaling: Scaling) -> list[str]:
    """Return the parameters of the law with intervals, its errors, and the best split of compute."""
    intervals, (k, gamma) = scaling.parameter_intervals(), scaling.work
    rows = [[SYMBOLS[name], f"{one.value:.4g}", between(one, ".4g")] for name, one in intervals.items()]
    errors = 100 * np.abs(scaling.fitted / scaling.runs.bits_per_byte - 1)
    alpha, beta, floor = intervals["alpha"].value, intervals["beta"].value, intervals["E"]
    sentences = [
        f"Error of the fit: {np.median(errors):.2g} % in the median, {errors.max():.2g} % at most.",
        f"For the least loss at compute C, parameters grow as C^{beta / (alpha + gamma * beta):.2f} and tokens as "
        f"C^{alpha / (alpha + gamma * beta):.2f} (here C = {k:.3g} N^{gamma:.3f} D).",
    ]
    if floor.low < NO_FLOOR * scaling.runs.bits_per_byte.min():
        sentences.append("The losses are too far above a floor to measure E; it may be close to zero.")
    if scaling.entropy is not None:
        place = "inside" if floor.low <= scaling.entropy <= floor.high else "outside"
        sentences.append(f"The entropy of the text is {scaling.entropy:.4f} bits per byte, {place} the interval of E.")
    lines = ["## L(N, D) = E + A / N^α + B / D^β", ""]
    lines += table(["parameter", "value", f"{scaling.percent} interval"], rows)
    return [*lines, *(f"- {sentence}" for sentence in sentences), ""]


def held_back_section(scaling: Scaling) -> list[str]:
    """Return the runs of most compute as the law of the others predicts them."""
    lines = ["## The largest runs, predicted from the others", ""]
    if not scaling.held_back:
        return [*lines, "There are too few runs to hold any back, so predictions beyond them are unchecked.", ""]
    names, losses, flops = scaling.runs.names, scaling.runs.bits_per_byte, scaling.runs.flops
    rows = [
        [names[i], f"{losses[i]:.4f}", f"{one.value:.4f}", between(one), error(one.value, losses[i])]
        for i, one in scaling.held_back.items()
    ]
    inside = sum(one.low <= losses[i] <= one.high for i, one in scaling.held_back.items())
    factor = flops.max() / np.delete(flops, list(scaling.held_back)).max()
    lines += table(["run", "bits per byte", "predicted", f"{scaling.percent} interval", "error"], rows)
    last = f"{inside} of {len(rows)} are inside their intervals, at up to {factor:.2g} times the others' compute."
    return [*lines, last, ""]


def frontier_section(scaling: Scaling) -> list[str]:
    """Return the power law through the runs with the least loss for their compute, and the predictions asked for."""
    count, frontier = int(on_frontier(scaling.runs).sum()), scaling.frontier
    text = f"{count} run has the least loss for its compute: too few for a power law."
    if frontier is not None:
        text = (
            f"{count} runs have the least loss for their compute: L = {frontier.a:.4g} · C^{-frontier.b:.4f}, standard "
            f"error {100 * frontier.spread:.2g} %. A power law has no floor, so it is too optimistic far out."
        )
    lines = ["## The frontier", "", text, ""]
    if not scaling.wanted:
        return lines
    rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{one.flops:.3g}", f"{one.law.value:.4f}", between(one.law),
         "too few runs" if one.frontier is None else f"{one.frontier.value:.4f} ({between(one.frontier)})"]
        for one in scaling.wanted
    ]  # fmt: skip
    header = ["parameters", "tokens", "FLOP", "bits per byte", f"{scaling.percent} interval", "frontier's power law"]
    factor = max(one.flops for one in scaling.wanted) / scaling.runs.flops.max()
    warning = f"At {factor:.0f} times the largest run's compute, the intervals hold only if the law does."
    return [*lines, "## Predicted", "", *table(header, rows), *([warning, ""] if factor > 10 else [])]


def how_to_read(scaling: Scaling) -> list[str]:
    """Return the definitions and what the intervals cover."""
    text = (
        "N: all parameters, the tied embedding once. D: tokens seen by the best model, repeated ones again. C: its "
        "training FLOP. The fit minimizes the Huber loss of log L, δ = 0.001 (Hoffmann et al. 2022, approach 3). "
        "Intervals: bootstrap of residuals, widened by Student's t; a prediction's includes the scatter of one run. "
        "All runs share the validation documents; the standard error over documents "
    )
    if scaling.standard_error is None:
        text += "is unknown: there is only one. Validate on a text of several documents to measure it."
    else:
        text += f"is ±{scaling.standard_error:.2g} bits per byte for the run of most compute."
    if any(name.startswith("tokenizer") for name in scaling.varies):
        text += " Tokenizers differ, so D counts each run's own tokens."
    names = ", ".join(f"`{name}`" for name in scaling.varies)
    return [text, "", *([f"Parameters that differ between these runs: {names}.", ""] if names else [])]


def as_json(scaling: Scaling) -> dict:
    """Return the numbers of the report for programs."""
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
        "standard_error_bits_per_byte": scaling.standard_error,
        "parameters_that_differ": scaling.varies,
    }  # fmt: skip

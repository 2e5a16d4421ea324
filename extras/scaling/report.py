"""The report of a scaling law as Markdown, and the same numbers as JSON."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from extras.scaling.law import Fit, Frontier, Interval, Runs, interval, loss, named, on_frontier
from tools.common.tables import render, table

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
    """Everything that is reported; entropy and standard error are in bits per byte."""

    runs: Runs
    fit: Fit
    work: tuple[float, float]  # (k, γ) of the training FLOP k N^γ D
    frontier: Frontier | None
    held_back: dict[int, Interval]  # run → its prediction from smaller runs
    wanted: list[Wanted]
    entropy: float | None  # of the text, where it is known
    standard_error: float | None  # of the largest run's loss over documents, None for a single one
    varies: list[str]  # names of the parameters in which the runs differ
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
    """Return the lines of the report, report.md.j2 filled in."""
    runs, fitted, best = scaling.runs, scaling.fitted, on_frontier(scaling.runs)
    intervals, (k, gamma), losses = scaling.parameter_intervals(), scaling.work, scaling.runs.bits_per_byte
    errors, held_back, percent = 100 * np.abs(fitted / losses - 1), scaling.held_back, f"{scaling.percent} interval"
    run_rows = [
        [runs.names[i], f"{runs.parameters[i]:,.0f}", f"{runs.tokens[i]:,.0f}", f"{runs.flops[i]:.3g}",
         f"{losses[i]:.4f}", f"{fitted[i]:.4f}", error(float(fitted[i]), float(losses[i])), "yes" if best[i] else ""]
        for i in np.lexsort((runs.tokens, runs.parameters))
    ]  # fmt: skip
    law_rows = [[SYMBOLS[name], f"{one.value:.4g}", between(one, ".4g")] for name, one in intervals.items()]
    held_rows = [
        [runs.names[i], f"{losses[i]:.4f}", f"{one.value:.4f}", between(one), error(one.value, float(losses[i]))]
        for i, one in held_back.items()
    ]
    wanted_rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{one.flops:.3g}", f"{one.law.value:.4f}", between(one.law),
         "too few runs" if one.frontier is None else f"{one.frontier.value:.4f} ({between(one.frontier)})"]
        for one in scaling.wanted
    ]  # fmt: skip
    wanted_header = ["parameters", "tokens", "FLOP", "bits per byte", percent, "frontier's power law"]
    return render(
        Path(__file__).with_suffix(".md.j2"), scaling=scaling, k=k, gamma=gamma, alpha=intervals["alpha"].value,
        beta=intervals["beta"].value, floor=intervals["E"], least_visible_floor=NO_FLOOR * losses.min(),
        runs=table(["run", "parameters", "tokens", "FLOP", "bits per byte", "law", "error", "frontier"], run_rows),
        parameters=table(["parameter", "value", percent], law_rows),
        median_error=np.median(errors), largest_error=errors.max(), num_best=int(best.sum()),
        held_back=table(["run", "bits per byte", "predicted", percent, "error"], held_rows),
        num_inside=sum(bool(one.low <= losses[i] <= one.high) for i, one in held_back.items()),
        held_back_factor=runs.flops.max() / np.delete(runs.flops, list(held_back)).max(),
        predicted=table(wanted_header, wanted_rows),
        predicted_factor=max((one.flops for one in scaling.wanted), default=0) / runs.flops.max(),
        tokenizers_differ=any(name.startswith("tokenizer") for name in scaling.varies),
    )  # fmt: skip


def error(predicted: float, measured: float) -> str:
    """Return a prediction's error in percent of the measured loss."""
    return f"{100 * (predicted / measured - 1):+.1f} %"


def between(interval: Interval, digits: str = ".4f") -> str:
    """Return the ends of an interval as text."""
    return f"{interval.low:{digits}} to {interval.high:{digits}}"


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

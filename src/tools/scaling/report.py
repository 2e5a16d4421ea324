"""A fitted law of scaling → Markdown that reads as well on a terminal, and the same figures as JSON."""

import dataclasses

import numpy as np

from tools.common.tables import table
from tools.scaling.law import Fit, Frontier, Interval, Runs, best_split, interval, loss, named, on_frontier

SYMBOLS = {"E": "E, bits per byte", "A": "A", "alpha": "α", "B": "B", "beta": "β"}
UNSEEN_SHARE = 0.05  # of the least loss: an E below it is as good as none


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A run that is asked for: parameters, tokens, compute, and the losses that law and frontier expect."""

    parameters: float
    tokens: float
    flops: float
    law: Interval
    frontier: Interval | None


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """What was found: the runs, the law, (k, γ) of its work, the frontier, held-back runs, what was asked for.

    known_floor: the text's own entropy where it is known; standard_error: of the largest run's loss over
    documents; both in bits per byte. varies: parameters in which the runs differ.
    """

    runs: Runs
    fit: Fit
    work: tuple[float, float]
    frontier: Frontier | None
    held_back: dict[int, Interval]
    wanted: list[Wanted]
    known_floor: float | None
    standard_error: float
    varies: list[str]
    confidence: float

    @property
    def percent(self) -> str:
        """The intervals' confidence, as people write it."""
        return f"{100 * self.confidence:g} %"

    @property
    def fitted(self) -> np.ndarray:
        """(n,) the law's loss of each run."""
        return loss(self.fit.law, self.runs.parameters, self.runs.tokens)

    def parameter_intervals(self) -> dict[str, Interval]:
        """E, A, alpha, B, beta with their intervals."""
        values, drawn = named(self.fit.law), named(self.fit.resampled)
        return {name: interval(values[name], drawn[name], self.confidence) for name in values}


def report(found: Scaling) -> list[str]:
    """All lines."""
    lines = [f"# How the loss of {len(found.runs.names)} runs scales", "", *runs_table(found)]
    lines += law_section(found) + held_back_section(found) + frontier_section(found)
    if found.wanted:
        lines += wanted_section(found)
    return lines + how_to_read(found)


def runs_table(found: Scaling) -> list[str]:
    """A row a run, by size and tokens."""
    runs, fitted, best = found.runs, found.fitted, on_frontier(found.runs)
    rows = [
        [
            runs.names[i], f"{runs.parameters[i]:,.0f}", f"{runs.tokens[i]:,.0f}", f"{runs.flops[i]:.3g}",
            f"{runs.bits_per_byte[i]:.4f}", f"{fitted[i]:.4f}", off_by(fitted[i], runs.bits_per_byte[i]),
            "yes" if best[i] else "",
        ]
        for i in np.lexsort((runs.tokens, runs.parameters))
    ]  # fmt: skip
    return table(["run", "parameters", "tokens", "FLOP", "bits per byte", "law", "off by", "frontier"], rows)


def off_by(predicted: float, measured: float) -> str:
    """A prediction's error in percent of the measured loss."""
    return f"{100 * (predicted / measured - 1):+.1f} %"


def between(found: Interval, digits: str = ".4f") -> str:
    """low to high."""
    return f"{found.low:{digits}} to {found.high:{digits}}"


def law_section(found: Scaling) -> list[str]:
    """The law, its parameters with intervals, and how far the runs lie from it."""
    intervals, (k, gamma) = found.parameter_intervals(), found.work
    rows = [[SYMBOLS[name], f"{one.value:.4g}", between(one, ".4g")] for name, one in intervals.items()]
    errors = 100 * np.abs(found.fitted / found.runs.bits_per_byte - 1)
    alpha, beta = intervals["alpha"].value, intervals["beta"].value
    sentences = [
        f"It misses these runs by {np.median(errors):.2g} % in the median and {errors.max():.2g} % at most.",
        f"Least loss for compute C: parameters grow as C^{beta / (alpha + gamma * beta):.2f}, tokens as "
        f"C^{alpha / (alpha + gamma * beta):.2f} (C = {k:.3g} N^{gamma:.3f} D here).",
    ]
    if intervals["E"].low < UNSEEN_SHARE * found.runs.bits_per_byte.min():
        sentences.append("These runs are too far from a floor to show one: E may be next to nothing.")
    if found.known_floor is not None:
        inside = intervals["E"].low <= found.known_floor <= intervals["E"].high
        sentences.append(
            f"The text's own entropy is {found.known_floor:.4f} bits per byte: {'inside' if inside else 'outside'} E's "
            "interval."
        )
    lines = [
        "## L(N, D) = E + A / N^α + B / D^β",
        "",
        *table(["parameter", "value", f"{found.percent} interval"], rows),
    ]
    return lines + [f"- {sentence}" for sentence in sentences] + [""]


def held_back_section(found: Scaling) -> list[str]:
    """The runs of most compute as the others predict them."""
    lines = ["## The largest runs, predicted from the others", ""]
    if not found.held_back:
        return [*lines, "Too few runs to hold any back: what the law says of larger ones is unchecked.", ""]
    rows, hits = [], 0
    for i, predicted in found.held_back.items():
        measured = found.runs.bits_per_byte[i]
        hits += predicted.low <= measured <= predicted.high
        rows.append(
            [found.runs.names[i], f"{measured:.4f}", f"{predicted.value:.4f}", between(predicted),
             off_by(predicted.value, measured)]
        )  # fmt: skip
    factor = found.runs.flops.max() / np.delete(found.runs.flops, list(found.held_back)).max()
    lines += table(["run", "bits per byte", "predicted", f"{found.percent} interval", "off by"], rows)
    return [
        *lines,
        f"{hits} of {len(rows)} within their intervals, at up to {factor:.2g} times the others' compute.",
        "",
    ]


def frontier_section(found: Scaling) -> list[str]:
    """The power law through the best runs for their compute."""
    best = int(on_frontier(found.runs).sum())
    lines = ["## The frontier", ""]
    if found.frontier is None:
        return [*lines, f"{best} run is on it: too few for a curve.", ""]
    a, b, spread = found.frontier.a, found.frontier.b, 100 * found.frontier.spread
    return [
        *lines,
        f"{best} runs have the least loss for their compute: L = {a:.4g} · C^{-b:.4f}, off by {spread:.2g} % (standard "
        "error). It knows no floor, so far out it promises too much.",
        "",
    ]


def wanted_section(found: Scaling) -> list[str]:
    """What was asked for."""
    rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{one.flops:.3g}", f"{one.law.value:.4f}", between(one.law),
         "too few runs" if one.frontier is None else f"{one.frontier.value:.4f} ({between(one.frontier)})"]
        for one in found.wanted
    ]  # fmt: skip
    header = ["parameters", "tokens", "FLOP", "bits per byte", f"{found.percent} interval", "the frontier's power law"]
    return ["## Predicted", "", *table(header, rows), *far_out(found)]


def far_out(found: Scaling) -> list[str]:
    """A sentence where something was asked for far beyond what was measured."""
    factor = max(one.flops for one in found.wanted) / found.runs.flops.max()
    if factor <= 10:
        return []
    return [f"The last compute is {factor:.0f} times the largest run's: intervals hold only if the law does.", ""]


def how_to_read(found: Scaling) -> list[str]:
    """What the letters count, and what the intervals speak of."""
    lines = [
        "N counts all parameters, the embedding once, because the head computes with it; D the tokens seen, again "
        "where they repeat; C the training FLOP that metrics/train.json states. Fitted by Huber loss of logarithms, "
        "δ = 0.001 (Hoffmann et al. 2022, approach 3). Intervals: bootstrap of residuals; a predicted run's holds its "
        "own scatter as well. The standard error over documents, of the run of most compute, is "
        f"±{found.standard_error:.2g} bits per byte; it is common to all runs, scored on the same documents."
    ]
    if any(name.startswith("tokenizer") for name in found.varies):
        lines[0] += " Tokenizers differ: D counts each run's own tokens."
    if found.varies:
        lines += [
            "",
            "Parameters that differ between these runs: " + ", ".join(f"`{name}`" for name in found.varies) + ".",
        ]
    return [*lines, ""]


def as_json(found: Scaling) -> dict:
    """The same figures for programs."""
    runs, fitted, best = found.runs, found.fitted, on_frontier(found.runs)
    held = {i: dataclasses.asdict(predicted) for i, predicted in found.held_back.items()}
    return {
        "runs": [
            {
                "name": name, "parameters": int(runs.parameters[i]), "tokens": int(runs.tokens[i]),
                "flops": runs.flops[i].item(), "bits_per_byte": runs.bits_per_byte[i].item(), "law": fitted[i].item(),
                "on_frontier": bool(best[i]), "predicted_from_smaller_runs": held.get(i),
            }
            for i, name in enumerate(runs.names)
        ],
        "confidence": found.confidence,
        "law": {name: dataclasses.asdict(one) for name, one in found.parameter_intervals().items()},
        "flops": {"k": found.work[0], "gamma": found.work[1]},
        "frontier": found.frontier and {"a": found.frontier.a, "b": found.frontier.b, "spread": found.frontier.spread},
        "predicted": [dataclasses.asdict(one) for one in found.wanted],
        "entropy_bits_per_byte": found.known_floor,
        "standard_error_bits_per_byte": found.standard_error,
        "parameters_that_differ": found.varies,
    }  # fmt: skip


def compute_optimal(found: Scaling, flops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The law's least loss at compute (n,), and the interval's ends, each (n,)."""
    value = loss(found.fit.law, *best_split(found.fit.law, flops, found.work))
    drawn = loss(found.fit.resampled, *best_split(found.fit.resampled, flops, found.work))
    low, high = np.quantile(drawn, [(1 - found.confidence) / 2, (1 + found.confidence) / 2], axis=0)
    return value, low, high

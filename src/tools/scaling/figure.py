"""A picture of a law of scaling: losses against compute with the frontier, and the law's errors."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from lm.plots import BLUE, GREY, ORANGE, STYLE, save
from tools.scaling.law import loss, on_frontier
from tools.scaling.report import Scaling, compute_optimal

MARKS = "osD^vP<>"
PALEST, DARKEST = 0.7, 0.0  # of the colour map, from the smallest model to the largest
TICKS = np.outer(10.0 ** np.arange(-3, 4), (1, 1.5, 2, 3, 4, 5, 6, 8)).ravel()


def draw_scaling(path: Path, found: Scaling) -> None:
    """Left: each model size's losses and the least that compute buys; right: what the law misses, in percent."""
    with plt.rc_context(STYLE):
        figure, (losses, errors) = plt.subplots(1, 2, figsize=(11.5, 4.8), width_ratios=(1.7, 1), layout="constrained")
        _draw_losses(losses, found)
        _draw_errors(errors, found)
        save(figure, path)


def _draw_losses(axes, found: Scaling) -> None:
    """One curve a model size, the law's frontier with its band, the text's entropy, what was asked for."""
    runs = found.runs
    sizes = np.unique(runs.parameters)
    for size, tone, mark in zip(sizes, np.linspace(PALEST, DARKEST, len(sizes)), np.resize(list(MARKS), len(sizes)),
                                strict=True):  # fmt: skip
        _draw_size(axes, found, size, plt.colormaps["viridis"](tone), mark)
    _draw_frontier(axes, found)
    _draw_wanted(axes, found)
    if found.known_floor is not None:
        axes.axhline(found.known_floor, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(
            f"the text's own entropy {found.known_floor:.4f}", (0, found.known_floor), xytext=(4, 4),
            xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(
        title=f"Loss of {len(runs.names)} runs, by parameters of the model",
        xlabel="training compute, FLOP (logarithmic)", ylabel="bits per byte (logarithmic)",
    )  # fmt: skip


def _draw_size(axes, found: Scaling, size: float, color, mark: str) -> None:
    """The runs of one model size, filled on the frontier, and the law's curve through them."""
    runs = found.runs
    here, best = runs.parameters == size, on_frontier(runs)
    tokens = np.geomspace(runs.tokens[here].min(), runs.tokens[here].max(), 50)
    flops = tokens * np.median(runs.flops[here] / runs.tokens[here])
    curve = loss(found.fit.law, size, tokens)
    axes.plot(flops, curve, color=color, linewidth=1.3)
    for keep, face in ((here & best, color), (here & ~best, "white")):
        axes.scatter(runs.flops[keep], runs.bits_per_byte[keep], 34, facecolors=face, edgecolors=[color], marker=mark,
                     linewidths=1.3, zorder=3)  # fmt: skip
    top = max(curve[0], runs.bits_per_byte[here][np.argmin(runs.flops[here])])
    axes.annotate(_short(size), (flops[0], top), xytext=(0, 8), textcoords="offset points", ha="center", color=color,
                  fontsize=9, fontweight="bold")  # fmt: skip


def _short(count: float) -> str:
    """123456 → 123k."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return f"{count:.0f}"


def _draw_frontier(axes, found: Scaling) -> None:
    """The law's least loss at each compute, with its interval, to what was asked for."""
    most = max([found.runs.flops.max(), *(one.flops for one in found.wanted)])
    flops = np.geomspace(found.runs.flops.min(), most, 100)
    value, low, high = compute_optimal(found, flops)
    axes.fill_between(flops, low, high, color=GREY, alpha=0.25, linewidth=0)
    axes.plot(flops, value, color="black", linestyle="--", linewidth=1.6)
    axes.annotate(
        "least loss\nfor its compute", (flops[30], low[30]), xytext=(-4, -6), textcoords="offset points", fontsize=9,
        fontweight="bold", ha="right", va="top",
    )  # fmt: skip


def _draw_wanted(axes, found: Scaling) -> None:
    """What was asked for, with its interval."""
    for one in found.wanted:
        bar = [[one.law.value - one.law.low], [one.law.high - one.law.value]]
        axes.errorbar(
            one.flops, one.law.value, bar, color=ORANGE, marker="*", markersize=12, capsize=4, elinewidth=1.4, zorder=4
        )
        axes.annotate(
            f"predicted\n{one.law.value:.4g}", (one.flops, one.law.high), xytext=(0, 6), textcoords="offset points",
            ha="center", va="bottom", color=ORANGE, fontsize=9, fontweight="bold",
        )  # fmt: skip


def _draw_errors(axes, found: Scaling) -> None:
    """Filled: runs under the law fitted to all; hollow with intervals: the largest, under the law without them."""
    runs = found.runs
    axes.axhline(0, color="black", linewidth=1.0)
    axes.scatter(runs.flops, 100 * (found.fitted / runs.bits_per_byte - 1), 30, color=BLUE, alpha=0.75, linewidths=0,
                 zorder=3)  # fmt: skip
    for i, predicted in found.held_back.items():
        value, low, high = (
            100 * (x / runs.bits_per_byte[i] - 1) for x in (predicted.value, predicted.low, predicted.high)
        )
        axes.errorbar(runs.flops[i], value, [[value - low], [high - value]], color=ORANGE, marker="s", markersize=6,
                      markerfacecolor="white", markeredgewidth=1.4, capsize=4, elinewidth=1.2)  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.08, y=0.3)
    for text, color, y in (
        ("● in the fit", BLUE, 0),
        (f"□ held back, {found.percent} interval", ORANGE, 1),
    ):
        if y == 0 or found.held_back:
            axes.annotate(text, (0, y), xycoords="axes fraction", xytext=(4, 6 - 12 * y), textcoords="offset points",
                          va=("bottom", "top")[y], color=color, fontsize=9, fontweight="bold")  # fmt: skip
    axes.set(
        title="What the law misses", xlabel="training compute, FLOP (logarithmic)", ylabel="predicted − measured, %"
    )

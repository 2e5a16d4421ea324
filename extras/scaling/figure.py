"""Picture of a scaling law: losses against compute with the frontier, and the errors of the law."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

from extras.scaling.law import best_split, interval, loss, on_frontier
from extras.scaling.report import Scaling
from lm.plots import BLUE, GREY, ORANGE, STYLE, save_png

MARKS = "osD^vP<>"
PALEST, DARKEST = 0.7, 0.0  # of the colour map, from the smallest model to the largest
TICKS = np.outer(10.0 ** np.arange(-3, 4), (1, 1.5, 2, 3, 4, 5, 6, 8)).ravel()
FLOP_LABEL = "training compute, FLOP (logarithmic)"
BOLD = {"fontsize": 9, "fontweight": "bold", "textcoords": "offset points"}
with_unit = EngFormatter(sep="")


def draw_scaling(path: Path, scaling: Scaling) -> None:
    """Draw the losses of each model size and the frontier (left), the errors of the law in percent (right)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((11.5, 4.8), layout="constrained")
        losses, errors = figure.subplots(1, 2, width_ratios=(1.7, 1))
        _draw_losses(losses, scaling)
        _draw_errors(errors, scaling)
        save_png(figure, path)


def _draw_losses(axes, scaling: Scaling) -> None:
    """Draw one curve for each model size, the frontier, the entropy of the text, and the predictions asked for."""
    sizes = np.unique(scaling.runs.parameters)
    for i, (size, tone) in enumerate(zip(sizes, np.linspace(PALEST, DARKEST, len(sizes)), strict=True)):
        _draw_size(axes, scaling, size, matplotlib.colormaps["viridis"](tone), MARKS[i % len(MARKS)])
    _draw_frontier(axes, scaling)
    for i, one in enumerate(scaling.wanted):
        bar = [[one.law.value - one.law.low], [one.law.high - one.law.value]]
        look = {"color": ORANGE, "marker": "*", "markersize": 12, "capsize": 4, "elinewidth": 1.4, "zorder": 4}
        axes.errorbar(one.flops, one.law.value, bar, **look)
        end, shift, side = ((one.law.high, 6, "bottom"), (one.law.low, -6, "top"))[i % 2]
        axes.annotate(f"predicted\n{one.law.value:.4g}", (one.flops, end), xytext=(0, shift), ha="center", va=side,
                      color=ORANGE, **BOLD)  # fmt: skip
    if scaling.entropy is not None:
        axes.axhline(scaling.entropy, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(
            f"entropy of the text {scaling.entropy:.4f}", (0, scaling.entropy), xytext=(4, 4),
            xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel=FLOP_LABEL, ylabel="bits per byte (logarithmic)",
             title=f"Loss of {len(scaling.runs.names)} runs, by parameters of the model")  # fmt: skip
    axes.yaxis.set_major_locator(FixedLocator(TICKS.tolist()))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_size(axes, scaling: Scaling, size: float, color, mark: str) -> None:
    """Draw the runs of one model size, filled if on the frontier, and the law's curve through them."""
    runs = scaling.runs
    here, best = runs.parameters == size, on_frontier(runs)
    tokens = np.geomspace(runs.tokens[here].min(), runs.tokens[here].max(), 50)
    flops = tokens * np.median(runs.flops[here] / runs.tokens[here])
    curve = loss(scaling.fit.law, size, tokens)
    axes.plot(flops, curve, color=color, linewidth=1.3)
    for keep, face in ((here & best, color), (here & ~best, "white")):
        axes.scatter(runs.flops[keep], runs.bits_per_byte[keep], 34, facecolors=face, edgecolors=[color], marker=mark,
                     linewidths=1.3, zorder=3)  # fmt: skip
    top = max(curve[0], runs.bits_per_byte[here][np.argmin(runs.flops[here])])
    axes.annotate(with_unit(float(f"{size:.3g}")), (flops[0], top), xytext=(0, 8), ha="center", color=color, **BOLD)


def _draw_frontier(axes, scaling: Scaling) -> None:
    """Draw the law's least loss at each compute with its interval, up to the largest prediction."""
    most = max([scaling.runs.flops.max(), *(one.flops for one in scaling.wanted)])
    flops = np.geomspace(scaling.runs.flops.min(), most, 100)
    best, drawn = (
        loss(laws, *best_split(laws, flops, scaling.work)) for laws in (scaling.fit.law, scaling.fit.resampled)
    )
    ends = [interval(best[i], drawn[:, i], scaling.confidence, len(scaling.runs.names)) for i in range(len(flops))]
    low, high = np.array([one.low for one in ends]), np.array([one.high for one in ends])
    axes.fill_between(flops, low, high, color=GREY, alpha=0.25, linewidth=0)
    axes.plot(flops, best, color="black", linestyle="--", linewidth=1.6)
    axes.annotate("least loss\nfor the compute", (flops[30], low[30]), xytext=(-4, -6), ha="right", va="top", **BOLD)


def _draw_errors(axes, scaling: Scaling) -> None:
    """Draw the errors of the law (filled), and of the law without the largest runs on those (hollow)."""
    runs = scaling.runs
    axes.axhline(0, color="black", linewidth=1.0)
    errors = 100 * (scaling.fitted / runs.bits_per_byte - 1)
    axes.scatter(runs.flops, errors, 30, color=BLUE, alpha=0.75, linewidths=0, zorder=3)
    labels = [("● in the fit", BLUE, 0)]
    for i, one in scaling.held_back.items():
        value, low, high = (100 * (x / runs.bits_per_byte[i] - 1) for x in (one.value, one.low, one.high))
        axes.errorbar(runs.flops[i], value, [[value - low], [high - value]], color=ORANGE, marker="s", markersize=6,
                      markerfacecolor="white", markeredgewidth=1.4, capsize=4, elinewidth=1.2)  # fmt: skip
        labels[1:] = [(f"□ held back, {scaling.percent} interval", ORANGE, 1)]
    for text, color, y in labels:
        axes.annotate(text, (0, y), xycoords="axes fraction", xytext=(4, 6 - 12 * y), va=("bottom", "top")[y],
                      color=color, **BOLD)  # fmt: skip
    axes.set(xscale="log", xlabel=FLOP_LABEL, ylabel="predicted − measured, %", title="Errors of the law")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.08, y=0.3)

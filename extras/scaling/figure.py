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
    """Draw a curve for each model size, the frontier, the entropy of the text, and the predictions asked for."""
    runs = scaling.runs
    sizes, best = np.unique(runs.parameters), on_frontier(runs)
    for i, (size, tone) in enumerate(zip(sizes, np.linspace(PALEST, DARKEST, len(sizes)), strict=True)):
        color, here = matplotlib.colormaps["viridis"](tone), runs.parameters == size
        tokens = np.geomspace(runs.tokens[here].min(), runs.tokens[here].max(), 50)
        flops = tokens * np.median(runs.flops[here] / runs.tokens[here])
        axes.plot(flops, loss(scaling.fit.law, size, tokens), color=color, linewidth=1.3)
        faces = [color if filled else "white" for filled in best[here]]  # filled: on the frontier
        axes.scatter(runs.flops[here], runs.bits_per_byte[here], 34, facecolors=faces, edgecolors=[color], zorder=3,
                     marker=MARKS[i % len(MARKS)], linewidths=1.3)  # fmt: skip
        axes.plot([], [], color=color, marker=MARKS[i % len(MARKS)], label=with_unit(float(f"{size:.3g}")))
    _draw_frontier(axes, scaling)
    for one in scaling.wanted:
        bar = [[one.law.value - one.law.low], [one.law.high - one.law.value]]
        axes.errorbar(one.flops, one.law.value, bar, color=ORANGE, marker="*", markersize=12, capsize=4, linestyle="",
                      zorder=4, label=f"predicted {one.law.value:.4g}")  # fmt: skip
    if scaling.entropy is not None:
        label = f"entropy of the text {scaling.entropy:.4f}"
        axes.axhline(scaling.entropy, color="black", linestyle=":", linewidth=1.2, label=label)
    axes.legend(fontsize=9, ncols=2)
    axes.set(xscale="log", yscale="log", xlabel=FLOP_LABEL, ylabel="bits per byte (logarithmic)",
             title=f"Loss of {len(runs.names)} runs, by parameters of the model")  # fmt: skip
    axes.yaxis.set_major_locator(FixedLocator(TICKS.tolist()))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_frontier(axes, scaling: Scaling) -> None:
    """Draw the law's least loss at each compute with its interval, up to the largest prediction."""
    most = max([scaling.runs.flops.max(), *(one.flops for one in scaling.wanted)])
    flops = np.geomspace(scaling.runs.flops.min(), most, 100)
    best, drawn = (
        loss(laws, *best_split(laws, flops, scaling.work)) for laws in (scaling.fit.law, scaling.fit.resampled)
    )
    ends = [interval(best[i], drawn[:, i], scaling.confidence, len(scaling.runs.names)) for i in range(len(flops))]
    axes.fill_between(flops, [one.low for one in ends], [one.high for one in ends], color=GREY, alpha=0.25, linewidth=0)
    axes.plot(flops, best, color="black", linestyle="--", linewidth=1.6, label="least loss for the compute")


def _draw_errors(axes, scaling: Scaling) -> None:
    """Draw the errors of the law (filled), and of the law without the largest runs on those (hollow)."""
    runs, held = scaling.runs, scaling.held_back
    axes.axhline(0, color="black", linewidth=1.0)
    errors = 100 * (scaling.fitted / runs.bits_per_byte - 1)
    axes.scatter(runs.flops, errors, 30, color=BLUE, alpha=0.75, linewidths=0, zorder=3, label="in the fit")
    if held:
        value, low, high = 100 * (np.array(list(held.values())).T / runs.bits_per_byte[list(held)] - 1)
        axes.errorbar(
            runs.flops[list(held)], value, [value - low, high - value], color=ORANGE, marker="s", linestyle="",
            markerfacecolor="white", capsize=4, label=f"held back, {100 * scaling.confidence:g} % interval",
        )  # fmt: skip
    axes.legend(fontsize=9, loc="upper left")
    axes.set(xscale="log", xlabel=FLOP_LABEL, ylabel="predicted − measured, %", title="Errors of the law")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.08, y=0.3)

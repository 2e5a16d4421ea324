"""judgements.png: what was kept, rejected and left undecided, and the best so far with its band of noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from evidence.judge.judgements import Judgement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path("judgements.png")
BLUE = "#0072B2"  # of the palette of Okabe and Ito
ORANGE = "#D55E00"
GREY = "#6E6E6E"
# Shapes and fillings tell the answers apart in grey.
MARKERS = {
    "keep": {"label": "kept", "s": 40, "marker": "o", "color": BLUE},
    "reject": {"label": "rejected", "s": 30, "marker": "x", "color": ORANGE},
    "undecided": {"label": "undecided", "s": 30, "marker": "^", "edgecolors": GREY, "facecolors": "none"},
}


def save_picture(judgements: Sequence[Judgement], path: Path = PICTURE) -> None:
    """Draw the judgements of the last one's text."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [judged for judged in judgements if judged.pair.text == judgements[-1].pair.text]
    with style.context({"axes.spines.top": False, "axes.spines.right": False}, after_reset=True):
        figure = Figure(figsize=(7.5, 4.0), dpi=160, layout="constrained")
        axes = figure.add_subplot(title="Judgements: kept, rejected, and the best so far")
        axes.grid(color="#E3E3E3", linewidth=0.7)
        axes.set_axisbelow(True)
        draw_base(axes, shown)
        for answer, marker in MARKERS.items():
            own = [judged for judged in shown if judged.decision.answer == answer]
            numbers = [judged.number for judged in own]
            losses = [judged.figures.candidate_mean for judged in own]
            axes.scatter(numbers, losses, zorder=3, **marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("judgement")
        axes.set_ylabel("bits per byte, mean over seeds")
        axes.legend(frameon=False, ncols=2)
        figure.savefig(path, metadata={"Software": None})


def draw_base(axes: Axes, shown: Sequence[Judgement]) -> None:
    """Draw the base of each judgement as a step, with the 95 % band of its mean over seeds."""
    edges = [shown[0].number - 0.5]
    bases = []
    lows = []
    highs = []
    for judged in shown:
        base = judged.figures.base_mean
        half = half_of_band(judged)
        edges.append(judged.number + 0.5)
        bases.append(base)
        lows.append(base - half)
        highs.append(base + half)
    axes.stairs(highs, edges, baseline=lows, fill=True, color=GREY, alpha=0.2, label="95 % band of the base")
    axes.stairs(bases, edges, baseline=None, color="black", linewidth=1.4, label="base: the best so far")


def half_of_band(judged: Judgement) -> float:
    """Return half of the 95 % interval of a base's mean over its seeds."""
    figures = judged.figures
    t = float(stdtrit(figures.base_seeds - 1, 0.975))
    return t * figures.base_sd / math.sqrt(figures.base_seeds)

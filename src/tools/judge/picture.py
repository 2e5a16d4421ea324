"""judgements.png: what was kept, rejected and left undecided, and the best so far with its band of noise."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from evidence.distributions import student_t_quantile
from lm.plots import BLUE, GREY, ORANGE, figure_of, save_png
from tools.judge.judgements import Judgement

PICTURE = Path("judgements.png")


def save_picture(judgements: Sequence[Judgement], path: Path = PICTURE) -> None:
    """Draw the judgements of the text and the length of the last one."""
    last = judgements[-1].pair
    shown = []
    for judged in judgements:
        if judged.pair.text == last.text and judged.pair.tokens == last.tokens:
            shown.append(judged)

    def draw_answer(axes: Axes, answer: str, **marker) -> None:
        own = [judged for judged in shown if judged.decision.answer == answer]
        numbers = [judged.number for judged in own]
        losses = [judged.figures.candidate_bpb for judged in own]
        axes.scatter(numbers, losses, zorder=3, **marker)

    def draw(axes: Axes) -> None:
        draw_best(axes, shown)
        # Shapes and fillings tell the answers apart in grey.
        draw_answer(axes, "keep", label="kept", s=40, marker="o", color=BLUE)
        draw_answer(axes, "reject", label="rejected", s=30, marker="x", color=ORANGE)
        draw_answer(axes, "undecided", label="undecided", s=30, marker="^", edgecolors=GREY, facecolors="none")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("judgement")
        axes.set_ylabel("bits per byte, mean over seeds")
        axes.legend(frameon=False, ncols=2)

    save_png(figure_of(draw, size=(7.5, 4.0), title="Judgements: kept, rejected, and the best so far"), path)


def draw_best(axes: Axes, shown: Sequence[Judgement]) -> None:
    """Draw the base of each judgement as a step, with its 95 % band by the pooled noise of seeds."""
    edges = [shown[0].number - 0.5]
    bases = []
    lows = []
    highs = []
    for judged in shown:
        base = judged.figures.base_bpb
        half = half_of_band(judged)
        edges.append(judged.number + 0.5)
        bases.append(base)
        lows.append(base - half)
        highs.append(base + half)
    axes.stairs(highs, edges, baseline=lows, fill=True, color=GREY, alpha=0.2, label="95 % band of the base")
    axes.stairs(bases, edges, baseline=None, color="black", linewidth=1.4, label="base: the best so far")


def half_of_band(judged: Judgement) -> float:
    """Return half of the 95 % interval of a base's mean over seeds."""
    noise = judged.decision.noise
    t = student_t_quantile(0.95, noise.degrees_of_freedom)
    return t * noise.sd / math.sqrt(judged.figures.seeds)

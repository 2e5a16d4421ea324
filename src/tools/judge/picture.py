"""judgements.png: what was kept, rejected and left undecided, and the best so far with its band of noise."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lm.plots import BLUE, GREY, ORANGE, figure_of, save_png
from tools.common.statistics import student_t_quantile
from tools.judge.judgements import Judgement

PICTURE = Path("judgements.png")


def save_picture(judgements: Sequence[Judgement], path: Path = PICTURE) -> None:
    """Draw the judgements of the text and the length of the last one."""
    last = judgements[-1].pair
    shown = [each for each in judgements if (each.pair.text, each.pair.tokens) == (last.text, last.tokens)]

    def draw(axes: Axes) -> None:
        # Shapes and fillings tell the answers apart in grey.
        draw_best(axes, shown)
        axes.scatter(*points(shown, "keep"), s=40, marker="o", color=BLUE, label="kept", zorder=3)
        axes.scatter(*points(shown, "reject"), s=30, marker="x", color=ORANGE, label="rejected", zorder=3)
        axes.scatter(
            *points(shown, "undecided"),
            s=30,
            marker="^",
            edgecolors=GREY,
            facecolors="none",
            label="undecided",
            zorder=3,
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("judgement")
        axes.set_ylabel("bits per byte, mean over seeds")
        axes.legend(frameon=False, ncols=2)

    save_png(figure_of(draw, size=(7.5, 4.0), title="Judgements: kept, rejected, and the best so far"), path)


def points(shown: Sequence[Judgement], answer: str) -> tuple[list[int], list[float]]:
    """Return the numbers and the losses of the candidates of all judgements with this answer."""
    own = [each for each in shown if each.decision.answer == answer]
    return [each.number for each in own], [each.figures.candidate_bpb for each in own]


def draw_best(axes: Axes, shown: Sequence[Judgement]) -> None:
    """Draw the base of each judgement as a step, with its 95 % band by the pooled noise of seeds."""
    edges = [shown[0].number - 0.5, *(each.number + 0.5 for each in shown)]
    bases = [each.figures.base_bpb for each in shown]
    halves = [half_of_band(each) for each in shown]
    lows = [base - half for base, half in zip(bases, halves, strict=True)]
    highs = [base + half for base, half in zip(bases, halves, strict=True)]
    axes.stairs(highs, edges, baseline=lows, fill=True, color=GREY, alpha=0.2, label="95 % band of the base")
    axes.stairs(bases, edges, baseline=None, color="black", linewidth=1.4, label="base: the best so far")


def half_of_band(judged: Judgement) -> float:
    """Return half of the 95 % interval of a base's mean over seeds."""
    noise = judged.decision.noise
    t = student_t_quantile(0.95, noise.degrees_of_freedom)
    return t * noise.sd / math.sqrt(judged.figures.seeds)

"""A picture of paired differences: one panel a comparison, one mark a document, readable in grey."""

import dataclasses
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lm.plots import BLUE, GREY, ORANGE, STYLE, save
from tools.common.statistics import Difference

NUM_NAMED = 5
ALL_MARKS, SMALLEST_MARK = 5000, 4  # areas in square points
CROWD = 2000  # documents from which marks are drawn thinner


@dataclasses.dataclass(frozen=True)
class Panel:
    """One comparison: names, bytes (D,), each document's B - A in bits per byte (D,), the whole and its confidence."""

    name_a: str
    name_b: str
    utf8_bytes: np.ndarray
    differences: np.ndarray
    whole: Difference
    percent: str


def draw_comparison(path: Path, panels: list[Panel]) -> None:
    """Each document's difference against its length; the band is the interval of the whole difference."""
    with plt.rc_context({**STYLE, "axes.axisbelow": True}):
        figure, rows = plt.subplots(
            len(panels), 1, figsize=(7.5, 0.6 + 3.7 * len(panels)), sharex=True, squeeze=False, layout="constrained"
        )
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _draw_panel(axes, panel)
        rows[-1, 0].set_xlabel("bytes of the document (logarithmic); a mark's area is its weight")
        save(figure, path)


def _draw_panel(axes, panel: Panel) -> None:
    """The whole difference with its band, the marks, and what each of them means, written beside it."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(0, color="black", linewidth=1.0)
    _draw_whole(axes, panel.whole)
    areas = np.maximum(ALL_MARKS * panel.utf8_bytes / panel.utf8_bytes.sum(), SMALLEST_MARK)
    _draw_marks(axes, panel, areas)
    _name_documents(axes, panel, areas)
    axes.margins(x=0.06, y=0.16)
    axes.set(ylabel="Δ bits per byte", title=f"{panel.name_b} − {panel.name_a}: {_in_words(panel)}")


def _draw_whole(axes, whole: Difference) -> None:
    """The difference over all documents as a dashed line in the band of its interval."""
    if whole.low is not None:
        axes.axhspan(whole.low, whole.high, color=GREY, alpha=0.25, linewidth=0)
    axes.axhline(whole.bits_per_byte, color=GREY, linestyle="--", linewidth=1.4)
    axes.annotate(
        "all", (1, whole.bits_per_byte), xycoords=("axes fraction", "data"), xytext=(5, 0),
        textcoords="offset points", va="center", color=GREY, fontweight="bold", fontsize=9, annotation_clip=False,
    )  # fmt: skip


def _draw_marks(axes, panel: Panel, areas: np.ndarray) -> None:
    """Filled where B is better, hollow where it is worse, grey where equal, and at the right edge how many of each."""
    better, worse, equal = panel.differences < 0, panel.differences > 0, panel.differences == 0
    thin = len(areas) > CROWD
    filled = {"color": BLUE, "alpha": 0.4 if thin else 0.75, "linewidths": 0}
    hollow = {"facecolors": "none", "edgecolors": ORANGE, "linewidths": 0.5 if thin else 1.2}
    for keep, sign, word, look, color, y in (
        (better, "●", "better", filled, BLUE, 0),
        (worse, "○", "worse", hollow, ORANGE, 1),
    ):
        axes.scatter(panel.utf8_bytes[keep], panel.differences[keep], areas[keep], **look)
        axes.annotate(
            f"{sign} {keep.sum():,} documents: {panel.name_b} is {word}", (1, y), xycoords="axes fraction",
            xytext=(-4, 4 - 8 * y), textcoords="offset points", ha="right", va=("bottom", "top")[y], color=color,
            fontsize=9, fontweight="bold",
        )  # fmt: skip
    if equal.any():
        axes.scatter(
            panel.utf8_bytes[equal], panel.differences[equal], areas[equal], color=GREY, alpha=0.5, linewidths=0
        )
        axes.annotate(
            f"● {equal.sum():,} documents: equal", (0, 1), xycoords="axes fraction", xytext=(4, -4),
            textcoords="offset points", va="top", color=GREY, fontsize=9, fontweight="bold",
        )  # fmt: skip


def _name_documents(axes, panel: Panel, areas: np.ndarray) -> None:
    """Write the number of the documents whose bits changed most beside their marks, away from one another."""
    bits = np.abs(panel.differences * panel.utf8_bytes)
    most = np.argsort(-bits, kind="stable")[:NUM_NAMED]
    most = most[bits[most] > 0]
    for rank, document in enumerate(most[np.argsort(panel.utf8_bytes[most], kind="stable")]):
        gap, above = math.sqrt(areas[document] / math.pi) + 2, rank % 2
        axes.annotate(
            str(document), (panel.utf8_bytes[document], panel.differences[document]), fontsize=8,
            xytext=(0, gap if above else -gap), textcoords="offset points", ha="center", va=("top", "bottom")[above],
        )  # fmt: skip


def _in_words(panel: Panel) -> str:
    """The whole difference and its interval."""
    whole = panel.whole
    if whole.low is None:
        return f"{whole.bits_per_byte:+.4f}, too few documents for an interval"
    return f"{whole.bits_per_byte:+.4f} ({panel.percent}: {whole.low:+.4f} to {whole.high:+.4f})"

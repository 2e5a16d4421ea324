"""Picture of paired differences: one panel for each comparison, one mark for each document; readable in grey."""

import functools
import math
from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lm.plots import BLUE, GREY, ORANGE, figure_of, save_png
from tools.compare.parting import partings
from tools.compare.runs import Comparison

NUM_NAMED = 5
ALL_MARKS, SMALLEST_MARK = 5000, 4  # areas in square points
CROWD = 2000  # documents from which marks are drawn thinner
BOLD = {"fontsize": 9, "fontweight": "bold", "annotation_clip": False, "textcoords": "offset points"}


def draw_comparisons(path: Path, comparisons: list[Comparison], percent: str) -> None:
    """Draw each document's difference against its length; the band is the interval of the whole difference."""
    panels = [functools.partial(_draw_panel, comparison=comparison, percent=percent) for comparison in comparisons]
    figure = figure_of(*panels, size=(7.5, 0.6 + 3.7 * len(panels)))
    figure.axes[-1].set_xlabel("document length in bytes (logarithmic); area of a mark: weight of the document")
    save_png(figure, path)


def _draw_panel(axes, comparison: Comparison, percent: str) -> None:
    """Draw the whole difference with its band, and the documents."""
    a, b, whole = comparison.a, comparison.b, comparison.documents
    sizes = a.runs[0].utf8_bytes
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(0, color="black", linewidth=1.0)
    axes.axhline(whole.value, color=GREY, linestyle="--", linewidth=1.4)
    words = "too few documents for an interval"
    if whole.low is not None:
        axes.axhspan(whole.low, whole.high, color=GREY, alpha=0.25, linewidth=0)
        words = f"{percent} interval {whole.low:+.4f} to {whole.high:+.4f}"
    axes.annotate("all", (1, whole.value), xycoords=("axes fraction", "data"), xytext=(5, 0), va="center",
                  color=GREY, **BOLD)  # fmt: skip
    _draw_documents(axes, sizes, comparison.bits / sizes, b.name)
    lines = [f"training of {each.a} and {each.b}: {each.until}" for each in partings(a, b)]
    if lines:
        axes.annotate("\n".join(lines), (0, 0), xycoords="axes fraction", xytext=(4, 4), color=GREY, **BOLD)
    axes.margins(x=0.06, y=0.16)
    axes.set(ylabel="Δ bits per byte", title=f"{b.name} − {a.name}: {whole.value:+.4f} ({words})")


def _draw_documents(axes, sizes: np.ndarray, differences: np.ndarray, name: str) -> None:
    """Draw a mark for each document: filled if `name` is better, hollow if worse, grey if equal."""
    areas, thin = np.maximum(ALL_MARKS * sizes / sizes.sum(), SMALLEST_MARK), len(sizes) > CROWD
    filled, hollow = {"alpha": 0.4 if thin else 0.75, "linewidths": 0}, {"linewidths": 0.5 if thin else 1.2}
    for keep, label, look, color, x, y in (
        (differences < 0, f"● {name} is better", {"color": BLUE, **filled}, BLUE, 1, 0),
        (differences > 0, f"○ {name} is worse", {"facecolors": "none", "edgecolors": ORANGE, **hollow}, ORANGE, 1, 1),
        (differences == 0, "● equal", {"color": GREY, **filled}, GREY, 0, 1),
    ):
        if keep.any() or x:
            axes.scatter(sizes[keep], differences[keep], areas[keep], **look)
            axes.annotate(
                f"{label}: {keep.sum():,} documents", (x, y), xycoords="axes fraction", xytext=(4 - 8 * x, 4 - 8 * y),
                ha=("left", "right")[x], va=("bottom", "top")[y], color=color, **BOLD,
            )  # fmt: skip
    # Number the documents that changed most, alternately above and below their marks.
    bits = np.abs(differences * sizes)
    most = [i for i in np.argsort(-bits, kind="stable")[:NUM_NAMED] if bits[i] > 0]
    for rank, document in enumerate(sorted(most, key=lambda i: sizes[i])):
        gap, above = math.sqrt(areas[document] / math.pi) + 2, rank % 2
        axes.annotate(
            str(document), (sizes[document], differences[document]), fontsize=8, xytext=(0, gap if above else -gap),
            textcoords="offset points", ha="center", va=("top", "bottom")[above],
        )  # fmt: skip

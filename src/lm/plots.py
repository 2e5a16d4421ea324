"""Draw every picture of a run; equal data give equal bytes, and each is readable in grey.

`figure_of` arranges and styles the axes of the `draw_*` functions. Curves are columns by name, {} if they have no rows.
"""

import csv
import functools
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FormatStrFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from lm.core.errors import IntegrityError
from lm.core.files import atomic_write

# The palette of Okabe and Ito; lightness and line style tell the colours apart in grey.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREY = "#6E6E6E"
STYLE: dict[Any, Any] = {
    "figure.dpi": 160,
    "font.size": 10,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
}
styled = style.context(STYLE, after_reset=True)  # the user's matplotlibrc changes no picture
SMOOTHED_FRACTION = 0.05  # of a curve's points, averaged around each point
NOT_NUMBERS = ("checkpoint_digest",)
WHY_A_GAP = (
    "Validation documents are not in the training text. Training windows come from documents that the\n"
    "run may have read in part before, so their loss may be lower without overfitting."
)


def read_csv(path: Path) -> dict[str, list[float]]:
    """Read a CSV file of numbers; return its columns by name, or {} if it is empty.

    Raise IntegrityError if the file is missing or damaged.
    """
    try:
        return parse_csv(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing; run `dvc repro` to make it") from None
    except (TypeError, ValueError, csv.Error) as error:
        raise IntegrityError(f"{path}: not a table of numbers ({error}); run `dvc repro -f` to make it again") from None


def parse_csv(text: str) -> dict[str, list[float]]:
    """Return the columns of a CSV text. Raise TypeError, ValueError or csv.Error if it is damaged."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = list(reader)
    if reader.fieldnames is None:
        raise ValueError("it is empty")
    if not rows:
        return {}
    columns = {}
    for name in rows[0]:
        if name not in NOT_NUMBERS:
            columns[name] = [float(row[name]) for row in rows]
    return columns


@styled
def figure_of(
    *draw_functions: Callable[[Axes], None],
    size: tuple[float, float],
    heights: tuple[float, ...] | None = None,
    title: str = "",
    note: str = "",
) -> Figure:
    """Return a figure of `size` in inches: one panel per function on a common x axis, of relative `heights`.

    title: above the panels. note: small, below them.
    """
    figure = Figure(size, layout="constrained")
    grid = figure.subplots(len(draw_functions), 1, sharex=True, squeeze=False, height_ratios=heights)
    panels = grid[:, 0]
    for draw, axes in zip(draw_functions, panels, strict=True):
        draw(axes)
        axes.label_outer()  # only the lowest panel keeps its x label
    if title:
        panels[0].set_title(title)
    if note:
        figure.supxlabel(note, fontsize=8, color=GREY)
    figure.align_ylabels()
    return figure


@styled
def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG without date or version."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None}, facecolor="white")
    return file.getvalue()


def save_png(figure: Figure, path: Path) -> None:
    with atomic_write(path) as file:
        file.write(to_png(figure))


def smooth(values: list[float], fraction: float = SMOOTHED_FRACTION) -> np.ndarray:
    """Return the mean around each of `values` (N,): over fewer values at the steep beginning, over one side at the end.

    If the window shrank to one value at the end, the curve and its label would show the noise of that value.
    """
    positions = np.arange(len(values))
    half = np.minimum(positions, round(len(values) * fraction / 2))
    begins = positions - half
    ends = np.minimum(positions + half + 1, len(values))
    sums_before = np.concatenate([[0], np.cumsum(values)])
    return (sums_before[ends] - sums_before[begins]) / (ends - begins)


def scale_log(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers even where it spans less than a decade."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    spans_a_decade = high / low >= 10
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if spans_a_decade else MaxNLocator(6))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(NullLocator())


def training_figure(train: dict, validation: dict, committed: tuple[dict, dict] = ({}, {})) -> Figure:
    """Return both losses against tokens seen, with what they show as the title.

    committed: both curves of the committed run, which become thin grey lines.
    """
    draw = functools.partial(draw_losses, train=train, validation=validation, committed=committed)
    return figure_of(draw, size=(7.5, 4.2), title=training_title(validation), note=WHY_A_GAP)


def training_title(validation: dict) -> str:
    """Return a title that says how far the validation losses fall, or where they were lowest."""
    losses = validation.get("val_loss", [])
    if len(losses) < 2:
        return "Loss during training"
    best = min(losses)
    if best == losses[-1]:
        return f"The validation loss falls to {best:.2f} nats per token"
    tokens = EngFormatter(sep="").format_data(validation["tokens"][losses.index(best)])
    return f"The validation loss is lowest after {tokens} tokens: {best:.2f} nats per token"


def optimization_figure(train: dict) -> Figure:
    """Return the learning rate and the gradient norm against tokens seen."""
    draw_above = functools.partial(draw_learning_rate, train=train)
    draw_below = functools.partial(draw_gradient_norm, train=train)
    return figure_of(draw_above, draw_below, size=(7.5, 3.9), title="Learning rate and gradient norm")


def draw_losses(axes: Axes, train: dict, validation: dict, committed: tuple[dict, dict] = ({}, {})) -> None:
    """Draw both losses against tokens; the legend has the numbers that metrics/train.json has."""
    # The committed run, below the others.
    committed_train, committed_validation = committed
    if committed_train:
        axes.plot(committed_train["tokens"], smooth(committed_train["train_loss"]), color=GREY, linewidth=0.9)
    if committed_validation:
        x, y = committed_validation["tokens"], committed_validation["val_loss"]
        axes.plot(x, y, color=GREY, linestyle="--", linewidth=0.9)

    # This run.
    if validation:
        losses = validation["val_loss"]
        lowest = "" if min(losses) == losses[-1] else "lowest "
        label = f"validation: {lowest}{min(losses):.4f}"
        axes.plot(validation["tokens"], losses, color=ORANGE, linestyle="--", marker="o", markersize=4, label=label)
    if train:
        losses = train["train_loss"]
        _draw_smoothed(axes, train["tokens"], losses, BLUE, f"training: {losses[-1]:.4f}")
    if train or validation:
        axes.legend(loc="upper right")
    axes.margins(y=0.1)
    scale_log(axes)
    axes.set(xlabel="tokens seen", ylabel="nats per token (log scale)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_smoothed(axes: Axes, x, y: list[float], color: str, label: str = "") -> None:
    """Draw a curve of many points, faint, and its running mean, which the legend names."""
    axes.plot(x, y, color=color, alpha=0.4, linewidth=0.9)
    axes.plot(x, smooth(y), color=color, label=label)


def draw_learning_rate(axes: Axes, train: dict) -> None:
    tokens = train.get("tokens", [])
    rates = train.get("lr", [])
    highest = max(rates, default=1)
    axes.plot(tokens, rates, color=GREY)
    axes.set(xlabel="tokens seen", ylabel="learning rate", ylim=(0, 1.08 * highest))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_gradient_norm(axes: Axes, train: dict) -> None:
    """Draw the gradient norm before clipping, raw and smoothed, against tokens seen."""
    if train:
        _draw_smoothed(axes, train["tokens"], train["grad_norm"], GREY)
    scale_log(axes)
    axes.set(xlabel="tokens seen", ylabel="gradient norm\n(log scale)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_loss_by_position(axes: Axes, curve: dict) -> None:
    """Draw the mean loss against the number of tokens of context, with the first and the last value."""
    x = curve["context_tokens"]
    y = curve["nats_per_token"]
    axes.plot(x, y, color=BLUE, marker="o", markersize=5)
    axes.set_xscale("log", base=2)

    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.minorticks_off()
    axes.margins(y=0.15)
    axes.set(xlabel="tokens of context, at most", ylabel="nats per token")
    for end in (0, -1):
        place = (x[end], y[end])
        axes.annotate(f"{y[end]:.2f}", place, (4, 6), textcoords="offset points", color=BLUE, fontweight="bold")


def draw_documents(axes: Axes, documents: dict[str, np.ndarray], clean_below: float | None = None) -> None:
    """Draw each document's bits per byte against its contaminated fraction, its bytes as area, if it has text.

    `documents` has the columns contaminated_fraction, nats and utf8_bytes, each (D,); a line marks `clean_below`.
    """
    kept = documents["utf8_bytes"] > 0
    fractions = documents["contaminated_fraction"][kept]
    bits = documents["nats"][kept] / math.log(2)
    utf8_bytes = documents["utf8_bytes"][kept]
    bits_per_byte = bits / utf8_bytes
    area_of_longest = 55 * cast(Figure, axes.figure).get_figwidth()
    areas = 6 + area_of_longest * utf8_bytes / utf8_bytes.max()

    def draw_group(name: str, is_in_group: np.ndarray, color: str, marker: str) -> None:
        """Draw some of the documents (n,) bool, with their number and mean."""
        if not is_in_group.any():
            return
        mean = bits[is_in_group].sum() / utf8_bytes[is_in_group].sum()
        axes.scatter(
            fractions[is_in_group],
            bits_per_byte[is_in_group],
            areas[is_in_group],
            color,
            marker=marker,
            alpha=0.45,
            edgecolors=color,
            linewidths=0.8,
            label=f"{name}: {is_in_group.sum()} documents, {mean:.3f} bits per byte",
        )

    is_clean = np.ones(len(fractions), bool) if clean_below is None else fractions < clean_below
    draw_group("clean", is_clean, BLUE, "o")
    draw_group("not clean", ~is_clean, ORANGE, "s")
    if clean_below is not None:
        axes.axvline(clean_below, color=GREY, linestyle="--", linewidth=1.2)
        legend = axes.legend(loc="lower left", fontsize=9)
        for handle in legend.legend_handles:
            cast(PathCollection, handle).set_sizes([40])
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    contaminated = "contaminated fraction: tokens in 13-grams that are also in the training text"
    axes.set(xlabel=contaminated, ylabel="bits per byte")
    end = max(0.05, fractions.max(), clean_below or 0)
    axes.set(xlim=(-0.04 * end, 1.06 * end), ylim=(0, 1.12 * bits_per_byte.max()))

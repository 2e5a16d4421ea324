"""Pictures drawn from the CSV files that lie beside them: deterministic PNG, readable in grey."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter, FormatStrFormatter, LogLocator, NullFormatter, PercentFormatter

from lm.core.files import atomic_write

# Okabe and Ito's palette, told apart by lightness and line style as well.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6E6E6E"
STYLE = {
    "figure.dpi": 110,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "lines.linewidth": 1.8,
}


def read_csv(path: Path) -> dict[str, list[float]]:
    """Columns of numbers by name."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
        return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else [])}


def save(figure, path: Path) -> None:
    """Write a PNG without date or version, so that equal data give equal bytes."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None}, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def label_end(axes, x: list[float], y: list[float], text: str, color: str, shift: int = 0) -> None:
    """Write a curve's name beside its last point, `shift` points above it, instead of into a legend."""
    axes.annotate(
        text, (x[-1], y[-1]), xytext=(6, shift), textcoords="offset points", va="center", color=color,
        annotation_clip=False, fontweight="bold", fontsize=9,
    )  # fmt: skip


def scale_in_octaves(axes) -> None:
    """A logarithmic y axis with plain numbers at 1, 2, 5 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_training(plots: Path, floor: float | None = None) -> None:
    """training.csv and validation.csv → training.png: losses, learning rate, gradient norm by tokens seen.

    `floor`, in nats a token, is the entropy of the validation text where it is known.
    """
    train, validation = read_csv(plots / "training.csv"), read_csv(plots / "validation.csv")
    with plt.rc_context(STYLE):
        figure, (losses, rates, norms) = plt.subplots(
            3, 1, figsize=(7.5, 7.5), sharex=True, height_ratios=(3, 1, 1), layout="constrained"
        )
        _draw_losses(losses, train, validation, floor)
        if train:
            rates.plot(train["tokens"], train["lr"], color=GREY)
            norms.plot(train["tokens"], train["grad_norm"], color=GREY, linewidth=1.0)
        scale_in_octaves(norms)
        rates.set(ylabel="learning rate", ylim=(0, None))
        norms.set(ylabel="gradient norm", xlabel="tokens seen")
        norms.xaxis.set_major_formatter(EngFormatter(sep=""))
        save(figure, plots / "training.png")


def _draw_losses(axes, train: dict, validation: dict, floor: float | None) -> None:
    """The two curves, named at their ends, the higher one above; and the floor where there is one."""
    ends = [curve[name][-1] for curve, name in ((train, "train_loss"), (validation, "val_loss")) if curve]
    for curve, name, color, look in (
        (train, "train_loss", BLUE, {"linewidth": 1.2}),
        (validation, "val_loss", ORANGE, {"linestyle": "--", "marker": "o", "markersize": 4}),
    ):
        if curve:
            x, y = curve["tokens"], curve[name]
            axes.plot(x, y, color=color, **look)
            shift = 14 if y[-1] == max(ends) else -14
            label_end(axes, x, y, f"{'training' if curve is train else 'validation'}\n{y[-1]:.3f}", color, shift)
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle=":")
        axes.annotate(
            f"entropy of the text {floor:.3f}", (0, floor), xytext=(2, 4), textcoords="offset points", color=GREY
        )
    scale_in_octaves(axes)
    axes.set(title="Loss while training", ylabel="nats per token (logarithmic)")


def draw_overlap(path: Path, documents: dict) -> None:
    """Each document's bits per byte against the share of it that stands in the training text; area by bytes."""
    share, size = documents["shared_share"], documents["utf8_bytes"]
    bits = documents["nats"] / np.log(2) / size
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        axes.scatter(share, bits, 8 + 400 * size / size.max(), BLUE, alpha=0.45, edgecolors=BLUE, linewidths=0.8)
        axes.set(
            title="What validation documents share with the training text",
            xlabel="share of a document's tokens that are part of 13 equal ones in training (area: its bytes)",
            ylabel="bits per byte",
            xlim=(-0.03, 1.03),
            ylim=(0, 1.1 * bits.max()),
        )
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        save(figure, path)


def draw_loss_by_position(path: Path, rows: list[tuple[int, float, int]]) -> None:
    """Mean loss against the number of real tokens to the left; rows as `score.loss_by_position` gives them."""
    x, y = [row[0] for row in rows], [row[1] for row in rows]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
        axes.plot(x, y, color=BLUE, marker="o", markersize=5)
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(x, [str(value) for value in x])
        axes.minorticks_off()
        axes.set(
            title="Loss by position in the window",
            xlabel="tokens of context, up to",
            ylabel="nats per token",
            ylim=(0, 1.1 * max(y)),
        )
        label_end(axes, x, y, f"{y[-1]:.2f}", BLUE)
        save(figure, path)

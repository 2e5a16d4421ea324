"""Draw onto given axes what only the report has: lengths, parameters and FLOP by part, where the loss is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, PercentFormatter

from lm.plots import BLUE, GREY, ORANGE
from lm.tokens.tokenfile import BLOCK_TOKENS, blocks_of, map_ids

LONGEST_TOKEN = 20  # bytes; longer tokens are counted with these
PERCENT = PercentFormatter(1, decimals=0)


def scan(path: Path, meta: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each id occurs (V,) and each document's tokens (D,), reading a token file block by block."""
    tokenizer = meta["tokenizer"]
    counts, ends = np.zeros(tokenizer["vocab_size"], np.int64), []
    for start, block in blocks_of(map_ids(path, meta), BLOCK_TOKENS):
        counts += np.bincount(block, minlength=len(counts))
        ends.append(start + np.flatnonzero(block == tokenizer["eot_id"]))
    return counts, np.diff(np.concatenate(ends), prepend=-1)


def write_key(axes: Axes, row: int, text: str, color: str) -> None:
    """Write a coloured line of text above the axes instead of a legend; row 0 is the lowest."""
    axes.annotate(
        text, (0, 1), xycoords="axes fraction", xytext=(0, 5 + 13 * row), textcoords="offset points", color=color,
        fontweight="bold", fontsize=9, annotation_clip=False,
    )  # fmt: skip


def count(value: float, unit: str = "", places: int = 1) -> str:
    """Return a number of few digits, such as 1.2 k or 34.5 M."""
    return EngFormatter(unit, places=places if value >= 1000 else 0)(value).strip()


def draw_token_lengths(axes: Axes, text_counts: np.ndarray, token_bytes: np.ndarray) -> None:
    """Draw the bytes of tokens, in a text with these counts (V,) of each id and in the vocabulary, both in percent."""
    kept = token_bytes > 0  # special tokens have no text
    sizes, lengths = np.minimum(token_bytes[kept], LONGEST_TOKEN), np.arange(1, LONGEST_TOKEN + 1)
    in_text = np.bincount(sizes, weights=text_counts[kept], minlength=LONGEST_TOKEN + 1)[1:]
    in_vocabulary = np.bincount(sizes, minlength=LONGEST_TOKEN + 1)[1:]
    axes.bar(lengths, in_text / max(1, in_text.sum()), width=0.8, color=BLUE)
    axes.plot(lengths, in_vocabulary / in_vocabulary.sum(), color=ORANGE, linestyle="--", marker="o", markersize=3.5)
    write_key(axes, 1, "■ percent of the tokens in the training text", BLUE)
    write_key(axes, 0, "● percent of the entries of the vocabulary", ORANGE)
    axes.set(xlabel=f"bytes of a token ({LONGEST_TOKEN}: or more)", xticks=[1, 5, 10, 15, 20])
    axes.yaxis.set_major_formatter(PERCENT)


def draw_document_lengths(axes: Axes, lengths: dict[str, np.ndarray]) -> None:
    """Draw the tokens of documents by split on a log scale, in percent of each split's documents."""
    lengths = {name: np.maximum(values, 1) for name, values in lengths.items()}
    every = np.concatenate(list(lengths.values()))
    bins = np.geomspace(every.min(), every.max() * 1.001 + 1, 30)
    looks = {
        "train": ("■", {"color": BLUE, "histtype": "stepfilled", "alpha": 0.55}),
        "validation": ("□", {"color": ORANGE, "histtype": "step", "linestyle": "--", "linewidth": 1.8}),
    }
    for row, (name, values) in enumerate(reversed(lengths.items())):
        mark, look = looks[name]
        axes.hist(values, bins, weights=np.full(len(values), 1 / len(values)), **look)
        text = f"{mark} {name}: {len(values):,} documents, median {np.median(values):,.0f}"
        write_key(axes, row, text, look["color"])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.minorticks_off()
    axes.set(xlabel="tokens of a document (log scale)", ylabel="percent of the documents")
    axes.yaxis.set_major_formatter(PERCENT)


def draw_model(axes: Axes, parameters: dict[str, int], flops: dict[str, float]) -> None:
    """Draw each part of the model in percent of its parameters and of the FLOP per training token."""
    rows = (
        ("embedding,\nhead", "embedding", "head"), ("attention", "attention", "attention"),
        ("scores", None, "scores"), ("MLP", "mlp", "mlp"), ("norms", "norms", None),
    )  # fmt: skip
    looks: tuple[dict, dict] = {"color": BLUE}, {"facecolor": "white", "edgecolor": ORANGE, "hatch": "/////"}
    for y, (_, *names) in enumerate(rows):
        for name, values, shift, look in zip(names, (parameters, flops), (-0.2, 0.2), looks, strict=True):
            if name is not None:
                fraction = values[name] / values["total"]
                axes.barh(y + shift, fraction, 0.36, **look)
                text = f" {count(values[name])}, {fraction:.{0 if fraction >= 0.01 else 1}%}"
                axes.text(fraction, y + shift, text, va="center", fontsize=8.5)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.3)
    axes.set(xlim=(0, None), xlabel="percent of the total")
    axes.xaxis.set_major_formatter(PERCENT)
    write_key(axes, 1, f"■ {count(parameters['total'], places=2)} parameters", BLUE)
    write_key(axes, 0, f"▨ {count(flops['total'], 'FLOP', places=2)} per training token", ORANGE)


def draw_calibration(axes: Axes, calibration: dict) -> None:
    """Draw how often the most likely token was right against its probability (a reliability diagram), with counts."""
    bins = calibration["bins"]
    starts, widths = [each["from"] for each in bins], [each["to"] - each["from"] for each in bins]
    counts = [each["tokens"] / calibration["tokens"] for each in bins]
    axes.bar(starts, counts, widths, align="edge", color="#D9D9D9", edgecolor="white")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    x, y = ([each[name] for each in bins] for name in ("probability", "accuracy"))
    axes.plot(x, y, color=BLUE, marker="o", markersize=5)
    error = calibration["expected_calibration_error"]
    write_key(axes, 2, f"● how often it was right; ECE {error:.1%}", BLUE)
    write_key(axes, 1, "┄ perfect calibration", GREY)
    write_key(axes, 0, f"■ fraction of the {count(calibration['tokens'])} predictions", "#8A8A8A")
    axes.set(xlabel="probability of the most likely token", ylabel="fraction", xlim=(0, 1), ylim=(0, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PERCENT)


def draw_loss_by_frequency(axes: Axes, rows: list[dict]) -> None:
    """Draw the mean loss of tokens by how often training has them, with their fraction of the total loss."""
    names = [count(row["count_from"], places=0) if row["count_from"] else "never" for row in rows]
    _draw_rows(axes, names, [row["nats_per_token"] for row in rows])
    for x, row in enumerate(rows):
        fraction = row["loss_fraction"]
        _write_above(axes, x, row["nats_per_token"], f"{fraction:.0%}" if fraction >= 0.01 else "<1%", ORANGE)
    write_key(axes, 1, "■ nats per token", BLUE)
    write_key(axes, 0, "% of the total loss", ORANGE)
    axes.set(xlabel="occurrences in the training text, from", ylabel="nats per token")


def draw_loss_by_length(axes: Axes, rows: list[dict]) -> None:
    """Draw bits per byte by the length of the document, with standard errors and the number of documents."""
    values, errors = ([row[name] or 0 for row in rows] for name in ("bits_per_byte", "bits_per_byte_se"))
    _draw_rows(axes, [count(row["tokens_from"], places=0) for row in rows], values)
    axes.errorbar(range(len(rows)), values, errors, fmt="none", ecolor="black", capsize=3, linewidth=1)
    for x, (row, error) in enumerate(zip(rows, errors, strict=True)):
        _write_above(axes, x, row["bits_per_byte"] + error, f"{row['documents']:,}", ORANGE)
    write_key(axes, 1, "■ bits per byte ± standard error", BLUE)
    write_key(axes, 0, "number of documents", ORANGE)
    axes.set(xlabel="tokens of the document, from", ylabel="bits per byte")


def _draw_rows(axes: Axes, names: list[str], values: Sequence[float]) -> None:
    """Draw a bar for each row."""
    axes.bar(range(len(names)), values, 0.75, color=BLUE)
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)


def _write_above(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """Write a figure above a bar."""
    axes.annotate(text, (x, y), (0, 3), textcoords="offset points", ha="center", fontsize=9, color=color)

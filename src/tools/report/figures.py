"""Pictures of the report: numbers in, SVG out, as wide as a phone's column so that its letters stay readable.

Equal data give equal bytes. Curves are what `figure.read_csv` returns: lists by column name, {} without rows.
"""

import io

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter, LogLocator, PercentFormatter

from lm.plots import BLUE, GREY, ORANGE, STYLE, label_end, scale_in_octaves

NARROW = {**STYLE, "axes.axisbelow": True, "svg.hashsalt": "report", "hatch.linewidth": 0.6}
WIDTH = 4.6  # inches
SMOOTHED_SHARE = 0.05  # of a curve's points, averaged around each of them
LONGEST_TOKEN = 20  # bytes; longer ones are counted with it
CROWD = 2000  # marks from which a cloud is stored as pixels


def to_svg(figure) -> bytes:
    """The figure as SVG without date."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    return file.getvalue()


def smooth(values, share: float = SMOOTHED_SHARE) -> np.ndarray:
    """Means (N,) over windows around each point, narrower towards both ends, where the values themselves stand."""
    values = np.asarray(values, float)
    i = np.arange(len(values))
    half = np.minimum(np.minimum(i, i[::-1]), round(len(values) * share / 2))
    sums = np.concatenate([[0], np.cumsum(values)])
    return (sums[i + half + 1] - sums[i - half]) / (2 * half + 1)


def time_unit(longest_s: float) -> tuple[str, float]:
    """A unit in which a run's length is a number of few digits, and its seconds."""
    if longest_s < 600:
        return "seconds", 1
    return ("minutes", 60) if longest_s < 4 * 3600 else ("hours", 3600)


def write_key(axes, row: int, text: str, color: str) -> None:
    """A coloured line of words above the axes, instead of a legend; row 0 is the lowest."""
    axes.annotate(
        text, (0, 1), xycoords="axes fraction", xytext=(0, 5 + 13 * row), textcoords="offset points", color=color,
        fontweight="bold", fontsize=9, annotation_clip=False,
    )  # fmt: skip


def from_zero(axes, values) -> None:
    """Let the y axis begin at zero and end above the highest value."""
    axes.set_ylim(0, 1.08 * max(values) or 1)


def count(value: float, unit: str = "", places: int = 1) -> str:
    """1.2 k, 34.5 M: a number of few digits."""
    return EngFormatter(unit, places=places if value >= 1000 else 0)(value).strip()


def draw_loss_by_tokens(train: dict, validation: dict, floor: float | None) -> bytes:
    """Training and validation loss against tokens seen; `floor` in nats a token where it is known."""
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.5), layout="constrained")
        _draw_losses(axes, train, validation, floor, lambda tokens: tokens)
        axes.set_xlabel("tokens seen")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        return to_svg(figure)


def draw_loss_by_time(train: dict, validation: dict, timing: dict, floor: float | None) -> bytes:
    """The same against the time that training has taken; between two validations it passes evenly."""
    unit, unit_s = time_unit(timing["seconds"][-1])
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.5), layout="constrained")
        to_time = lambda tokens: np.interp(tokens, timing["tokens"], timing["seconds"]) / unit_s  # noqa: E731
        _draw_losses(axes, train, validation, floor, to_time)
        axes.set_xlabel(f"{unit} of training")
        return to_svg(figure)


def _draw_losses(axes, train: dict, validation: dict, floor: float | None, to_x) -> None:
    """Raw and smoothed training loss, validation loss, floor; names at the ends, the higher one above."""
    ends = [curve[name][-1] for curve, name in ((train, "train_loss"), (validation, "val_loss")) if curve]
    if train:
        x, raw = to_x(train["tokens"]), train["train_loss"]
        mean = smooth(raw)
        axes.plot(x, raw, color=BLUE, alpha=0.35, linewidth=0.9)
        axes.plot(x, mean, color=BLUE, linewidth=1.6)
        label_end(axes, x, mean, f"training\n{raw[-1]:.3f}", BLUE, 13 if raw[-1] == max(ends) else -13)
    if validation:
        x, y = to_x(validation["tokens"]), validation["val_loss"]
        axes.plot(x, y, color=ORANGE, linestyle="--", marker="o", markersize=3.5)
        label_end(axes, x, y, f"validation\n{y[-1]:.3f}", ORANGE, 13 if y[-1] == max(ends) else -13)
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle=":")
        axes.annotate(
            f"entropy of the text {floor:.3f}", (0.02, floor), xycoords=("axes fraction", "data"), xytext=(0, 4),
            textcoords="offset points", color=GREY, fontsize=9,
        )  # fmt: skip
    axes.margins(y=0.12)  # the lower name needs room
    _scale_loss(axes)
    axes.set_ylabel("nats per token (logarithmic)")


def _scale_loss(axes) -> None:
    """Logarithmic, with more ticks where the axis is less than a decade."""
    scale_in_octaves(axes)
    low, high = axes.get_ylim()
    if high / low < 10:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)))


def draw_rates(train: dict) -> bytes:
    """Learning rate and gradient norm against tokens seen, one above the other."""
    with plt.rc_context(NARROW):
        figure, (rates, norms) = plt.subplots(2, 1, figsize=(WIDTH, 3.8), sharex=True, layout="constrained")
        rates.plot(train["tokens"], train["lr"], color=BLUE)
        norms.plot(train["tokens"], train["grad_norm"], color=GREY, alpha=0.45, linewidth=0.9)
        norms.plot(train["tokens"], smooth(train["grad_norm"]), color=GREY, linewidth=1.6)
        _scale_loss(norms)
        from_zero(rates, train["lr"])
        rates.set_ylabel("learning rate")
        norms.set(ylabel="gradient norm", xlabel="tokens seen")
        norms.xaxis.set_major_formatter(EngFormatter(sep=""))
        return to_svg(figure)


def draw_position(curve: dict) -> bytes:
    """Mean loss against the number of real tokens to the left, in octaves."""
    x, y = curve["context_tokens"], curve["nats_per_token"]
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")
        axes.plot(x, y, color=BLUE, marker="o", markersize=4.5)
        axes.set_xscale("log", base=2)
        shown = x[(len(x) - 1) % 2 :: 2] if len(x) > 8 else x
        axes.set_xticks(shown, [f"{value:,.0f}" for value in shown])
        axes.minorticks_off()
        axes.set(xlabel="tokens of context, up to", ylabel="nats per token")
        from_zero(axes, y)
        label_end(axes, x, y, f"{y[-1]:.2f}", BLUE)
        return to_svg(figure)


def draw_token_lengths(text_counts: np.ndarray, token_bytes: np.ndarray) -> bytes:
    """Bytes a token: how often in a text, by counts (V,) of each id, and in the vocabulary; (V,) bytes of each."""
    kept = token_bytes > 0  # special tokens stand for no text
    sizes = np.minimum(token_bytes[kept], LONGEST_TOKEN)
    lengths = np.arange(1, LONGEST_TOKEN + 1)
    in_text = np.bincount(sizes, weights=text_counts[kept], minlength=LONGEST_TOKEN + 1)[1:]
    in_vocabulary = np.bincount(sizes, minlength=LONGEST_TOKEN + 1)[1:]
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")
        axes.bar(lengths, in_text / max(1, in_text.sum()), width=0.8, color=BLUE)
        axes.plot(
            lengths, in_vocabulary / in_vocabulary.sum(), color=ORANGE, linestyle="--", marker="o", markersize=3.5
        )
        write_key(axes, 1, "■ of the tokens in the training text", BLUE)
        write_key(axes, 0, "● of the entries of the vocabulary", ORANGE)
        axes.set(xlabel=f"bytes of a token ({LONGEST_TOKEN}: and more)", ylabel="share")
        axes.set_xticks([1, 5, 10, 15, 20])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        return to_svg(figure)


def draw_document_lengths(lengths: dict[str, np.ndarray]) -> bytes:
    """Tokens a document by split, on common logarithmic bins, as shares of each split's documents."""
    lengths = {name: np.maximum(values, 1) for name, values in lengths.items()}
    every = np.concatenate(list(lengths.values()))
    bins = np.geomspace(every.min(), every.max() * 1.001 + 1, 30)
    looks = {
        "train": {"color": BLUE, "histtype": "stepfilled", "alpha": 0.55},
        "validation": {"color": ORANGE, "histtype": "step", "linestyle": "--", "linewidth": 1.8},
    }
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")
        for row, (name, values) in enumerate(reversed(lengths.items())):
            axes.hist(values, bins, weights=np.full(len(values), 1 / len(values)), **looks[name])
            mark = "■" if name == "train" else "□"
            words = f"{mark} {name}: {len(values):,} documents, median {np.median(values):,.0f}"
            write_key(axes, row, words, looks[name]["color"])
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.minorticks_off()
        axes.set(xlabel="tokens of a document (logarithmic)", ylabel="share of documents")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        return to_svg(figure)


def draw_parts(parameters: dict[str, float], flops: dict[str, float]) -> bytes:
    """What each part of the model has of its parameters and of the work of a training token, in percent."""
    rows = (
        ("embedding,\nhead", "embedding", "head"),
        ("attention", "attention", "attention"),
        ("scores", None, "scores"),
        ("MLP", "mlp", "mlp"),
        ("norms", "norms", None),
    )
    looks = {"color": BLUE}, {"facecolor": "white", "edgecolor": ORANGE, "hatch": "/////"}
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.8), layout="constrained")
        for y, (_, *names) in enumerate(rows):
            for name, values, shift, look in zip(names, (parameters, flops), (-0.2, 0.2), looks, strict=True):
                if name is not None:
                    share = values[name] / values["total"]
                    axes.barh(y + shift, share, 0.36, **look)
                    words = f"{count(values[name])}, {share:.{0 if share >= 0.01 else 1}%}"
                    axes.annotate(words, (share, y + shift), xytext=(4, 0), textcoords="offset points", va="center",
                                  fontsize=8.5)  # fmt: skip
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.3)
        axes.set_xlim(0, None)
        axes.set_xlabel("share of the whole")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        write_key(axes, 1, f"■ {count(parameters['total'], places=2)} parameters", BLUE)
        write_key(axes, 0, f"▨ {count(flops['total'], 'FLOP', places=2)} a training token", ORANGE)
        return to_svg(figure)


def draw_documents(shared_share: np.ndarray, bits_per_byte: np.ndarray, utf8_bytes: np.ndarray) -> bytes:
    """Each validation document's bits per byte against what it shares with the training text; area by bytes."""
    with plt.rc_context(NARROW):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")
        areas = 6 + 300 * utf8_bytes / utf8_bytes.max()
        axes.scatter(
            shared_share, bits_per_byte, areas, BLUE, alpha=0.45, edgecolors=BLUE, linewidths=0.8,
            rasterized=len(areas) > CROWD,
        )  # fmt: skip
        axes.set(
            xlabel="share of its tokens that stand in training too", ylabel="bits per byte", xlim=(-0.03, 1.03)
        )  # fmt: skip
        from_zero(axes, bits_per_byte)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        return to_svg(figure)

"""The report of a comparison as Markdown, and its picture."""

import functools
import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from lm.evaluate.intervals import Estimate, dominating_documents, effective_documents
from lm.plots import BLUE, GREY, ORANGE, figure_of, save_png
from tools.common.statistics import bits_per_byte
from tools.common.tables import render, table
from tools.compare.runs import SEED, Comparison, Group, common_sources, same_until, what_differs

RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]
SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
FEW_DOCUMENTS = 30  # effective number below which the report warns
CORRELATED = 0.3  # with the log of the length, from which the report warns
ALL_MARKS, SMALLEST_MARK = 5000, 4  # areas in square points
LABEL = {"fontsize": 9, "fontweight": "bold", "annotation_clip": False, "textcoords": "offset points"}


def report(
    groups: list[Group], comparisons: list[Comparison], previews: dict[int, str], num_listed: int, percent: str,
    totals: dict[str, int] | None = None,
) -> list[str]:  # fmt: skip
    """Return the lines of report.md.j2 filled in.

    `previews`: position of a document → its first characters; `totals`: documents of each run by its name, if they were
    evaluated on different ones and those in common are compared.
    """
    run_rows = []
    for run in (run for group in groups for run in group.runs):
        figures = ("–" if value is None else f"{value:,.0f}" for value in run.figures)
        run_rows.append([run.name, run.params[SEED], rate(run.nats, run.utf8_bytes), *figures])
    group_rows = []
    for group in groups:
        deviation = f"± {group.bits_per_byte.std(ddof=1):.4f}" if len(group.runs) > 1 else "unknown"
        group_rows.append([group.name, len(group.runs), f"{group.bits_per_byte.mean():.4f}", deviation])
    several, sizes = any(len(group.runs) > 1 for group in groups), comparisons[0].sizes
    return render(
        Path(__file__).with_suffix(".md.j2"), comparisons=comparisons, percent=percent, totals=totals,
        runs=table(RUN_COLUMNS, run_rows), groups=several and table(GROUP_COLUMNS, group_rows),
        sections=[section(comparison, previews, num_listed, percent) for comparison in comparisons],
        num_documents=len(sizes), num_bytes=int(sizes.sum()), effective_documents=effective_documents(sizes),
        few_documents=FEW_DOCUMENTS, baseline=comparisons[0].baseline,
    )  # fmt: skip


def section(comparison: Comparison, previews: dict[int, str], num_listed: int, percent: str) -> dict:
    """Return what the template shows of one comparison: tables as text, and the conditions of its sentences."""
    a, b, seeds, sizes = comparison.a, comparison.b, comparison.seeds, comparison.sizes
    figures = ["Δ bits per byte", "standard error", f"{percent} interval", "p"]
    noise = {f"documents, all {len(sizes)}": comparison.documents}
    if comparison.held_out:
        fraction = f"{100 * comparison.held_out_fraction:.0f} %"
        noise[f"documents, the {fraction} of their text that selected no model"] = comparison.held_out
    if seeds.se is not None:
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        noise[f"seeds, {len(a.runs)} and {len(b.runs)} runs (Welch's t{df})"] = seeds
    sources = [
        [name, f"{own.sum():,}", *(rate(group.nats[own], sizes[own]) for group in (a, b)),
         *cells(comparison.sources[name])]
        for name, own in common_sources(a.runs + b.runs).items()
    ]  # fmt: skip
    documents = []
    for i in comparison.most_changed(num_listed):
        rates = [group.nats[i] / math.log(2) / sizes[i] for group in (a, b)]
        numbers = (f"{rates[0]:.4f}", f"{rates[1]:.4f}", f"{rates[1] - rates[0]:+.4f}", f"{comparison.bits[i]:+,.0f}")
        documents.append([f"{a.runs[0].numbers[i]}: `{previews[int(i)]}`", f"{sizes[i]:,}", *numbers])
    different = what_differs(a, b)
    pairs = [(x.name, y.name, same_until(x, y)) for x, y in itertools.product(a.runs, b.runs)]
    return {
        "comparison": comparison,
        "noise": table(["noise from", *figures], [[name, *cells(each)] for name, each in noise.items()]),
        "sources": sources and table(["source", "documents", a.name, b.name, *figures], sources),
        "different": different and table(["what differs", a.name, b.name], different),
        "documents": table(["document that changed most", "bytes", a.name, b.name, figures[0], "Δ bits"], documents),
        "same_bits": [pair for pair in pairs if pair[2]],
        "same_configuration": a.runs[0].configuration == b.runs[0].configuration,
        "single_runs": " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1),
        "scoring": sorted({name for name, *_ in different} & SCORED_BY),
        "dominating": dominating(comparison),
        "rate_of_a": rate(a.nats, sizes),
        "correlation": length_correlation(comparison),
    }


def rate(nats: np.ndarray, sizes: np.ndarray) -> str:
    """Return bits per byte as text."""
    return f"{bits_per_byte(nats, sizes):.4f}"


def cells(difference: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta, se = (f"{difference.value:+.4f}", "" if difference.se is None else f"{difference.se:.4f}")
    if difference.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{difference.low:+.4f} to {difference.high:+.4f}", f"{difference.p_value:.2g}"]


def dominating(comparison: Comparison) -> list[dict]:
    """Return each document with a large fraction of the bytes, and the figures without it."""
    sizes, nats, documents = comparison.sizes, comparison.a.nats, []
    for position, fraction in dominating_documents(sizes).items():
        rest = np.arange(len(sizes)) != position
        if rest.any():
            number, without = comparison.a.runs[0].numbers[position], rate(nats[rest], sizes[rest])
            difference = comparison.bits[rest].sum() / sizes[rest].sum()
            documents.append({"number": number, "fraction": fraction, "without": without, "difference": difference})
    return documents


def length_correlation(comparison: Comparison) -> float | None:
    """Return the correlation of the difference with the log of the length if it is large enough to warn of."""
    keep = comparison.sizes > 0
    rates, logs = comparison.bits[keep] / comparison.sizes[keep], np.log(comparison.sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None


def draw_comparisons(path: Path, comparisons: list[Comparison], percent: str) -> None:
    """Draw each document's difference against its length, a panel for each comparison."""
    panels = [functools.partial(draw_panel, comparison=comparison, percent=percent) for comparison in comparisons]
    figure = figure_of(*panels, size=(7.5, 0.6 + 3.7 * len(panels)))
    figure.axes[-1].set_xlabel("document length in bytes (logarithmic); area of a mark: weight of the document")
    save_png(figure, path)


def draw_panel(axes, comparison: Comparison, percent: str) -> None:
    """Draw the whole difference with its band, and a mark for each document: hollow if B is worse, else filled."""
    a, b, whole, sizes = comparison.a, comparison.b, comparison.documents, comparison.sizes
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(0, color="black", linewidth=1.0)
    axes.axhline(whole.value, color=GREY, linestyle="--", linewidth=1.4)
    words = "too few documents for an interval"
    if whole.low is not None:
        axes.axhspan(whole.low, whole.high, color=GREY, alpha=0.25, linewidth=0)
        words = f"{percent} interval {whole.low:+.4f} to {whole.high:+.4f}"
    differences, areas = comparison.bits / sizes, np.maximum(ALL_MARKS * sizes / sizes.sum(), SMALLEST_MARK)
    filled, hollow = {"color": BLUE, "alpha": 0.6, "linewidths": 0}, {"facecolors": "none", "edgecolors": ORANGE}
    for keep, label, style, y in (
        (differences <= 0, f"● {b.name} is better or equal", filled, 0),
        (differences > 0, f"○ {b.name} is worse", hollow, 1),
    ):
        axes.scatter(sizes[keep], differences[keep], areas[keep], **style)
        axes.annotate(f"{label}: {keep.sum():,} documents", (1, y), xycoords="axes fraction", xytext=(-4, 4 - 8 * y),
                      ha="right", va=("bottom", "top")[y], color=(BLUE, ORANGE)[y], **LABEL)  # fmt: skip
    axes.margins(x=0.06, y=0.16)
    axes.set(ylabel="Δ bits per byte", title=f"{b.name} − {a.name}: {whole.value:+.4f} ({words})")

"""The report of a comparison as Markdown, and its CSV rows."""

import math
from pathlib import Path

import numpy as np

from lm.evaluate.intervals import Estimate, dominating_documents, effective_documents
from tools.common.statistics import bits_per_byte
from tools.common.tables import render, table
from tools.compare.parting import partings
from tools.compare.runs import Comparison, Group, common_parts, most_changed, what_differs

RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]
FEW_DOCUMENTS = 30  # effective number below which the report warns
CORRELATED = 0.3  # with the log of the length, from which the report warns


def report(
    groups: list[Group], comparisons: list[Comparison], begins: dict[int, str], num_listed: int, percent: str
) -> list[str]:
    """Return the lines of report.md.j2 filled in; `begins`: document → its first characters."""
    run_rows = [
        [run.name, run.params["train.seed"], f"{bits_per_byte(run.nats, run.utf8_bytes):.4f}",
         *("–" if value is None else f"{value:,.0f}" for value in run.figures)]
        for group in groups for run in group.runs
    ]  # fmt: skip
    group_rows = [
        [group.name, len(group.runs), f"{group.bits_per_byte.mean():.4f}",
         f"± {group.bits_per_byte.std(ddof=1):.4f}" if len(group.runs) > 1 else "unknown"]
        for group in groups
    ]  # fmt: skip
    several = any(len(group.runs) > 1 for group in groups)
    sizes = comparisons[0].a.runs[0].utf8_bytes
    return render(
        Path(__file__).with_suffix(".md.j2"), comparisons=comparisons, percent=percent,
        runs=table(RUN_COLUMNS, run_rows), groups=several and table(GROUP_COLUMNS, group_rows),
        sections=(section(comparison, begins, num_listed, percent) for comparison in comparisons),
        num_documents=len(sizes), num_bytes=int(sizes.sum()), effective_documents=effective_documents(sizes),
        few_documents=FEW_DOCUMENTS, baseline=comparisons[0].baseline,
    )  # fmt: skip


def section(comparison: Comparison, begins: dict[int, str], num_listed: int, percent: str) -> dict:
    """Return what the template shows of one comparison: tables as text, and the conditions of its sentences."""
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    rows = [[f"documents, all {len(a.nats)}", *cells(comparison.documents)]]
    if comparison.unseen:
        text = f"documents, the {100 * comparison.unseen_fraction:.0f} % of their text that selected no model"
        rows.append([text, *cells(comparison.unseen)])
    if seeds.se is not None:
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        rows.append([f"seeds, {len(a.runs)} and {len(b.runs)} runs (Welch's t{df})", *cells(seeds)])
    different = what_differs(a, b)
    scored_by = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}
    return {
        "noise": table(["noise from", "Δ bits per byte", "standard error", f"{percent} interval", "p"], rows),
        "parts": parts_table(comparison, percent),
        "different": table(["what differs", a.name, b.name], different) if different else [],
        "documents": documents_table(comparison, begins, num_listed),
        "comparison": comparison,
        "partings": partings(a, b),
        "same_configuration": a.runs[0].configuration == b.runs[0].configuration,
        "single_runs": " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1),
        "scoring": sorted({name for name, *_ in different} & scored_by),
        "dominating": dominating(comparison),
        "correlation": length_correlation(comparison),
    }


def cells(difference: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta, se = (f"{difference.value:+.4f}", "" if difference.se is None else f"{difference.se:.4f}")
    if difference.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{difference.low:+.4f} to {difference.high:+.4f}", f"{difference.p_value:.2g}"]


def parts_table(comparison: Comparison, percent: str) -> list[str]:
    """Return a row for each part of the mixture, [] for a plain source."""
    a, b, rows = comparison.a, comparison.b, []
    for name, own in common_parts(a.runs + b.runs).items():
        figures = [f"{bits_per_byte(group.nats[own], a.runs[0].utf8_bytes[own]):.4f}" for group in (a, b)]
        rows.append([name, f"{own.sum():,}", *figures, *cells(comparison.parts[name])])
    columns = ["part", "documents", a.name, b.name, "Δ bits per byte", "standard error", f"{percent} interval", "p"]
    return table(columns, rows) if rows else []


def dominating(comparison: Comparison) -> list[dict]:
    """Return each document with a large fraction of the bytes, and the figures without it."""
    sizes, nats, documents = comparison.a.runs[0].utf8_bytes, comparison.a.nats, []
    for number, fraction in dominating_documents(sizes).items():
        rest = np.arange(len(sizes)) != number
        if rest.any():
            documents.append({
                "number": number, "fraction": fraction, "all": bits_per_byte(nats, sizes),
                "without": bits_per_byte(nats[rest], sizes[rest]),
                "difference": comparison.bits[rest].sum() / sizes[rest].sum(),
            })  # fmt: skip
    return documents


def length_correlation(comparison: Comparison) -> float | None:
    """Return the correlation of the difference with the log of the length if it is large enough to warn of."""
    sizes = comparison.a.runs[0].utf8_bytes
    keep = sizes > 0
    rates, logs = comparison.bits[keep] / sizes[keep], np.log(sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None


def documents_table(comparison: Comparison, begins: dict[int, str], num_listed: int) -> list[str]:
    """Return the documents whose bits changed most."""
    a, b, sizes = comparison.a, comparison.b, comparison.a.runs[0].utf8_bytes
    rows = []
    for i in most_changed(comparison, num_listed):
        rates = [group.nats[i] / math.log(2) / sizes[i] for group in (a, b)]
        rows.append([f"{i}: `{begins[i]}`", f"{sizes[i]:,}", *(f"{rate:.4f}" for rate in rates),
                     f"{rates[1] - rates[0]:+.4f}", f"{comparison.bits[i]:+,.0f}"])  # fmt: skip
    return table(["document that changed most", "bytes", a.name, b.name, "Δ bits per byte", "Δ bits"], rows)


def csv_rows(groups: list[Group]) -> tuple[list[str], list[list]]:
    """Return columns, and a row for each document: its number, bytes and bits per byte under each group."""
    sizes = groups[0].runs[0].utf8_bytes
    figures = np.stack([group.nats / math.log(2) / sizes for group in groups], axis=1)
    rows = [[i, int(size), *map(float, row)] for i, (size, row) in enumerate(zip(sizes, figures, strict=True))]
    return ["document", "utf8_bytes", *(group.name for group in groups)], rows

"""The report of a comparison as Markdown."""

import itertools
import math
from pathlib import Path

import numpy as np

from lm.evaluate.intervals import LEAST_DOCUMENTS, Estimate, dominating_documents, effective_documents
from lm.tokens.tokenfile import LOSSY
from tools.common.statistics import bits_per_byte, p_text, power, size_correlation
from tools.common.tables import render, table
from tools.compare.runs import SEED, Comparison, Group, common_sources, same_until, what_differs

RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]
SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
FEW_DOCUMENTS = 30  # effective number below which the report warns
LEAST_NAMED = 10  # documents: that fewer would do is not said, as they stand for few others


def report(
    groups: list[Group], comparisons: list[Comparison], previews: dict[int, str], num_listed: int, confidence: float
) -> list[str]:  # fmt: skip
    """Return the lines of report.md.j2 filled in; `previews`: position of a document → some of its words."""
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
        Path(__file__).with_suffix(".md.j2"), comparisons=comparisons, percent=f"{100 * confidence:g} %",
        runs=table(RUN_COLUMNS, run_rows), groups=several and table(GROUP_COLUMNS, group_rows),
        sections=[section(each, previews, num_listed, confidence, len(comparisons)) for each in comparisons],
        num_documents=len(sizes), num_bytes=int(sizes.sum()), effective_documents=effective_documents(sizes),
        lossy_sentence=LOSSY, few_documents=FEW_DOCUMENTS, baseline=comparisons[0].baseline,
    )  # fmt: skip


def section(
    comparison: Comparison, previews: dict[int, str], num_listed: int, confidence: float, num_comparisons: int
) -> dict:
    """Return what the template shows of one comparison: tables and sentences as text, and conditions."""
    a, b, seeds, sizes = comparison.a, comparison.b, comparison.seeds, comparison.sizes
    figures = ["Δ bits per byte", "standard error", f"{100 * confidence:g} % interval"]
    noise = {f"documents, all {len(sizes)}": comparison.documents}
    for name, own in common_sources(a.runs + b.runs).items():
        noise[f"documents, the {own.sum():,} of {name}"] = comparison.sources[name]
    if seeds.se is not None:
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        noise[f"seeds, {len(a.runs)} and {len(b.runs)} runs (Welch's t{df})"] = seeds
    rates = [group.nats / math.log(2) / sizes for group in (a, b)]
    documents = [
        [f"{a.runs[0].numbers[i]}: `{previews[int(i)]}`", f"{sizes[i]:,}", f"{rates[0][i]:.4f}", f"{rates[1][i]:.4f}",
         f"{rates[1][i] - rates[0][i]:+.4f}", f"{comparison.bits[i]:+,.0f}"]
        for i in comparison.most_changed(num_listed)
    ]  # fmt: skip
    different = what_differs(a, b)
    pairs = [(x.name, y.name, same_until(x, y)) for x, y in itertools.product(a.runs, b.runs)]
    p = "p after Holm" if num_comparisons > 1 or comparison.sources else "p"
    return {
        "comparison": comparison,
        "noise": table(["noise from", *figures, p], [[name, *cells(each)] for name, each in noise.items()]),
        "over_documents": verdict(comparison, comparison.documents, num_comparisons, confidence)
        + power(comparison.documents, len(sizes), "documents", LEAST_DOCUMENTS, LEAST_NAMED),
        "over_seeds": verdict(comparison, seeds, num_comparisons, confidence)
        + power(seeds, min(len(a.runs), len(b.runs)), "seeds of each side", 2, 2),
        "different": different and table(["what differs", a.name, b.name], different),
        "documents": table(["document that changed most", "bytes", a.name, b.name, figures[0], "Δ bits"], documents),
        "same_bits": [pair for pair in pairs if pair[2]],
        "same_configuration": a.runs[0].configuration == b.runs[0].configuration,
        "lossy": [group.name for group in (a, b) if any(run.is_lossy for run in group.runs)],
        "single_runs": " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1),
        "scoring": sorted({name for name, *_ in different} & SCORED_BY),
        "dominating": dominating(comparison),
        "correlation": size_correlation(comparison.bits, sizes),
    }


def rate(nats: np.ndarray, sizes: np.ndarray) -> str:
    """Return bits per byte as text."""
    return f"{bits_per_byte(nats, sizes):.4f}"


def cells(difference: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta, se = (f"{difference.value:+.4f}", "" if difference.se is None else f"{difference.se:.4f}")
    if difference.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{difference.low:+.4f} to {difference.high:+.4f}", p_text(difference)]


def verdict(comparison: Comparison, found: Estimate, num_comparisons: int, confidence: float) -> str:
    """Return the sentence whether a difference was shown; p of `found` is corrected for the number of comparisons."""
    if found.low is None or found.p_value is None:
        return "too few for an interval."
    a, b, is_shown = comparison.a.name, comparison.b.name, found.p_value <= 1 - confidence + 1e-9
    why = f"the {100 * confidence:g} % interval {'excludes' if is_shown else 'contains'} zero."
    if num_comparisons > 1:
        is_number = p_text(found)[0].isdigit()
        why = (
            f"p {'is ' if is_number else ''}{p_text(found)} after Holm's correction for {num_comparisons} comparisons."
        )
    if not is_shown:
        return f"no difference was shown between `{a}` and `{b}`; {why}"
    return f"`{b}` is {'better' if found.value < 0 else 'worse'} than `{a}`; {why}"


def dominating(comparison: Comparison) -> list[tuple[int, float, float]]:
    """Return the number of each document with a large fraction of the bytes, that fraction, and Δ without it."""
    sizes, bits, numbers = comparison.sizes, comparison.bits, comparison.a.runs[0].numbers
    return [
        (numbers[i], fraction, (bits.sum() - bits[i]) / (sizes.sum() - sizes[i]))
        for i, fraction in dominating_documents(sizes).items()
        if fraction < 1
    ]

"""The report of a comparison as Markdown."""

import itertools
import math
from pathlib import Path

from lm.evaluate.intervals import LEAST_DOCUMENTS, Estimate, dominating_documents, effective_documents
from lm.tokens.tokenfile import LOSSY
from tools.common.runs import SEED, Comparison, Group, Run, common_sources, same_until, what_differs
from tools.common.statistics import bits_per_byte, p_text, power, size_correlation
from tools.common.tables import render, table

DIFFERENCE = "Δ bits per byte"
RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]
SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
FEW_DOCUMENTS = 30  # effective number below which the report warns
LEAST_NAMED = 10  # documents: that fewer would do is not said, as they stand for few others


def report(
    groups: list[Group], comparisons: list[Comparison], previews: dict[int, str], num_listed: int, confidence: float
) -> list[str]:
    """Return the lines of report.md.j2 filled in; `previews`: position of a document → some of its words."""
    has_groups = any(len(group.runs) > 1 for group in groups)
    sizes = comparisons[0].sizes
    return render(
        Path(__file__).with_suffix(".md.j2"),
        comparisons=comparisons,
        percent=f"{100 * confidence:g} %",
        runs=table(RUN_COLUMNS, [run_row(run) for group in groups for run in group.runs]),
        groups=table(GROUP_COLUMNS, [group_row(group) for group in groups]) if has_groups else None,
        sections=[section(each, previews, num_listed, confidence, len(comparisons)) for each in comparisons],
        num_documents=len(sizes),
        num_bytes=int(sizes.sum()),
        effective_documents=effective_documents(sizes),
        lossy_sentence=LOSSY,
        few_documents=FEW_DOCUMENTS,
        baseline=comparisons[0].baseline,
    )


def run_row(run: Run) -> list[object]:
    """Return the cells of RUN_COLUMNS."""
    counts = [f"{count:,}" for count in (run.tokens_seen, run.best_tokens_seen, run.num_parameters)]
    seconds = "–" if run.train_seconds is None else f"{run.train_seconds:,.0f}"
    return [run.name, run.params[SEED], f"{bits_per_byte(run.nats, run.utf8_bytes):.4f}", *counts, seconds]


def group_row(group: Group) -> list[object]:
    """Return the cells of GROUP_COLUMNS."""
    deviation = f"± {group.bits_per_byte.std(ddof=1):.4f}" if len(group.runs) > 1 else "unknown"
    return [group.name, len(group.runs), f"{group.bits_per_byte.mean():.4f}", deviation]


def section(
    comparison: Comparison, previews: dict[int, str], num_listed: int, confidence: float, num_comparisons: int
) -> dict:
    """Return what the template shows of one comparison: tables and sentences as text, and conditions."""
    a, b, documents, seeds = comparison.a, comparison.b, comparison.documents, comparison.seeds
    fewer_seeds = min(len(a.runs), len(b.runs))
    different = what_differs(a, b)
    same_bits = [(x.name, y.name, same_until(x, y)) for x, y in itertools.product(a.runs, b.runs)]
    return {
        "comparison": comparison,
        "noise": noise_table(comparison, confidence, num_comparisons),
        "over_documents": verdict(comparison, documents, num_comparisons, confidence)
        + power(documents, len(comparison.sizes), "documents", LEAST_DOCUMENTS, LEAST_NAMED),
        "over_seeds": verdict(comparison, seeds, num_comparisons, confidence)
        + power(seeds, fewer_seeds, "seeds of each side", 2, 2),
        "different": table(["what differs", a.name, b.name], different) if different else None,
        "documents": document_table(comparison, previews, num_listed),
        "same_bits": [pair for pair in same_bits if pair[2]],
        "same_configuration": a.runs[0].configuration == b.runs[0].configuration,
        "lossy": [group.name for group in (a, b) if any(run.is_lossy for run in group.runs)],
        "single_runs": " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1),
        "scoring": sorted({name for name, *_ in different} & SCORED_BY),
        "dominating": dominating(comparison),
        "correlation": size_correlation(comparison.bits, comparison.sizes),
    }


def noise_table(comparison: Comparison, confidence: float, num_comparisons: int) -> list[str]:
    """Return the table of differences: over all documents, over those of each source, and over seeds."""
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    estimates = {f"documents, all {len(comparison.sizes)}": comparison.documents}
    for name, is_of_source in common_sources(a.runs + b.runs).items():
        estimates[f"documents, the {is_of_source.sum():,} of {name}"] = comparison.sources[name]
    if seeds.se is not None:
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        estimates[f"seeds, {len(a.runs)} and {len(b.runs)} runs (Welch's t{df})"] = seeds
    p = "p after Holm" if num_comparisons > 1 or comparison.sources else "p"
    header = ["noise from", DIFFERENCE, "standard error", f"{100 * confidence:g} % interval", p]
    return table(header, [[name, *cells(each)] for name, each in estimates.items()])


def document_table(comparison: Comparison, previews: dict[int, str], num_listed: int) -> list[str]:
    """Return the table of the documents whose bits changed most."""
    a, b, sizes = comparison.a, comparison.b, comparison.sizes
    rows = []
    for i in comparison.most_changed(num_listed).tolist():
        before, after = (group.nats[i] / math.log(2) / sizes[i] for group in (a, b))
        rates = [f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}"]
        rows.append([f"{i}: `{previews[i]}`", f"{sizes[i]:,}", *rates, f"{comparison.bits[i]:+,.0f}"])
    return table(["document that changed most", "bytes", a.name, b.name, DIFFERENCE, "Δ bits"], rows)


def cells(found: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta = f"{found.value:+.4f}"
    se = "" if found.se is None else f"{found.se:.4f}"
    if found.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{found.low:+.4f} to {found.high:+.4f}", p_text(found)]


def verdict(comparison: Comparison, found: Estimate, num_comparisons: int, confidence: float) -> str:
    """Return the sentence whether a difference was shown; p of `found` is corrected for the number of comparisons."""
    if found.low is None or found.p_value is None:
        return "too few for an interval."
    is_shown = found.p_value <= 1 - confidence + 1e-9
    if num_comparisons > 1:
        p = p_text(found)
        is_number = p[0].isdigit()  # not "≤ 0.002"
        why = f"p {'is ' if is_number else ''}{p} after Holm's correction for {num_comparisons} comparisons."
    else:
        why = f"the {100 * confidence:g} % interval {'excludes' if is_shown else 'contains'} zero."
    a, b = comparison.a.name, comparison.b.name
    if not is_shown:
        return f"no difference was shown between `{a}` and `{b}`; {why}"
    return f"`{b}` is {'better' if found.value < 0 else 'worse'} than `{a}`; {why}"


def dominating(comparison: Comparison) -> list[tuple[int, float, float]]:
    """Return the number of each document with a large fraction of the bytes, that fraction, and Δ without it."""
    sizes, bits = comparison.sizes, comparison.bits
    found = []
    for i, fraction in dominating_documents(sizes).items():
        if fraction < 1:
            without = (bits.sum() - bits[i]) / (sizes.sum() - sizes[i])
            found.append((i, fraction, without))
    return found

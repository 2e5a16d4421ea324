"""The report of a comparison as Markdown."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from evidence.answer import answers, p_text
from evidence.difference import NOT_SHOWN, SEEDS, Comparison, Comparisons
from evidence.intervals import LEAST_DOCUMENTS, Estimate, effective_documents
from evidence.runs import Group, Run, sources_of
from evidence.spread import LEAST_SEEDS, POWER, Detectable, detectable_by_seeds, power
from tools.common.reports import render, table
from tools.common.runs import Facts
from tools.compare.facts import notes_of, same_until, what_differs

DIFFERENCE = "Δ bits per byte"
RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]
LEAST_NAMED = 10  # documents: that fewer would do is not said, as they stand for few others


def report(
    found: Comparisons, facts: Mapping[str, Facts], previews: dict[int, str], num_listed: int, commands: list[str]
) -> list[str]:
    """Return the lines of report.md.j2 filled in.

    previews: position of a document → some of its words. commands: those that run more seeds.
    """
    comparisons = found.corrected
    run_rows = [run_row(run, facts[run.name]) for group in found.groups for run in group.runs]
    group_rows = [group_row(group) for group in found.groups]
    has_groups = any(len(group.runs) > 1 for group in found.groups)
    others = [each for each in comparisons if not each.is_same_run]
    sections = [section(each, facts, previews, num_listed, found.confidence, len(comparisons)) for each in others]
    sizes = comparisons[0].sizes
    return render(
        Path(__file__).with_suffix(".md.j2"),
        comparisons=comparisons,
        answers=answers(found),
        commands=commands,
        percent=f"{100 * found.confidence:g} %",
        runs=table(RUN_COLUMNS, run_rows),
        groups=table(GROUP_COLUMNS, group_rows) if has_groups else None,
        sections=sections,
        num_documents=len(sizes),
        num_bytes=int(sizes.sum()),
        effective_documents=effective_documents(sizes),
        baseline=comparisons[0].baseline,
    )


def run_row(run: Run, facts: Facts) -> list[object]:
    """Return the cells of RUN_COLUMNS."""
    return [
        run.name,
        run.seed,
        f"{run.score:.4f}",
        f"{facts.tokens_seen:,}",
        f"{facts.best_tokens_seen:,}",
        f"{facts.num_parameters:,}",
        "–" if facts.train_seconds is None else f"{facts.train_seconds:,.0f}",
    ]


def group_row(group: Group) -> list[object]:
    """Return the cells of GROUP_COLUMNS."""
    deviation = "unknown"
    if len(group.runs) > 1:
        deviation = f"± {group.scores.std(ddof=1):.4f}"
    return [group.name, len(group.runs), f"{group.scores.mean():.4f}", deviation]


def section(
    comparison: Comparison,
    facts: Mapping[str, Facts],
    previews: dict[int, str],
    num_listed: int,
    confidence: float,
    num_comparisons: int,
) -> dict:
    """Return what the template shows of one comparison: tables and sentences as text, and conditions."""
    a = comparison.a
    b = comparison.b
    documents = comparison.documents
    over_documents = whether_shown(comparison, documents, num_comparisons, confidence)
    over_documents += power(documents, len(comparison.sizes), "documents", LEAST_DOCUMENTS, LEAST_NAMED, num_means=1)
    different = what_differs(a, b, facts)
    same_bits = [(x.name, y.name, same_until(x.name, y.name, facts)) for x, y in itertools.product(a.runs, b.runs)]
    return {
        "comparison": comparison,
        "noise": noise_table(comparison, confidence, num_comparisons),
        "over_documents": over_documents,
        "over_seeds": seeds_sentence(comparison, num_comparisons, confidence),
        "different": table(["what differs", a.name, b.name], different) if different else None,
        "documents": document_table(comparison, previews, num_listed) if num_listed else [],
        "same_bits": [(x, y, until) for x, y, until in same_bits if until],
        "notes": notes_of(comparison, facts),
        "detectable": detectable_table(detectable_by_seeds(comparison, confidence)),
    }


def seeds_sentence(comparison: Comparison, num_comparisons: int, confidence: float) -> str:
    """Return whether a difference was shown over seeds, "" if one side has a single run or both are the same.

    How many seeds the difference needs is said only if each side has LEAST_SEEDS.
    """
    if comparison.basis != SEEDS or comparison.is_of_one_configuration:
        return ""
    sentence = whether_shown(comparison, comparison.seeds, num_comparisons, confidence)
    fewer_seeds = min(len(comparison.a.runs), len(comparison.b.runs))
    if fewer_seeds >= LEAST_SEEDS:
        units = "pairs of equal seeds" if comparison.is_paired else "seeds of each side"
        sentence += power(comparison.seeds, fewer_seeds, units, 2, 2, comparison.num_means)
    return sentence


def detectable_table(detectable: Detectable) -> list[str]:
    """Return the table of the difference that some numbers of seeds would show, [] if it is unknown."""
    header = ["pairs of equal seeds" if detectable.is_of_pairs else "independent seeds of each side"]
    row = [f"{DIFFERENCE} shown in about {100 * POWER:g} % of cases"]
    for num_seeds, difference in detectable.differences.items():
        header.append(str(num_seeds))
        row.append(f"{difference:.4f}")
    return table(header, [row]) if detectable.differences else []


def noise_table(comparison: Comparison, confidence: float, num_comparisons: int) -> list[str]:
    """Return the table of differences: over all documents, over those of each source, and over seeds."""
    a = comparison.a
    b = comparison.b
    seeds = comparison.seeds
    rows = [[f"documents, all {len(comparison.sizes)}", *cells(comparison.documents)]]
    for name, is_of_source in sources_of([*a.runs, *b.runs]).items():
        rows.append([f"documents, the {is_of_source.sum():,} of {name}", *cells(comparison.sources[name])])
    if seeds.se is not None:
        method = "Student's t of pairs" if comparison.is_paired else "Welch's t"
        if seeds.degrees_of_freedom is not None:
            method += f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        rows.append([f"seeds, {len(a.runs)} and {len(b.runs)} runs ({method})", *cells(seeds)])

    is_corrected = num_comparisons > 1 or comparison.sources
    p = "p after Holm" if is_corrected else "p"
    header = ["noise from", DIFFERENCE, "standard error", f"{100 * confidence:g} % interval", p]
    return table(header, rows)


def document_table(comparison: Comparison, previews: dict[int, str], num_listed: int) -> list[str]:
    """Return the table of the documents whose bits changed most."""
    a = comparison.a
    b = comparison.b
    sizes = comparison.sizes
    rows = []
    for i in comparison.most_changed(num_listed).tolist():
        before = a.values[i] / sizes[i]
        after = b.values[i] / sizes[i]
        rows.append(
            [
                f"{i}: `{previews[i]}`",
                f"{sizes[i]:,}",
                f"{before:.4f}",
                f"{after:.4f}",
                f"{after - before:+.4f}",
                f"{comparison.changes[i]:+,.0f}",
            ]
        )
    return table(["document that changed most", "bytes", a.name, b.name, DIFFERENCE, "Δ bits"], rows)


def cells(found: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta = f"{found.value:+.4f}"
    se = "" if found.se is None else f"{found.se:.4f}"
    if found.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{found.low:+.4f} to {found.high:+.4f}", p_text(found)]


def whether_shown(comparison: Comparison, found: Estimate, num_comparisons: int, confidence: float) -> str:
    """Return the sentence whether a difference was shown; p of `found` is corrected for the number of comparisons."""
    if found.low is None or found.p_value is None:
        return "too few for an interval."
    said = comparison.verdict(found, confidence)
    if num_comparisons > 1:
        p = p_text(found)
        verb = "is " if p[0].isdigit() else ""  # none in "p ≤ 0.002"
        why = f"p {verb}{p} after Holm's correction for {num_comparisons} comparisons."
    else:
        verb = "contains" if said == NOT_SHOWN else "excludes"
        why = f"the {100 * confidence:g} % interval {verb} zero."
    a = comparison.a.name
    b = comparison.b.name
    if said == NOT_SHOWN:
        return f"no difference was shown between `{a}` and `{b}`; {why}"
    return f"`{b}` is {said} than `{a}`; {why}"

"""The report of a comparison as Markdown."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from evidence.answer import answers, basis_sentence, p_text, percent_of, power_line, seeds_text, signature
from evidence.difference import Comparisons, Difference
from evidence.intervals import Estimate, effective_documents
from evidence.runs import Group, Run, sources_of
from tools.compare.facts import notes_of, same_until, what_differs
from tools.record.run import Facts
from tools.record.tables import render, table

DIFFERENCE = "Δ bits per byte"
RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
GROUP_COLUMNS = ["configuration", "seeds", "mean bits per byte", "sd over seeds"]


def report(
    found: Comparisons, facts: Mapping[str, Facts], previews: dict[int, str], num_listed: int, commands: list[str]
) -> list[str]:
    """Return the lines of report.md.j2 filled in.

    previews: position of a document → some of its words. commands: those that run more seeds.
    """
    run_rows = [run_row(run, facts[run.name]) for group in found.groups for run in group.runs]
    group_rows = [group_row(group) for group in found.groups]
    has_groups = any(len(group.runs) > 1 for group in found.groups)
    baseline, *others = [group.name for group in found.groups]
    sizes = found.groups[0].runs[0].sizes
    return render(
        Path(__file__).with_suffix(".md.j2"),
        title=f"{', '.join(others)} against {baseline}" if others else baseline,
        answers=answers(found),
        commands=commands,
        percent=percent_of(found.confidence),
        runs=table(RUN_COLUMNS, run_rows),
        groups=table(GROUP_COLUMNS, group_rows) if has_groups else None,
        sections=[section(each, found, facts, previews, num_listed) for each in found.corrected],
        num_documents=len(sizes),
        num_bytes=int(sizes.sum()),
        effective_documents=effective_documents(sizes),
        name=baseline,
        baseline=found.baseline,
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
    one: Difference, found: Comparisons, facts: Mapping[str, Facts], previews: dict[int, str], num_listed: int
) -> dict:
    """Return what the template shows of one comparison: tables and sentences as text."""
    a = one.a
    b = one.b
    different = what_differs(a, b, facts)
    same_bits = [(x.name, y.name, same_until(x.name, y.name, facts)) for x, y in itertools.product(a.runs, b.runs)]
    sentences = [basis_sentence(one), power_line(one, found.confidence), *(note.text for note in notes_of(one, facts))]
    return {
        "difference": one,
        "intervals": intervals_table(one, found),
        "sentences": [sentence for sentence in dict.fromkeys(sentences) if sentence],
        "different": table(["what differs", a.name, b.name], different) if different else None,
        "documents": document_table(one, previews, num_listed) if num_listed else [],
        "same_bits": [(x, y, until) for x, y, until in same_bits if until],
        "signature": signature(one, found.options),
    }


def intervals_table(one: Difference, found: Comparisons) -> list[str]:
    """Return the table of differences: over all documents, over those of each source, and over seeds."""
    rows = [[f"documents, all {len(one.sizes)}", *cells(one.documents)]]
    for name, is_of_source in sources_of([*one.a.runs, *one.b.runs]).items():
        rows.append([f"documents, the {is_of_source.sum():,} of {name}", *cells(one.sources[name])])
    if one.seeds.degrees_of_freedom is not None:
        method = "Student's t" if one.is_paired else "Welch's t"
        df = f"{one.seeds.degrees_of_freedom:.1f} degrees of freedom"
        rows.append([f"seeds, {seeds_text(one)} ({method}, {df})", *cells(one.seeds)])
    p = "p after Holm" if found.num_tests > 1 or one.sources else "p"
    return table(["noise from", DIFFERENCE, "standard error", f"{percent_of(found.confidence)} interval", p], rows)


def document_table(one: Difference, previews: dict[int, str], num_listed: int) -> list[str]:
    """Return the table of the documents whose bits changed most."""
    rows = []
    for i in one.most_changed(num_listed).tolist():
        size = one.sizes[i]
        before = one.a.values[i] / size
        after = one.b.values[i] / size
        rows.append(
            [
                f"{i}: `{previews[i]}`",
                f"{size:,}",
                f"{before:.4f}",
                f"{after:.4f}",
                f"{after - before:+.4f}",
                f"{one.changes[i]:+,.0f}",
            ]
        )
    return table(["document that changed most", "bytes", one.a.name, one.b.name, DIFFERENCE, "Δ bits"], rows)


def cells(found: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta = f"{found.value:+.4f}"
    se = "" if found.se is None else f"{found.se:.4f}"
    if found.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{found.low:+.4f} to {found.high:+.4f}", p_text(found)]

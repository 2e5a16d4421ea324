"""The report of a comparison as Markdown, and its CSV rows."""

import math

import numpy as np

from lm.evaluate.intervals import Estimate, dominating_documents, effective_documents
from tools.common.statistics import bits_per_byte
from tools.common.tables import table
from tools.compare.runs import Comparison, Group, most_changed, what_differs

RUN_COLUMNS = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "training seconds"]
FEW_DOCUMENTS = 30  # effective number below which the report warns
CORRELATED = 0.3  # with the log of the length, from which the report warns
ONE_RUN = (
    "Seeds: there is only one run of {who}, so this compares trained models, not configurations. Run more seeds with "
    "`dvc exp run --queue -S 'train.seed=range(1,6)' -n NAME` and name all of them here."
)


def report(
    groups: list[Group], comparisons: list[Comparison], begins: dict[int, str], num_listed: int, percent: str
) -> list[str]:
    """Return the lines of the report; `begins`: document → its first characters; `percent`: confidence."""
    lines = [f"# {', '.join(c.b.name for c in comparisons)} against {comparisons[0].a.name}", ""]
    lines += table(RUN_COLUMNS, [
        [run.name, run.params["train.seed"], f"{bits_per_byte(run.nats, run.utf8_bytes):.4f}",
         *(f"{value:,.0f}" for value in run.figures)]
        for group in groups for run in group.runs
    ])  # fmt: skip
    if any(len(group.runs) > 1 for group in groups):
        rows = [[group.name, len(group.runs), group.bits_per_byte] for group in groups]
        lines += table(["configuration", "seeds", "mean bits per byte", "sd over seeds"], [
            [name, count, f"{values.mean():.4f}", f"± {values.std(ddof=1):.4f}" if count > 1 else "unknown"]
            for name, count, values in rows
        ])  # fmt: skip
    for comparison in comparisons:
        lines += comparison_section(comparison, percent) + documents_table(comparison, begins, num_listed)
    if len(comparisons) > 1:
        lines += ["Among runs that do not differ, one comparison in twenty has p < 0.05 by chance.", ""]
    return lines + how_to_read(comparisons[0], percent)


def comparison_section(comparison: Comparison, percent: str) -> list[str]:
    """Return the differences with their noise, what they mean, and what else differs."""
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    rows = [[f"documents, all {len(a.nats)}", *cells(comparison.documents)]]
    if comparison.unseen:
        text = f"documents, the {100 * comparison.unseen_fraction:.0f} % of their text that selected no model"
        rows.append([text, *cells(comparison.unseen)])
    if seeds.se is not None:
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        rows.append([f"seeds, {len(a.runs)} and {len(b.runs)} runs (Welch's t{df})", *cells(seeds)])
    different = what_differs(a, b)
    sentences = verdict(comparison, percent, {name for name, *_ in different}) + warnings(comparison)
    return [
        f"## {b.name} − {a.name}: {comparison.documents.value:+.4f} bits per byte",
        "",
        *table(["noise from", "Δ bits per byte", "standard error", f"{percent} interval", "p"], rows),
        *(f"- {sentence}" for sentence in sentences),
        "",
        *(table(["what differs", a.name, b.name], different) if different else
          ["dvc.lock records no other difference; what remains is the machine.", ""]),
    ]  # fmt: skip


def cells(difference: Estimate) -> list[str]:
    """Return difference, standard error, interval and p as text."""
    delta, se = (f"{difference.value:+.4f}", "" if difference.se is None else f"{difference.se:.4f}")
    if difference.low is None:
        return [delta, se, "too few to say", ""]
    return [delta, se, f"{difference.low:+.4f} to {difference.high:+.4f}", f"{difference.p_value:.2g}"]


def verdict(comparison: Comparison, percent: str, different: set[str]) -> list[str]:
    """Return sentences on whether the difference exceeds the noise of documents and of seeds."""
    a, b = comparison.a, comparison.b
    sentences = [f"Documents: {judged(comparison.documents, a.name, b.name, percent)}"]
    single = [f"`{group.name}`" for group in (a, b) if len(group.runs) == 1]
    if a.runs[0].configuration == b.runs[0].configuration:
        sentences.append("Seeds: the configuration is the same, so this difference is noise of seed or machine.")
    elif single:
        sentences.append(ONE_RUN.format(who=" and ".join(single)))
    else:
        sentences.append(f"Seeds: {judged(comparison.seeds, a.name, b.name, percent)}")
    scoring = sorted(different & {"eval.stride_fraction", "train.seq_len"})
    return sentences + [f"`{name}` differs: the two were scored with different context." for name in scoring]


def judged(difference: Estimate, name_a: str, name_b: str, percent: str) -> str:
    """Return what an interval says, as a sentence."""
    if difference.low is None or difference.high is None:
        return "too few for an interval."
    if difference.low <= 0 <= difference.high:
        return f"no difference was shown between `{name_a}` and `{name_b}`; the {percent} interval contains zero."
    word = "better" if difference.value < 0 else "worse"
    return f"`{name_b}` is {word} than `{name_a}`; the {percent} interval excludes zero."


def warnings(comparison: Comparison) -> list[str]:
    """Return sentences on few or dominating documents, and on a difference that depends on the length."""
    sizes, nats = comparison.a.runs[0].utf8_bytes, comparison.a.nats
    effective, sentences = effective_documents(sizes), []
    if effective < FEW_DOCUMENTS:
        sentences.append(
            f"Few documents carry these figures: all {len(sizes)} weigh as much as {effective:.0f} of equal length. "
            "The interval may be too narrow; score more text."
        )
    for document, fraction in dominating_documents(sizes).items():
        rest = np.arange(len(sizes)) != document
        if rest.any():
            sentences.append(
                f"Document {document} holds {100 * fraction:.0f} % of the bytes; without it `{comparison.a.name}` has "
                f"{bits_per_byte(nats[rest], sizes[rest]):.4f} bits per byte instead of "
                f"{bits_per_byte(nats, sizes):.4f}, and Δ is "
                f"{comparison.bits[rest].sum() / sizes[rest].sum():+.4f}."
            )
    keep = sizes > 0
    rates, logs = comparison.bits[keep] / sizes[keep], np.log(sizes[keep])
    if len(rates) > 2 and rates.std() > 0 and logs.std() > 0:
        correlation = float(np.corrcoef(rates, logs)[0, 1])
        if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))):
            sentences.append(
                f"Δ depends on the length of a document (correlation with log bytes {correlation:+.2f}), so it holds "
                "for text of similar lengths only."
            )
    return sentences


def documents_table(comparison: Comparison, begins: dict[int, str], num_listed: int) -> list[str]:
    """Return the documents whose bits changed most."""
    a, b, sizes = comparison.a, comparison.b, comparison.a.runs[0].utf8_bytes
    rows = []
    for i in most_changed(comparison, num_listed):
        rates = [group.nats[i] / math.log(2) / sizes[i] for group in (a, b)]
        rows.append([f"{i}: `{begins[i]}`", f"{sizes[i]:,}", *(f"{rate:.4f}" for rate in rates),
                     f"{rates[1] - rates[0]:+.4f}", f"{comparison.bits[i]:+,.0f}"])  # fmt: skip
    return table(["document that changed most", "bytes", a.name, b.name, "Δ bits per byte", "Δ bits"], rows)


def how_to_read(comparison: Comparison, percent: str) -> list[str]:
    """Return the notes on units, weights and intervals."""
    sizes, baseline = comparison.a.runs[0].utf8_bytes, comparison.baseline
    text = (
        "A negative difference means that the run left of the minus sign is better. "
        f"The {len(sizes)} documents ({sizes.sum():,} bytes) weigh as much as {effective_documents(sizes):.0f} of "
        f"equal length. Intervals over documents ({percent}, smoothed studentized bootstrap) cover the choice of "
        "documents; the models are fixed. Intervals over seeds (Welch 1947) cover the choice of seeds; the documents "
        "are fixed."
    )
    if baseline.low is not None:
        text += (
            f" `{comparison.a.name}` itself has {baseline.value:.3f} bits per byte, {percent} interval "
            f"{baseline.low:.3f} to {baseline.high:.3f}: wider, since a difference compares each document with itself."
        )
    return [text, ""]


def csv_rows(groups: list[Group]) -> tuple[list[str], list[list]]:
    """Return columns, and a row for each document: its number, bytes and bits per byte under each group."""
    sizes = groups[0].runs[0].utf8_bytes
    figures = np.stack([group.nats / math.log(2) / sizes for group in groups], axis=1)
    rows = [[i, int(size), *map(float, row)] for i, (size, row) in enumerate(zip(sizes, figures, strict=True))]
    return ["document", "utf8_bytes", *(group.name for group in groups)], rows

"""Comparisons → Markdown that reads as well on a terminal: the figures, what they mean, what they cannot say."""

import math

import numpy as np

from tools.common.statistics import Difference, bits_per_byte, effective_documents, standard_error
from tools.common.tables import table
from tools.compare.runs import Comparison, Group, Run, most_changed, what_differs

ONE_RUN = (
    "Seeds: {who}. What another `train.seed` would give cannot be said, so this compares trained models, not "
    "configurations. For seeds: `dvc exp run --queue -S 'train.seed=range(1,6)' -n NAME`, then name them all here."
)


def report(
    groups: list[Group], comparisons: list[Comparison], begins: dict[int, str], num_listed: int, percent: str
) -> list[str]:
    """All lines. begins: document → its first characters; num_listed: documents a comparison lists; percent:
    the intervals' confidence."""
    lines = ["# " + " against ".join([", ".join(c.b.name for c in comparisons), comparisons[0].a.name]), ""]
    lines += runs_table([run for group in groups for run in group.runs])
    if any(len(group.runs) > 1 for group in groups):
        lines += groups_table(groups)
    for comparison in comparisons:
        lines += comparison_section(comparison, percent)
        lines += documents_table(comparison, begins, num_listed)
    if len(comparisons) > 1:
        lines += [f"{len(comparisons)} comparisons: of equal pairs, one in twenty has p < 0.05 by chance alone.", ""]
    return lines + how_to_read(comparisons[0], percent)


def runs_table(runs: list[Run]) -> list[str]:
    """A row a run."""
    header = ["run", "seed", "bits per byte", "tokens seen", "best at", "parameters", "seconds of training"]
    rows = [
        [run.name, run.params["train.seed"], f"{run.bits_per_byte:.4f}", *(f"{run.figures[key]:,.0f}" for key in (
            "tokens_seen", "best_tokens_seen", "parameters", "train_seconds"
        ))]
        for run in runs
    ]  # fmt: skip
    return table(header, rows)


def groups_table(groups: list[Group]) -> list[str]:
    """A row a configuration: mean and standard deviation over its seeds."""
    rows = []
    for group in groups:
        values = group.bits_per_byte
        sd = f"± {values.std(ddof=1):.4f}" if len(values) > 1 else "one run: unknown"
        rows.append([group.name, len(values), f"{values.mean():.4f}", sd])
    return table(["configuration", "seeds", "mean bits per byte", "sd over seeds"], rows)


def comparison_section(comparison: Comparison, percent: str) -> list[str]:
    """One comparison: figures, verdict, what else differs."""
    a, b = comparison.a, comparison.b
    lines = [f"## {b.name} − {a.name}: {comparison.documents.bits_per_byte:+.4f} bits per byte", ""]
    lines += differences_table(comparison, percent)
    rows = what_differs(a, b)
    sentences = verdict(comparison, percent)
    if any(name == "eval.stride" for name, _, _ in rows):
        sentences.append("`eval.stride` differs: part of the difference is how the text was scored, not the model.")
    lines += [f"- {sentence}" for sentence in sentences] + [""]
    if rows:
        return lines + table(["what differs", a.name, b.name], [[name, *values] for name, *values in rows])
    return [*lines, "dvc.lock records no other difference; what remains is the machine.", ""]


def differences_table(comparison: Comparison, percent: str) -> list[str]:
    """A row a kind of noise."""
    count = len(comparison.a.nats)
    rows = [[f"documents, all {count}, paired", *cells(comparison.documents)]]
    if comparison.unseen:
        rows.append([f"{comparison.num_unseen} that chose neither's best model", *cells(comparison.unseen)])
    if comparison.seeds.se is not None:
        seeds, numbers = comparison.seeds, f"{len(comparison.a.runs)} and {len(comparison.b.runs)}"
        df = "" if seeds.degrees_of_freedom is None else f", {seeds.degrees_of_freedom:.1f} degrees of freedom"
        rows.append([f"seeds, {numbers} runs (Welch's t{df})", *cells(seeds)])
    return table(["noise of", "Δ bits per byte", "standard error", f"{percent} interval", "p"], rows)


def cells(difference: Difference) -> list[str]:
    """Difference, standard error, interval, p."""
    if difference.low is None:
        se = "" if difference.se is None else f"{difference.se:.4f}"
        return [f"{difference.bits_per_byte:+.4f}", se, "too few to say", ""]
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return [f"{difference.bits_per_byte:+.4f}", f"{difference.se:.4f}", interval, f"{difference.p_value:.2g}"]


def verdict(comparison: Comparison, percent: str) -> list[str]:
    """Two sentences: beyond the noise of documents, and of seeds, or not, or not to be said."""
    a, b, seeds = comparison.a, comparison.b, comparison.seeds
    lines = [f"Documents: {judged(comparison.documents, a.name, b.name, percent)}"]
    alone = [group.name for group in (a, b) if len(group.runs) == 1]
    if a.runs[0].configuration == b.runs[0].configuration:
        lines.append("Seeds: both are of one configuration, so this difference is noise of the seed or the machine.")
    elif alone:
        lines.append(ONE_RUN.format(who=" and ".join(f"n = 1 of `{name}`" for name in alone)))
    else:
        lines.append(f"Seeds: on these documents, {judged(seeds, a.name, b.name, percent)}")
    return lines


def judged(difference: Difference, name_a: str, name_b: str, percent: str) -> str:
    """What an interval says."""
    if difference.low is None:
        return "too few to give an interval."
    if difference.low <= 0 <= difference.high:
        return f"`{name_a}` and `{name_b}` are not told apart: the {percent} interval holds zero."
    word = "better" if difference.bits_per_byte < 0 else "worse"
    return f"`{name_b}` is {word} than `{name_a}`: the {percent} interval leaves out zero."


def documents_table(comparison: Comparison, begins: dict[int, str], num_listed: int) -> list[str]:
    """The documents whose bits changed most; Δ bits over all documents add up to the whole difference."""
    a, b, sizes = comparison.a, comparison.b, comparison.a.runs[0].utf8_bytes
    rows = []
    for document in most_changed(comparison, num_listed):
        bits_a, bits_b = (group.nats[document] / math.log(2) for group in (a, b))
        size = sizes[document]
        figures = [f"{bits_a / size:.4f}", f"{bits_b / size:.4f}", f"{(bits_b - bits_a) / size:+.4f}"]
        rows.append([f"{document}: `{begins[document]}`", f"{size:,}", *figures, f"{bits_b - bits_a:+,.0f}"])
    return table(["document that changed most", "bytes", a.name, b.name, "Δ bits per byte", "Δ bits"], rows)


def how_to_read(comparison: Comparison, percent: str) -> list[str]:
    """What is noise here, in this data's own figures."""
    sizes, nats = comparison.a.runs[0].utf8_bytes, comparison.a.nats
    absolute, paired = standard_error(nats, sizes), comparison.documents.se
    lines = [
        f"{len(sizes)} documents of {sizes.sum():,} bytes weigh as much as {effective_documents(sizes):.0f} of equal "
        "length. Below zero is better. Each document is compared with itself, so what makes one harder than another "
        "falls out: over documents, "
    ]
    if absolute is not None and paired is not None:
        whole = f"{bits_per_byte(nats, sizes):.3f}"
        lines[0] += (
            f"the standard error of `{comparison.a.name}`'s {whole} is {absolute:.2g}, of the difference {paired:.2g}."
        )
    else:
        lines[0] += "one document has no standard error."
    lines[0] += (
        f" Intervals over documents: {percent}, symmetric studentized bootstrap of documents (Hall 1988), and p the "
        "same distribution's; they speak of other documents like these under these very models. Over seeds: "
        "Welch 1947; they speak of other seeds on these very documents."
    )
    return [*lines, ""]


def csv_rows(groups: list[Group]) -> tuple[list[str], list[list]]:
    """Columns and a row a document: its number, bytes and bits per byte under each group."""
    sizes = groups[0].runs[0].utf8_bytes
    figures = np.stack([group.nats / math.log(2) / sizes for group in groups], axis=1)
    rows = [[i, int(size), *map(float, row)] for i, (size, row) in enumerate(zip(sizes, figures, strict=True))]
    return ["document", "utf8_bytes", *(group.name for group in groups)], rows
